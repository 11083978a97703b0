"""Finds the output of a user's own batch script, and its length when each attempt ended."""

import contextlib
from collections.abc import Sequence

from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.slurm.port import Job

_NO_ELEMENT = "4294967294"  # the number of an array's element that Slurm has not split off yet
_ARRAY = "--array="


class Outputs:
    """Belongs to one operator: it does not know where the output of earlier attempts ends."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ends: dict[tuple[int, int], int] = {}

    def before(self, attempt: AttemptDir) -> int:
        """Return the output's length in bytes when the job's attempt before this one ended; this one has ended now."""
        job_id, restart = parse_attempt(attempt.name)
        with contextlib.suppress(OSError):  # none, so far
            self._ends[job_id, restart] = self._run.job_log(job_id).stat().st_size
        earlier = [end for (job, number), end in self._ends.items() if job == job_id and number < restart]
        return max(earlier, default=0)

    def link(self, job: Job, options: Sequence[str]) -> None:
        """Link `slurm-<job>.log` in the run directory to the output, which need not exist yet. Raises OSError.

        Args:
            options: The options given to sbatch; in an array of one element they contain its number.
        """
        element = next((one.removeprefix(_ARRAY) for one in options if one.startswith(_ARRAY)), "")
        path = job.output.replace(_NO_ELEMENT, element) if element else job.output
        link = self._run.job_log(job.job_id)
        if path.startswith("/") and path != "/dev/null" and not link.is_symlink() and not link.exists():
            link.symlink_to(path)
