"""What the launcher does after an outcome that is to be followed by another attempt.

It keeps the allocation while a live operator renews its lease: the operator requeues the job out of it, since a job
that ends by itself with a dead node in it hangs in COMPLETING until SlurmdTimeout. Without an operator the launcher
gives the job back to Slurm by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, SlurmUnknown
from transom_cli.slurm.retry import backoff
from transom_cli.supervise.launcherlog import say
from transom_cli.supervise.launchplan import Allocation
from transom_cli.supervise.lease import read_holder

OPERATOR_GONE = 20.0  # seconds without a renewed lease, on our clock
LINGER = 180.0  # at most this long for a live operator to requeue
UNKNOWN = 1800.0  # seconds for a Slurm that does not answer to come back, while the allocation is kept
REQUEUED = 60.0  # seconds for Slurm to end a job that was requeued


def linger(run: RunDir, told_to_leave: Callable[[], bool]) -> bool:
    """Whether there is no live operator. Returns too when Slurm wants the job to end, or after LINGER seconds."""
    began = seen_at = time.monotonic()
    seen = read_holder(run)
    while time.monotonic() - began < LINGER and not told_to_leave():
        holder = read_holder(run)
        if holder is None or holder.released:
            return True
        if seen is None or (holder.epoch, holder.renewals) != (seen.epoch, seen.renewals):
            seen, seen_at = holder, time.monotonic()
        if time.monotonic() - seen_at > OPERATOR_GONE:
            return True
        time.sleep(0.1)
    return False


def give_up_nodes(allocation: Allocation, given_up: tuple[str, ...]) -> None:
    """Before the end: with a dead node in it the job would hang in COMPLETING until SlurmdTimeout. At best."""
    from transom_cli.wiring import slurm_client

    living = tuple(n for n in allocation.nodes if n not in given_up)
    try:
        slurm_client().shrink(allocation.job_id, living)
    except TransomError as error:
        say(f"transom: {', '.join(given_up)} stays in the job until Slurm misses it: {error.why or error.what}")


def ended_by_slurm(job_id: int) -> bool:
    """Whether the job that is being ended reached its time limit, or was preempted; not when that is not known."""
    from transom_cli.wiring import slurm_client

    try:
        return slurm_client(timeout=10.0).job(job_id).state in (JobState.TIMEOUT, JobState.PREEMPTED)
    except TransomError:
        return False


def go_on(run: RunDir, job_id: int, again: str, told_to_leave: Callable[[], bool]) -> str:
    """Give the job back to Slurm: `requeue` it, or `hold` it for a person. Returns what was done, in words.

    A Slurm that does not answer is asked again, unless an operator is back, which then does it.
    """
    from transom_cli.wiring import slurm_client

    slurm = slurm_client()
    deadline, tries = time.monotonic() + UNKNOWN, 0
    while True:
        try:
            slurm.requeue_hold(job_id) if again == "hold" else slurm.requeue(job_id)
            break
        except SlurmUnknown as error:  # a slurmctld that restarts must not cost the run
            tries += 1
            if told_to_leave() or time.monotonic() >= deadline:
                return f"the job could not be requeued, Slurm gives no answer: {error.why or error.what}"
            time.sleep(backoff(tries))
            if not linger(run, told_to_leave):
                return "the job is left to the operator, which is back"
        except TransomError as error:
            return f"the job could not be requeued: {error.why or error.what}"
    words = "no operator lives: the job is held" if again == "hold" else "no operator lives: the job is requeued"
    say(f"transom: {words}")
    deadline = time.monotonic() + REQUEUED
    while time.monotonic() < deadline and not told_to_leave():
        time.sleep(0.1)
    return words
