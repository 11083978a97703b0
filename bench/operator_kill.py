"""Kill the operator in the middle of an incident, and check that every action is done exactly once.

    python bench/operator_kill.py [--runs 10] [--absence 0,300] [--json]

Each run trains the example GPT on 3 of a sandbox's 4 nodes. A node is killed, in every third run the one with the batch
script. At a random moment between its death and the first new step (one undisturbed incident of each kind shows how
long that takes), the operator is killed with -9. It is restarted with `transom attach --detach`: at once in most runs,
after 300 s in the last. By then the launcher has ended, the job has failed, and Slurm may have marked the node as down.

The bench counts Slurm's actions, from the controller's log and `scontrol show job`: how often the job was requeued or
submitted again, and how often a node was drained; it also shows the operator's journal. Each count must be one, and the
run must end as done with the uninterrupted run's final state, bit for bit; otherwise the exit code is 1. After an
absence, the launcher or Slurm may have requeued the job, and Slurm may have removed the node; the operator must then do
no more.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from dataclasses import asdict, dataclass
from typing import Any

from harness import Bench, BenchError, LiveRun, Result, Training, progress, reference, run_bench, surroundings, wait_for
from injury import injure, random_step, recovery

from transom_cli.core.events import Isolated, Restarted
from transom_cli.supervise.journal import fold, read_events

TRIES = 3  # of a run whose incident was over before its operator was killed
_REQUEUED = re.compile(r"\bRequeuing JobId=(\d+)")
_SUBMITTED = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)")
_DRAINED = re.compile(r"update_node: node (\S+) state set to DRAIN")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="[10]")
    parser.add_argument(
        "--absence", default="0,300", metavar="S,S", help="seconds without an operator: all runs but the last few "
        "have the first, then one run each of the others [0,300]",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of steps, nodes and moments [1]")
    parser.add_argument("--steps", type=int, default=80, help="of a training [80]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the runs' files")
    asked = parser.parse_args()
    try:
        first, *others = [float(word) for word in asked.absence.split(",")]
    except ValueError:
        parser.error("--absence: seconds, with commas between them")
    asked.absences = ([first] * max(asked.runs - len(others), 0) + others)[: max(asked.runs, 0)]
    return asked


@dataclass(frozen=True)
class Trial:
    """`moment`: seconds from the node's death to the operator's. `absence`: seconds until the next operator."""

    number: int
    seed: str
    batch_host: bool  # which node dies: the batch script's, or another
    moment: float
    absence: float


@dataclass(frozen=True)
class Done:
    """What was done about one incident, by who tells it."""

    requeues: int  # Slurm's log: the job was requeued
    successors: int  # Slurm's log: a further job was submitted
    drains: int  # Slurm's log: a node's state was set to DRAIN
    restarts: int  # scontrol: the final job's restart count
    journal_restarts: int
    journal_isolations: int
    attempts: int  # directories of attempts

    def once(self, absence: float) -> bool:
        restarted = self.requeues + self.successors == 1 and self.restarts == self.requeues and self.attempts == 2
        ours = (self.drains, self.journal_restarts, self.journal_isolations)
        return restarted and (ours == (1, 1, 1) or (absence > 0 and max(ours) <= 1))


def what_was_done(run: LiveRun, log: str) -> Done:
    """`log`: the controller's, since just before the run was submitted. No other job is in it."""
    folded, events = fold(run.dir.journal), read_events(run.dir.journal)
    return Done(
        requeues=len(_REQUEUED.findall(log)),
        successors=len(_SUBMITTED.findall(log)) - 1,
        drains=len(_DRAINED.findall(log)),
        restarts=run.bench.slurm.job(folded.state.job.id).restarts,
        journal_restarts=sum(isinstance(event, Restarted) for event in events),
        journal_isolations=sum(isinstance(event, Isolated) for event in events),
        attempts=sum(path.is_dir() for path in run.dir.attempts.iterdir()),
    )


def stage(run: LiveRun) -> str:
    """How far the incident had come, in one word."""
    state = run.state
    if state.incident is not None:
        return state.incident.stage.value
    return "closed" if state.incidents else "unseen"


class TooLate(BenchError):
    """The incident was over when the operator was killed."""


