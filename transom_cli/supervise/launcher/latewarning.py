"""The warning before the time limit, where it came too early to be heard.

While the batch script prepares the job, and while the launcher's modules are loaded, Slurm's USR2 is ignored: it would
end the script. A launcher that comes up only then has to warn itself.
"""

from __future__ import annotations

from collections.abc import Mapping

EARLY = 60.0  # seconds by which Slurm may warn before the moment that was asked for


def missed_for(environ: Mapping[str, str], before: int, now: float) -> float | None:
    """Seconds from `now` (wall time) to the moment at which a launcher that comes up now warns itself: 0 at once.

    None when the warning cannot have come yet, is not asked for, or Slurm does not tell when the time is up
    (SLURM_JOB_END_TIME is newer than 22.05). before: seconds before that end at which Slurm is to warn.
    """
    try:
        end = float(environ["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None
    moment = end - before
    if not before or not moment - EARLY <= now < end:  # beyond the end: this node's clock is wrong
        return None
    return max(0.0, moment - now)
