"""How a job ended that slurmctld has forgotten (after MinJobAge), where there is accounting."""

from __future__ import annotations

import logging
import pwd

from transom_cli.errors import TransomError
from transom_cli.slurm.port import Slurm, Start
from transom_cli.slurm.starts import last_end, own

log = logging.getLogger("transom.accounting")


def accounted_end(slurm: Slurm, job_id: int, since: float, tag: str) -> Start | None:
    """None where there is no accounting, where it does not answer, and where it knows of no end.

    It hears of things late, so that only an end counts. since: when the run began, in seconds since the epoch. tag: the
    run's.
    """
    try:
        starts = slurm.history(job_id)
    except TransomError as error:
        log.info("accounting tells nothing of job %s: %s", job_id, error.why or error.what)
        return None
    return last_end(own(starts, since, tag))


def user_name(uid: int | None) -> str:
    """For people; "" where nobody is told of."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user id {uid}"
