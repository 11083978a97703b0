"""Starts an operator as a Slurm job, unless one waits or runs already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Job, Slurm, Submission
from transom_cli.slurm.tags import tag_of
from transom_cli.submit.operatorjob import operator_options, operator_script, operator_tag
from transom_cli.submit.render import interpreter

if TYPE_CHECKING:
    from transom_cli.config.model import Settings


def submit_operator(run: RunDir, settings: Settings, slurm: Slurm, environ: Mapping[str, str] = os.environ) -> str:
    """In words, which job it is. Two that are submitted at once do no harm: the lease is one operator's.

    The job in which this is called does not count: it is an operator that is about to end. The port's errors; OSError
    when the run directory cannot be written.
    """
    waiting = _living(run, slurm, environ)
    if waiting:
        return f"the operator is job {waiting[0].job_id} ({waiting[0].state.value})"
    publish_text(run.operator_script, operator_script(run, interpreter(settings.launch.python)))
    submission = Submission(run.operator_script, operator_options(run, settings.operator), chdir=run.path)
    return f"the operator is job {slurm.submit(submission)}"


def _living(run: RunDir, slurm: Slurm, environ: Mapping[str, str]) -> list[Job]:
    own, tag = environ.get("SLURM_JOB_ID", ""), operator_tag(run.run_id)
    jobs = (job for job in slurm.jobs() if tag_of(job.comment) == tag and str(job.job_id) != own)
    return [job for job in jobs if not job.state.ended]
