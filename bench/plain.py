"""The same training and fault under Slurm without transom: `sbatch --requeue`.

requeue   examples/gpt/train.sbatch unchanged (`#SBATCH --requeue`, with a checkpoint directory): Slurm alone restarts
          the job
idiom     the same script, but it ends with `scontrol requeue $SLURM_JOB_ID` if srun has failed, a common idiom
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from harness import GPT, Bench, BenchError, Training, progress
from slurmjob import SlurmJob, example_script, over, state_words

from transom_cli.sandbox import faults
from transom_cli.slurm.port import SlurmUnknown

SCRIPTS = {"requeue": "sbatch --requeue", "idiom": "scontrol requeue"}
FAULTS = ("rank-kill", "node-kill")
_stop = threading.Event()
CONFIRM = 10.0  # seconds that a job must have been over, with nothing left of it, before it counts as never back


@dataclass(frozen=True)
class PlainOutcome:
    """`seconds`: from the fault to the first new step; None: it did not come, and `how` says what came instead,
    `watched` seconds after the fault. `story`: Slurm's state of the job, each with the second it was first seen."""

    script: str
    fault: str
    step: int
    seconds: float | None
    how: str
    watched: float
    story: tuple[tuple[float, str], ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def script_text(script: str) -> str:
    """The example's own script, and for `idiom` with its last line made to ask for a requeue on failure."""
    if script == "requeue":
        return (GPT / "train.sbatch").read_text()
    head, last = example_script()
    return f'{head}srun {last} && exit 0\nscontrol requeue "$SLURM_JOB_ID"\n'


def measure(script: str, fault: str, training: Training, step: int, timeout_s: float, seed: str) -> PlainOutcome:
    """One job, in a sandbox of its own, watched until it makes a new step, is over for good, or time is up."""
    with Bench() as bench:
        progress(f"Slurm alone ({script}), {fault} at step {step}, at most {timeout_s:.0f} s")
        job = SlurmJob(bench, script, script_text(script), training)
        seen = job.wait_step(step)
        at = time.time()
        _injure(bench, job, fault, random.Random(seed))
        outcome = _watch(job, script, fault, seen, at, timeout_s)
        progress(f"Slurm alone ({script}), {fault}: {outcome.how} after {outcome.watched:.0f} s")
        return outcome


def _injure(bench: Bench, job: SlurmJob, fault: str, rng: random.Random) -> None:
    running = job.running()
    if fault == "node-kill":
        # not the batch script's own host: with it would die the only one who could ask for a requeue
        others = [node for node in running.nodes if node != running.batch_host]
        faults.kill_node(bench.sandbox, rng.choice(others))
    elif fault == "rank-kill":
        faults.kill_rank(bench.sandbox, job.job_id, rng.randrange(len(running.nodes)))
    else:
        raise BenchError(f"Slurm alone is not measured for {fault}")


def _watch(job: SlurmJob, script: str, fault: str, step: int, at: float, timeout_s: float) -> PlainOutcome:
    began = job.starts()
    story: list[tuple[float, str]] = []
    over_since: float | None = None

    def outcome(seconds: float | None, how: str) -> PlainOutcome:
        return PlainOutcome(script, fault, step, seconds, how, round(time.time() - at, 1), tuple(story))

    while True:
        passed = round(time.time() - at, 1)
        if _stop.is_set():
            raise BenchError("The other measurement was given up")
        if job.back(began):
            return outcome(passed, "back")
        try:
            seen = job.job()
        except SlurmUnknown:
            continue
        words = state_words(seen)
        if not story or story[-1][1] != words:
            story.append((passed, words))
        over_since = (over_since or passed) if over(seen) else None
        if over_since is not None and passed - over_since > CONFIRM:
            return outcome(None, "never came back")
        if passed > timeout_s:
            return outcome(None, f"not back within {timeout_s:.0f} s")
        time.sleep(0.25)


def measure_all(
    faults_: list[str], training: Training, step: int, count: int, timeout_s: float, seed: int
) -> list[PlainOutcome]:
    """Every script with every fault, `count` times. The two scripts side by side: nearly all of it is waiting."""

    def row(script: str) -> list[PlainOutcome]:
        return [
            measure(script, fault, training, step, timeout_s, f"{seed}/{script}/{fault}/{n}")
            for fault in faults_
            for n in range(count)
        ]

    with ThreadPoolExecutor(len(SCRIPTS)) as pool:
        rows = [pool.submit(row, script) for script in SCRIPTS]
        try:
            return [outcome for done in as_completed(rows) for outcome in done.result()]
        except BaseException:  # an interruption too: leaving the pool waits for the other
            _stop.set()
            raise
