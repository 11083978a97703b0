"""What slurmstepd says in a job's own log when Slurm ends the job. Pure."""

from __future__ import annotations

import re

_ENDED = r"\*\*\* JOB {} ON \S+ CANCELLED AT \S+(?P<due> DUE TO [^*]*?)? ?\*\*\*"
_BY_SIGNAL = "due to signal"  # newer releases say so of a plain scancel


def was_cancelled(text: str, job_id: int) -> bool:
    """Whether the newest of these words is of a plain cancel, and not of a time limit, a requeue or the like."""
    found = list(re.finditer(_ENDED.format(job_id), text, re.IGNORECASE))
    due = (found[-1]["due"] or "").strip().lower() if found else "none"
    return not due or due.startswith(_BY_SIGNAL)
