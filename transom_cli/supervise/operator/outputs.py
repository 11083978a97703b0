"""Where the output of a user's own batch script is, and how long it was when an attempt of it was over."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.slurm.port import Job

_NO_ELEMENT = "4294967294"  # the number of an array's element that Slurm has not split off yet
_ARRAY = "--array="


class Outputs:
    """Kept by one operator: attempts that ended before it began cannot be told apart."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ends: dict[tuple[int, int], int] = {}

    def before(self, attempt: AttemptDir) -> int:
        """The output's length, in bytes, when the last attempt of the job before this one was over; this one is now."""
        job_id, restart = parse_attempt(attempt.name)
        with contextlib.suppress(OSError):  # none, so far
            self._ends[job_id, restart] = self._run.job_log(job_id).stat().st_size
        earlier = [end for (job, number), end in self._ends.items() if job == job_id and number < restart]
        return max(earlier, default=0)

    def link(self, job: Job, options: Sequence[str]) -> None:
        """`slurm-<job>.log` in the run directory leads to the output, which need not be there yet. OSError.

        options: what sbatch was given; in an array of one element its number.
        """
        element = next((one.removeprefix(_ARRAY) for one in options if one.startswith(_ARRAY)), "")
        path = job.output.replace(_NO_ELEMENT, element) if element else job.output
        link = self._run.job_log(job.job_id)
        if path.startswith("/") and path != "/dev/null" and not link.is_symlink() and not link.exists():
            link.symlink_to(path)
