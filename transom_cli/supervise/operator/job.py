"""Runs the operator as a Slurm job: submits it unless one exists, waits for it, and cancels it when the run is over."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transom_cli.core import events as ev
from transom_cli.errors import OperatorAlive, TransomError
from transom_cli.files import last_lines, publish_text
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Job, JobState, NoSuchJob, Slurm, SlurmRefused, SlurmUnknown, Submission
from transom_cli.slurm.successor import runs_script
from transom_cli.slurm.tags import tag_of
from transom_cli.start import installed
from transom_cli.submit.render import operator_options, operator_script, operator_tag
from transom_cli.supervise.journal import Journal, fold
from transom_cli.supervise.lease import RENEW, Lease, highest_epoch, operator_alive
from transom_cli.supervise.requests import STOP

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

LOOK, LONGEST = 1.0, 15.0  # seconds between two looks at a job that waits, at first and at most
HANDOVER = 20.0  # seconds in which an operator that leaves has submitted the next one
LATE = 10.0  # seconds after the job's end in which a file system may still show that it had begun


@dataclass(frozen=True)
class OperatorJob:
    job_id: int
    state: str = ""  # of a job that existed already; "" for one that was just submitted

    @property
    def words(self) -> str:
        return f"the operator is job {self.job_id}" + (f" ({self.state})" if self.state else "")


def submit_operator(
    run: RunDir, settings: Settings, slurm: Slurm, environ: Mapping[str, str] = os.environ
) -> OperatorJob:
    """Return the operator's job, and submit one if there is none. Two jobs do no harm: only one gets the lease.

    If this is called inside an operator job, that job does not count, because it is about to end.

    Raises TransomError: The errors of the port; OSError: The run directory cannot be written.
    """
    waiting = [job for job in _living(run, slurm) if str(job.job_id) != environ.get("SLURM_JOB_ID", "")]
    if waiting:
        return OperatorJob(waiting[0].job_id, waiting[0].state.value)
    publish_text(
        run.operator_script, operator_script(run, installed(settings.launch.python, "transom_cli")), private=True
    )
    submission = Submission(run.operator_script, operator_options(run, settings.operator), chdir=run.path)
    job_id = slurm.submit(submission)
    publish_text(run.operator_job, f"{job_id}\n")
    return OperatorJob(job_id)


def await_operator(
    run: RunDir, job_id: int, slurm: Slurm, say: Callable[[Job], None], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when the job has become the run's operator, or the run is over.

    Args:
        say: Called with the job when its state or Slurm's reason for it has changed.

    Raises:
        TransomError: The job has ended and the run has no operator; quotes the operator's log.
    """
    before, told, pause, ended = highest_epoch(run), ("", ""), LOOK, 0.0
    while not _operated(run, before):
        try:
            job = slurm.job(job_id)
        except SlurmUnknown:
            sleep(LONGEST)
            continue
        except NoSuchJob:
            job = Job(job_id, JobState.UNKNOWN)
        if job.state is JobState.RUNNING and operator_alive(run, sleep, patience=2 * RENEW) is not None:
            return
        if job.state.ended or job.state is JobState.UNKNOWN:
            if ended >= LATE:
                raise _not_begun(run, job)
            ended, pause = ended + LOOK, LOOK
        elif (job.state.value, job.reason) != told:
            told = job.state.value, job.reason
            say(job)
        sleep(pause)
        pause = LOOK if job.state is JobState.RUNNING else min(LONGEST, 1.5 * pause)


def await_next(
    run: RunDir, slurm: Slurm, say: Callable[[Job], None], sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Return whether the run has an operator again: before its time limit, a new job replaces an operator.

    Wait for that job as `await_operator` does, once there is one.
    """
    before, paused = highest_epoch(run), 0.0
    while not _operated(run, before):
        with contextlib.suppress(SlurmUnknown):
            waiting = [job for job in _living(run, slurm) if job.state is JobState.PENDING]
            if waiting:
                await_operator(run, waiting[-1].job_id, slurm, say, sleep)
                return True
        if paused >= HANDOVER:
            return False
        sleep(LOOK)
        paused += LOOK
    return True


def _operated(run: RunDir, before: int) -> bool:
    return highest_epoch(run) > before or fold(run.journal).state.phase.over


def _not_begun(run: RunDir, job: Job) -> TransomError:
    how = job.state.value if job.state.ended else "forgotten by Slurm"
    return TransomError(
        f"The operator of run `{run.run_id}` did not start",
        "\n".join([f"its job {job.job_id}: {how}", *last_lines(run.operator_log)]),
        f"`transom attach {run.run_id}` submits another one; `transom stop {run.run_id}` gives up.",
    )


def give_up_unsubmitted(run: RunDir, words: str) -> None:
    """End a new run whose operator job Slurm refused, as an operator does if Slurm refuses the run's job."""
    lease = Lease.take(run)
    journal = Journal(run.journal, lease.epoch)
    try:
        journal.append(ev.Started(time.time(), lease.epoch))
        for ordered in fold(run.journal).state.pending:
            journal.append(ev.ActionFailed(time.time(), ordered.key, SlurmRefused.kind, words))
    finally:
        journal.close()
        lease.give_up()


def stop_unsubmitted(run: RunDir, who: str) -> bool:
    """End a run that no operator has ever taken: nothing was submitted, and nothing will be.

    Returns False if an operator has taken it. Neither Slurm nor an operator is needed.
    """
    state = fold(run.journal).state
    if state.epoch or state.policy.observe or highest_epoch(run):
        return False
    try:
        lease = Lease.take(run)
    except OperatorAlive:
        return False
    journal = Journal(run.journal, lease.epoch)
    try:
        first = lease.epoch == 1  # else an operator came in between
        if first:
            journal.append(ev.StopRequested(time.time(), who))
    finally:
        journal.close()
        lease.give_up()
    return first


def continue_run(run: RunDir, who: str, num_nodes: int = 0, fewest: int = 0, back_to: int = -1) -> None:
    """Record that a person resumes a run that is over. The next operator submits its job.

    num_nodes, fewest, back_to: As in `core.events.Resumed`. Raises OperatorAlive: an operator is alive.
    """
    lease = Lease.take(run)
    journal = Journal(run.journal, lease.epoch)
    try:
        for request in run.requests.glob(f"{STOP}-*.json"):
            request.unlink(missing_ok=True)  # else the next operator would carry it out again
        now = time.time()
        journal.append(ev.Started(now, lease.epoch))
        journal.append(ev.Resumed(now, who, num_nodes, fewest, back_to))
    finally:
        journal.close()
        lease.give_up()
    run.summary.unlink(missing_ok=True)  # else `transom list` shows a run that is over


def cancel_waiting(run: RunDir, slurm: Slurm) -> tuple[int, ...]:
    """Cancel operator jobs of a run that is over and that have not started."""
    waiting = [job.job_id for job in _living(run, slurm) if job.state is JobState.PENDING]
    for job_id in waiting:
        slurm.cancel(job_id)
    return tuple(waiting)


def _living(run: RunDir, slurm: Slurm) -> list[Job]:
    tag = operator_tag(run.run_id)

    def is_operator(job: Job) -> bool:
        return tag_of(job.comment) == tag or runs_script(job, run.operator_script)

    return [job for job in slurm.jobs() if is_operator(job) and not job.state.ended]
