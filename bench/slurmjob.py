"""The example training as a job without transom: what its log and Slurm show about it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from harness import GPT, NODES, Bench, BenchError, Training, wait_for

from transom_cli.slurm.port import Job, JobState, NoSuchJob, Submission

_STEP = re.compile(r"^step (\d+) loss", re.MULTILINE)
_BEGIN = "training from step "
_LAST_LINE = "exec srun "


def example_script() -> tuple[str, str]:
    """The example's own script: all but its last line, and the words of that after `exec srun`."""
    head, found, last = (GPT / "train.sbatch").read_text().rpartition(_LAST_LINE)
    if not found:
        raise BenchError("examples/gpt/train.sbatch does not end with `exec srun` any more")
    return head, last.rstrip()


def steps_told(log: str) -> list[int]:
    """Steps in a job's log since the newest start of the training. Pure."""
    return [int(step) for step in _STEP.findall(log.rpartition(_BEGIN)[2])]


class SlurmJob:
    """`env`: beside PYTHON and TRAIN, which choose the interpreter and the trainer of the script."""

    def __init__(
        self, bench: Bench, name: str, script: str, training: Training, env: Mapping[str, str] | None = None
    ) -> None:
        self._bench = bench
        path = bench.dir / f"{name}.sbatch"
        path.write_text(script)
        self.log = bench.dir / f"{name}.log"
        checkpoints = bench.dir / f"{name}-checkpoints"
        checkpoints.mkdir()
        words = [*training.words(), "--log-every", "1", "--checkpoint-dir", str(checkpoints)]
        chosen = {"PYTHON": sys.executable, "TRAIN": str(GPT / "train.py"), **(env or {})}
        options = (f"--output={self.log}", f"--nodes={NODES}")
        self.job_id = bench.slurm.submit(Submission(path, options, tuple(words), {**bench.env, **chosen}, bench.dir))

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def steps(self) -> list[int]:
        return steps_told(self.text())

    def starts(self) -> int:
        return self.text().count(_BEGIN)

    def back(self, began: int) -> bool:
        """It has made a step in a start after the first `began`."""
        return self.starts() > began and bool(self.steps())

    def wait_step(self, step: int) -> int:
        """The step that was seen. BenchError, with the end of the log, when the job does not get there."""

        def there() -> bool:
            job = self.job()
            if job is None or job.state.ended or job.restarts:
                tail = "\n".join(self.text().splitlines()[-5:])
                raise BenchError(f"The plain job was over before step {step}", tail, f"less {self.log}")
            return max(self.steps(), default=-1) >= step

        wait_for(there, 180.0, f"step {step} without transom", every_s=0.3)
        return self.steps()[-1]

    def job(self) -> Job | None:
        """None: Slurm has forgotten it."""
        try:
            return self._bench.slurm.job(self.job_id)
        except NoSuchJob:
            return None

    def running(self) -> Job:
        job = self.job()
        if job is None or not job.nodes:
            raise BenchError("The plain job was over before the fault")
        return job


def over(job: Job | None) -> bool:
    """Whether it has ended without leftovers."""
    return job is None or (job.state.ended and not job.completing)


def state_words(job: Job | None) -> str:
    if job is None:
        return "forgotten"
    reason = f" ({job.reason})" if job.state is JobState.PENDING and job.reason else ""
    return job.state.value + reason + (" and COMPLETING" if job.completing else "")
