"""Take slurmctld away for ten minutes: does the run continue, how often is Slurm called, and what do screens show?

    python bench/outage.py [--minutes 10] [--how stopped,killed] [--json]

Each variant trains the example GPT on 3 of a sandbox's 4 nodes, on its own cluster. slurmctld is stopped (SIGSTOP:
connections are accepted and never answered) or killed (connections are refused). After a fifth of the time a rank is
killed, and after three fifths a node. Wrappers at the front of PATH count every Slurm command that operator, launcher,
agents and a user who looks once a minute start. Then slurmctld continues, or is restarted from its saved state.

Success: the run ends as done, the dead node was drained once, the job was restarted once, and no minute had more than
`--most` commands. Otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from harness import Bench, BenchError, LiveRun, Training, progress, run_bench, surroundings, wait_for
from operator_kill import Done, what_was_done
from outage_count import Call, Minute, by_minute, gaps, make_wrappers, read_calls

from transom_cli.sandbox import faults

DELAY = 0.5  # seconds a step, so that a training of thousands of steps costs little
AFTER = 60.0  # seconds of training left after the outage
RANK_AT, NODE_AT = 0.2, 0.6  # parts of the outage
BACK = 600.0  # seconds for the run to end once Slurm answers


@dataclass
class Outage:
    """What one variant showed. Times in seconds, `said` by minute: the first line of `transom status`."""

    how: str
    minutes: list[Minute] = field(default_factory=list)
    gaps: dict[str, list[float]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # by minute
    faults: list[str] = field(default_factory=list)
    phase: str = ""
    noticed: float = -1.0  # from the controller's return to the operator's first answer
    recovered: float = -1.0  # ... to the first step after it
    done: Done | None = None  # what was done about the faults, by Slurm's log and the operator's journal
    incidents: list[str] = field(default_factory=list)
    calls: int = 0
    error: str = ""

    @property
    def most(self) -> int:
        return max((m.total for m in self.minutes), default=0)

    def good(self, most: int) -> bool:
        once = self.done is not None and self.done.once(0.0)
        return not self.error and self.phase == "done" and once and self.most <= most


class CountingBench(Bench):
    """Its runs speak to Slurm through wrappers that count."""

    def __enter__(self) -> CountingBench:
        super().__enter__()
        make_wrappers(self.dir / "bin", self.dir / "calls.tsv")
        return self

    @property
    def env(self) -> dict[str, str]:
        env = super().env
        return {**env, "PATH": f"{self.dir}/bin:{env['PATH']}"}

    def calls(self) -> list[Call]:
        log = self.dir / "calls.tsv"
        return read_calls(log.read_text()) if log.exists() else []


def first_line(bench: Bench, run: LiveRun) -> str:
    """What a person reads: the answer, and whatever is said of Slurm."""
    text = bench.transom("status", "--root", str(bench.runs), run.name)
    lines = text.splitlines()
    return " | ".join(" ".join(x.split()) for x in lines[:1] + [x for x in lines if "Slurm does not" in x])


def go_through(bench: CountingBench, run: LiveRun, seconds: float, told: Outage) -> tuple[float, float]:
    """The outage. From when to when, in Unix time."""
    sandbox = bench.sandbox
    job, nodes = run.state.job.id, run.state.job.nodes
    due = [
        (RANK_AT * seconds, "rank 1 killed", partial(faults.kill_rank, sandbox, job, 1)),
        (NODE_AT * seconds, f"{nodes[-1]} killed", partial(faults.kill_node, sandbox, nodes[-1])),
    ]
    began = time.time()
    faults.kill_controller(sandbox) if told.how == "killed" else faults.stop_controller(sandbox)
    progress(f"{told.how}: slurmctld is away, at step {run.view.step}")
    looked = 0
    while (now := time.time() - began) < seconds:
        if due and now >= due[0][0]:
            _, words, make = due.pop(0)
            make()
            told.faults.append(f"{words} after {now:.0f} s, at step {run.view.step}")
            progress(told.faults[-1])
        if now >= 60.0 * looked + min(30.0, seconds / 2):
            looked += 1
            told.said.append(first_line(bench, run))
            told.steps.append(run.view.step)
            progress(f"minute {looked}: {told.said[-1]}")
        time.sleep(0.5)
    ended = time.time()
    faults.start_controller(sandbox) if told.how == "killed" else faults.cont_controller(sandbox)
    progress("slurmctld is back")
    return began, ended


def one_outage(how: str, seconds: float, keep: bool) -> Outage:
    told = Outage(how)
    # no step starts without slurmctld: the rank's death costs all that is left of the outage
    training = Training(steps=int((RANK_AT * seconds + AFTER) / DELAY), delay=DELAY)
    with CountingBench(keep=keep) as bench:
        run = bench.train(how, training)
        run.wait_step(2 * training.every)
        time.sleep(10.0)  # until the operator has calmed down
        began, ended = go_through(bench, run, seconds, told)
        before = run.view.step
        try:
            wait_for(lambda: not run.state.slurm_error, BACK, "the operator's first answer")
            told.noticed = round(time.time() - ended, 1)
            wait_for(lambda: run.view.step > before or run.view.over, BACK, "a new step", every_s=0.3)
            told.recovered = round(time.time() - ended, 1)
            told.said.append(first_line(bench, run))
            told.phase = run.wait_over(BACK).phase
        except BenchError as error:
            told.error = f"{error.what}: {error.why}" if error.why else error.what
        told.said.append(first_line(bench, run))
        calls = bench.calls()
        during = [c for c in calls if began <= c.at < ended]
        told.minutes = by_minute(during, began, seconds)
        told.calls = len(during)
        told.gaps = {who: gaps(during, who) for who in ("operator", "launcher")}
        told.done = what_was_done(run, bench.controller_log())
        told.incidents = [f"{i.id} {i.message}: {i.result}" for i in reversed(run.view.incidents)]
        bench.keep = keep or bool(told.error)
    return told


def show(told: Outage, seconds: float, most: int) -> None:
    print(f"\nslurmctld {told.how} for {seconds / 60:g} minutes; {'; '.join(told.faults)}\n")
    print("minute  operator  launcher  agent  viewer  other   status\n" + "-" * 60)
    for minute, said in zip(told.minutes, [*told.said, *[""] * len(told.minutes)], strict=False):
        counts = "".join(f"{minute.by_who[who]:>{w}}" for who, w in _COLUMNS)
        print(f"{minute.number:>6}{counts}   {said}")
    per_minute = told.calls / (seconds / 60)
    print(f"\ncommands sent to Slurm: {told.calls} in {seconds / 60:g} minutes, {per_minute:.1f} a minute;", end=" ")
    print(f"most in one minute: {told.most} (bound {most})")
    programs: dict[str, int] = {}
    for minute in told.minutes:
        for name, count in minute.by_program.items():
            programs[name] = programs.get(name, 0) + count
    print(f"by program: {', '.join(f'{name} {count}' for name, count in sorted(programs.items()))}")
    for who, between in told.gaps.items():
        print(f"seconds between the {who}'s: {' '.join(f'{x:g}' for x in between)}")
    print(f"back: the operator's first answer after {told.noticed} s, a new step after {told.recovered} s")
    print(f"then: {told.said[-1]}" if told.said else "")
    for incident in told.incidents:
        print(f"      {incident}")
    done = told.done
    if done is not None:
        print(f"Slurm's log: {done.requeues} requeue, {done.successors} successor, {done.drains} drain;", end=" ")
        print(f"journal: {done.journal_restarts} restart, {done.journal_isolations} isolation")
    print("good" if told.good(most) else f"BAD {told.error}")


_COLUMNS = (("operator", 10), ("launcher", 10), ("agent", 7), ("viewer", 8), ("other", 7))


def as_json(told: Outage, most: int) -> dict[str, Any]:
    row = {name: value for name, value in vars(told).items() if name not in ("minutes", "done")}
    row["done"] = None if told.done is None else asdict(told.done)
    minutes = [{"who": dict(m.by_who), "program": dict(m.by_program)} for m in told.minutes]
    return {**row, "minutes": minutes, "most": told.most, "good": told.good(most)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="that slurmctld is away [10]")
    parser.add_argument("--how", default="stopped,killed", help="variants [stopped,killed]")
    parser.add_argument("--most", type=int, default=12, help="commands in any minute, of all askers [12]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the runs' files")
    asked = parser.parse_args()
    variants = asked.how.split(",")
    if not set(variants) <= {"stopped", "killed"}:
        parser.error("--how: stopped, killed, or both with a comma between them")
    rows = [one_outage(how, asked.minutes * 60, asked.keep) for how in variants]
    if asked.json:
        print(json.dumps({"schema": 1, **surroundings(), "outages": [as_json(row, asked.most) for row in rows]}))
    else:
        for row in rows:
            show(row, asked.minutes * 60, asked.most)
    return 0 if all(row.good(asked.most) for row in rows) else 1


if __name__ == "__main__":
    run_bench(main)
