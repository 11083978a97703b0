"""Starts a run's operator where its settings say: a process here, or a Slurm job of its own that is waited for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from transom_cli.errors import TransomError, printable

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.layout import RunDir
    from transom_cli.slurm.port import Job, Slurm

_ITS_OWN = "the operator's own job is asked for by operator.partition, operator.time and operator.sbatch"


def start(made: RunDir, *, new: bool, detach: bool) -> None:
    """Return when there is one, or, detached, when Slurm has its job. new: the run was made by this very command.

    TransomError where there will be none; a new run is over then.
    """
    from transom_cli.supervise.operator.background import start_operator
    from transom_cli.wiring.settings import read_settings
    from transom_cli.wiring.slurm import slurm_of

    settings = read_settings(made)
    if settings.operator.where == "login":
        start_operator(made)
        return
    from transom_cli.supervise.operator.job import await_operator

    slurm = slurm_of(made, settings.slurm.timeout)
    job_id = _submit(made, settings, slurm, new=new)
    if not detach:
        await_operator(made, job_id, slurm, _tell)


def comes_back(made: RunDir) -> bool:
    """Whether another job takes the place of an operator's that left; it is waited for. What fails is told."""
    from transom_cli.supervise.operator.job import await_next
    from transom_cli.wiring.settings import read_settings
    from transom_cli.wiring.slurm import slurm_of

    settings = read_settings(made)
    if settings.operator.where == "login":
        return False
    try:
        return await_next(made, slurm_of(made, settings.slurm.timeout), _tell)
    except TransomError as error:
        print(f"warning: {error}", file=sys.stderr)
        return False


def _submit(made: RunDir, settings: Settings, slurm: Slurm, *, new: bool) -> int:
    from transom_cli.slurm.port import SlurmDenied, SlurmRefused
    from transom_cli.supervise.operator.job import give_up_unsubmitted, submit_operator

    try:
        job = submit_operator(made, settings, slurm)
    except (SlurmRefused, SlurmDenied) as error:
        if new:
            give_up_unsubmitted(made, f"the operator's job: {error.what}: {' '.join(error.why.split())}")
        raise TransomError(f"The operator of run `{made.run_id}` cannot be submitted", error.why, _ITS_OWN) from error
    print(job.words, file=sys.stderr)
    return job.job_id


def _tell(job: Job) -> None:
    from transom_cli.slurm.port import JobState
    from transom_cli.ui.slurmwords import reason_words

    waits = f": {reason_words(job.reason)}" if job.state is JobState.PENDING and job.reason else ""
    print(printable(f"job {job.job_id} {job.state.value}{waits}"), file=sys.stderr)


def forget_operator(run: RunDir) -> None:
    """Cancel the job that was to be the operator of a run that is over, if it still waits. What fails is told."""
    from transom_cli.supervise.operator.job import cancel_waiting
    from transom_cli.ui.asked import operator_job
    from transom_cli.wiring.slurm import slurm_of

    if not operator_job(run):
        return
    try:
        for job_id in cancel_waiting(run, slurm_of(run)):
            print(f"its operator, job {job_id}, had not begun, and is cancelled", file=sys.stderr)
    except TransomError as error:
        print(
            f"warning: whether its operator still waits in Slurm is not known: {printable(error.what)}", file=sys.stderr
        )