def one_run(bench: Bench, trial: Trial, training: Training, wanted: Result) -> dict[str, Any]:
    rng = random.Random(trial.seed)
    row: dict[str, Any] = {"run": trial.number, "absence": trial.absence, "good": False}
    offset = len(bench.controller_log())
    try:
        run = bench.train(f"run{trial.number}", training)
        fault = injure(run, "node-kill", rng, random_step(rng, training), trial.batch_host)
        time.sleep(max(0.0, fault.at + trial.moment - time.time()))
        if not run.kill_operator():
            raise BenchError("No operator was there to be killed")
        moment = round(time.time() - fault.at, 2)
        row |= {"target": fault.target, "batch_host": fault.batch_host, "step": fault.step}
        row |= {"moment": moment, "stage": stage(run)}
        if row["stage"] == "closed":
            raise TooLate(f"The incident was over {moment} s after the fault already")
        time.sleep(trial.absence)
        bench.transom("attach", "--detach", "--root", str(bench.runs), run.name)
        result = run.wait_done(420.0)
        wait_for(lambda: not bench.slurm.job(run.state.job.id).completing, 30.0, "the end of the job's last processes")
        done = what_was_done(run, bench.controller_log()[offset:])
        row |= {**asdict(done), "once": done.once(trial.absence), "bit_identical": result == wanted}
        row["good"] = row["once"] and result == wanted
    except BenchError as error:
        row["error"] = f"{error.what}: {error.why}" if error.why else error.what
        row["too_late"] = isinstance(error, TooLate)
    bench.heal()
    return row


def incident_length(bench: Bench, training: Training, seed: int, batch_host: bool) -> float:
    """Seconds from a node's death to the first new step when nobody kills the operator."""
    rng = random.Random(f"{seed}/undisturbed")
    run = bench.train("undisturbed", training)
    fault = injure(run, "node-kill", rng, random_step(rng, training), batch_host)
    run.wait_done()
    seconds = recovery(run, fault).total
    bench.heal()
    progress(f"an undisturbed incident{' of the batch host' if batch_host else ''} takes {seconds:.1f} s")
    return seconds


def line(row: dict[str, Any]) -> str:
    head = f"run {row['run']:>2}: "
    if "stage" in row:
        back = f"back after {row['absence']:.0f} s" if row["absence"] else "back at once"
        head += f"{row['target']} died, operator killed {row['moment']:.1f} s later ({row['stage']}), {back}: "
    if "error" in row:
        return head + row["error"]
    counts = f"{row['requeues']} requeue, {row['successors']} successor, {row['drains']} drain"
    told = f"journal: {row['journal_restarts']} restart, {row['journal_isolations']} isolation"
    equal = "bit-identical" if row["bit_identical"] else "DIFFERENT RESULT"
    return f"{head}{counts} ({told}), {equal}: {'good' if row['good'] else 'BAD'}"


def main() -> int:
    asked = arguments()
    training = Training(steps=asked.steps)
    began = time.time()
    rows = []
    with Bench(keep=asked.keep) as bench:
        wanted = reference(bench, training)
        lengths = {kind: incident_length(bench, training, asked.seed, kind) for kind in (False, True)}
        rng = random.Random(f"{asked.seed}/moments")
        count = len(asked.absences)
        # one random moment in each of `count` equal parts of the incident, in random order: all of it is met
        parts = [(part + rng.random()) / count for part in rng.sample(range(count), count)]
        for number, (part, absence) in enumerate(zip(parts, asked.absences, strict=True), 1):
            for _ in range(TRIES):
                batch_host = number % 3 == 0
                moment = part * lengths[batch_host]
                trial = Trial(number, f"{asked.seed}/{number}", batch_host, moment, absence)
                row = one_run(bench, trial, training, wanted)
                progress(line(row))
                if not row.get("too_late"):
                    break
                part *= 0.7
            rows.append(row)
        good = sum(row["good"] for row in rows)
        if asked.json:
            print(json.dumps({
                "schema": 1, "bench": "operator_kill", "unit": "s", "seed": asked.seed, "training": vars(training),
                "where": surroundings(), "took": round(time.time() - began),
                "incident": {"other node": lengths[False], "batch host": lengths[True]},
                "good": good, "of": len(rows), "runs": rows,
            }))  # fmt: skip
        else:
            print("\n".join(line(row) for row in rows))
            print(f"\none restart, one isolation, done and bit-identical: {good} of {len(rows)}")
        if good != len(rows):
            raise BenchError(f"In {len(rows) - good} of {len(rows)} runs something was not done exactly once")
    return 0


if __name__ == "__main__":
    run_bench(main)
