"""The same training and the same fault under Slurm alone: what `sbatch --requeue` does without transom.

requeue   examples/gpt/train.sbatch as it is (`#SBATCH --requeue`, with a checkpoint directory): it is left to
          Slurm to start the job again
idiom     the same script, but it ends with `scontrol requeue $SLURM_JOB_ID` when srun has failed, which is what
          people write once they have seen the first one
"""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from harness import GPT, NODES, Bench, BenchError, Training, progress, wait_for

from transom_cli.sandbox import faults
from transom_cli.slurm.port import Job, JobState, NoSuchJob, SlurmUnknown, Submission

SCRIPTS = ("requeue", "idiom")
_STEP = re.compile(r"^step (\d+) loss", re.MULTILINE)
_BEGIN = "training from step "
_LAST_LINE = "exec srun "
_stop = threading.Event()
CONFIRM = 10.0  # seconds that a job must have been over, with nothing left of it, before it counts as never back


@dataclass(frozen=True)
class PlainOutcome:
    """`seconds`: from the fault to the first new step; None: it did not come, and `how` tells what came instead,
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
    text = (GPT / "train.sbatch").read_text()
    if script == "requeue":
        return text
    head, found, last = text.rpartition(_LAST_LINE)
    if not found:
        raise BenchError("examples/gpt/train.sbatch does not end with `exec srun` any more")
    return f'{head}srun {last.rstrip()} && exit 0\nscontrol requeue "$SLURM_JOB_ID"\n'


class PlainJob:
    def __init__(self, bench: Bench, name: str, script: str, training: Training) -> None:
        self._bench = bench
        self._script = bench.dir / f"{name}.sbatch"
        self._script.write_text(script_text(script))
        self.log = bench.dir / f"{name}.log"
        checkpoints = bench.dir / f"{name}-checkpoints"
        checkpoints.mkdir()
        words = [*training.words(), "--log-every", "1", "--checkpoint-dir", str(checkpoints)]
        env = {**bench.env, "PYTHON": sys.executable, "TRAIN": str(GPT / "train.py")}
        options = (f"--output={self.log}", f"--nodes={NODES}")
        self.job_id = bench.slurm.submit(Submission(self._script, options, tuple(words), env, bench.dir))

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def steps(self) -> list[int]:
        """Steps told since the newest start of the training."""
        return [int(step) for step in _STEP.findall(self.text().rpartition(_BEGIN)[2])]

    def wait_step(self, step: int) -> int:
        """The step that was seen. BenchError, with the end of the log, when the job does not get there."""

        def there() -> bool:
            job = self.job()
            if job is None or job.state.ended or job.restarts:
                tail = "\n".join(self.text().splitlines()[-5:])
                raise BenchError(f"The plain job was over before step {step}", tail, f"less {self.log}")
            return max(self.steps(), default=-1) >= step

        wait_for(there, 180.0, f"step {step} under Slurm alone", every_s=0.3)
        return self.steps()[-1]

    def starts(self) -> int:
        return self.text().count(_BEGIN)

    def job(self) -> Job | None:
        """None: Slurm has forgotten it."""
        try:
            return self._bench.slurm.job(self.job_id)
        except NoSuchJob:
            return None


def measure(script: str, fault: str, training: Training, step: int, timeout_s: float, seed: str) -> PlainOutcome:
    """One job, in a sandbox of its own, watched until it makes a new step, is over for good, or time is up."""
    with Bench() as bench:
        progress(f"Slurm alone ({script}), {fault} at step {step}, at most {timeout_s:.0f} s")
        job = PlainJob(bench, script, script, training)
        seen = job.wait_step(step)
        at = time.time()
        _injure(bench, job, fault, random.Random(seed))
        outcome = _watch(job, script, fault, seen, at, timeout_s)
        progress(f"Slurm alone ({script}), {fault}: {outcome.how} after {outcome.watched:.0f} s")
        return outcome


def _injure(bench: Bench, job: PlainJob, fault: str, rng: random.Random) -> None:
    running = job.job()
    if running is None or not running.nodes:
        raise BenchError("The plain job was over before the fault")
    if fault == "node-kill":
        # not the batch script's own host: with it would die the only one who could ask for a requeue
        others = [node for node in running.nodes if node != running.batch_host]
        faults.kill_node(bench.sandbox, rng.choice(others))
    elif fault == "rank-kill":
        faults.kill_rank(bench.sandbox, job.job_id, rng.randrange(len(running.nodes)))
    else:
        raise BenchError(f"Slurm alone is not measured for {fault}")


def _watch(job: PlainJob, script: str, fault: str, step: int, at: float, timeout_s: float) -> PlainOutcome:
    began = job.starts()
    story: list[tuple[float, str]] = []
    over_since: float | None = None

    def outcome(seconds: float | None, how: str) -> PlainOutcome:
        return PlainOutcome(script, fault, step, seconds, how, round(time.time() - at, 1), tuple(story))

    while True:
        passed = round(time.time() - at, 1)
        if _stop.is_set():
            raise BenchError("The other measurement was given up")
        if job.starts() > began and job.steps():
            return outcome(passed, "back")
        try:
            seen = job.job()
        except SlurmUnknown:
            continue
        words = _words(seen)
        if not story or story[-1][1] != words:
            story.append((passed, words))
        over = seen is None or (seen.state.ended and not seen.completing)
        over_since = (over_since or passed) if over else None
        if over_since is not None and passed - over_since > CONFIRM:
            return outcome(None, "never came back")
        if passed > timeout_s:
            return outcome(None, f"not back within {timeout_s:.0f} s")
        time.sleep(0.25)


def _words(job: Job | None) -> str:
    if job is None:
        return "forgotten"
    reason = f" ({job.reason})" if job.state is JobState.PENDING and job.reason else ""
    return job.state.value + reason + (" and COMPLETING" if job.completing else "")


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
