"""The run of a job that somebody submitted without transom: a run directory, and nothing that reaches the job."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.config.run_settings import policy_of
from transom_cli.errors import NotPermitted, UsageError
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Job
from transom_cli.slurm.tags import tag_of, tagged
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import write_header

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_SCRIPT = "#!/bin/sh\n# transom observes job {job}, which was submitted without it, and does not submit this file\n"


def require_observable(job: Job, user: str) -> None:
    """Raise NotPermitted for another user's job; UsageError for one that transom has, has ended, or is a part."""
    name = f"job {job.job_id}"
    if tagged(job.comment):
        run = tag_of(job.comment).split(":")[1]
        raise UsageError(
            f"transom already operates {name}", f"it belongs to run `{run}`", f"`transom status {run}` shows it"
        )
    if job.user != user:
        hint = "its owner can observe it"
        raise NotPermitted(f"{name} belongs to {job.user}", "you can observe your own jobs", hint)
    if job.part_of:
        why = "it is part of a job array" if job.part_of == "array" else "it is part of a heterogeneous job"
        raise UsageError(f"{name} cannot be observed", why, "observe a job of its own")
    if job.state.ended:
        hint = f"`transom diagnose {job.output or 'LOG'}` looks for the cause in its log"
        raise UsageError(f"{name} has already ended", job.state.value, hint)


def observe_job(job: Job, settings: Settings, cluster: str, log: Path | None) -> RunDir:
    """Create the run. log: where the job writes, if not where Slurm says."""
    text = _SCRIPT.format(job=job.job_id)
    run = new_run(settings.root, settings.name, datetime.now(timezone.utc), settings, text)
    if log is not None:
        run.job_log(job.job_id).symlink_to(log.absolute())
    requested = settings.job.cluster or ""
    SubmissionRecord(requested_cluster=requested, cluster=cluster, observed=job.job_id).save(run)
    write_header(run.journal, policy_of(settings), 0)
    return run
