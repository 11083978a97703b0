"""Polls Slurm for our job in a thread, so that a slow controller does not delay the operator's other sources."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.events import JobGone
from transom_cli.core.operator.cadence import Pause
from transom_cli.core.slurm_messages import was_cancelled
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir, parse_attempt
from transom_cli.ownership import user_name
from transom_cli.slurm.guards import CircuitOpen, backoff
from transom_cli.slurm.port import Job, JobState, NoSuchJob, Slurm
from transom_cli.slurm.requeue import end_from_accounting
from transom_cli.slurm.tags import is_other_runs, replaces_job, run_tag
from transom_cli.supervise.agent.logs import tail_of
from transom_cli.supervise.handoff_record import Handoff, newest_handoff
from transom_cli.supervise.operator.clock import Clock

log = logging.getLogger("transom.slurmwatch")

FORGOTTEN_AFTER = 3  # answers of "no such job" in a row before it counts as forgotten
LONG = 10.0  # seconds
AGAIN = 1.0  # seconds from such an answer to the next question
RETURNS = 60.0  # seconds between two questions whether a drained node was returned to service
MOST_LOST = 30.0  # seconds between two questions to a Slurm that does not answer


class SlurmPoller:
    """Puts JobSeen, JobGone, SlurmLost and SlurmBack on the queue, also if nothing has changed: that does no harm.

    Args:
        pace: Maps the seconds that the last answer took to when to ask next. While Slurm does not answer, the poller
            backs off by itself.
        tag: The run's. A job that has ended may have a successor that its launcher submitted, known by the tag.
        handed: Returns the newest launcher's handoff.
        forgotten: Describes a job that Slurm no longer knows.
        ask: Returns a job by its ID. An answer to another run is used if it is at most that many seconds old.
        count: Called with 1 when this run begins to ask, and with -1 when it ends.
    """

    def __init__(
        self,
        slurm: Slurm,
        clock: Clock,
        out: queue.SimpleQueue[ev.Event],
        pace: Callable[[float], Pause],
        tag: str = "",
        handed: Callable[[], Handoff | None] = lambda: None,
        forgotten: Callable[[int], ev.JobGone] | None = None,
        ask: Callable[[int, float], Job] | None = None,
        count: Callable[[int], object] = lambda _runs: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slurm, self._now = slurm, now
        self._clock = clock
        self._out = out
        self._pace = pace
        self._tag = tag
        self._handed = handed
        self._count = count
        self._ask = ask or (lambda job_id, _age: slurm.job(job_id))
        self._forgotten = forgotten or (lambda job_id: ev.JobGone(clock.now(), job_id))
        self._job_id = 0
        self._restarts = 0
        self._nodes: tuple[str, ...] = ()
        self._drained: tuple[str, ...] = ()
        self._returns_at = 0.0
        self._wake, self._delay = threading.Event(), 0.0
        self._resting = threading.Lock()
        self._due: tuple[float, float] | None = None  # while no thread waits: when to ask, and the age that will do
        self._end = False
        self._rounds = (0, 0)  # failures in a row, answers "no such job" in a row
        self._asked = 0  # the job that was last asked about
        self._answered = 0.0  # when Slurm last did
        self._within = copy_context()
        self._counted = False

    def start(self) -> None:
        self._counted = True
        self._count(1)
        self._go(0.0)

    def _go(self, age: float) -> None:
        self._due = None
        work = (self._loop, age)
        self._thread = threading.Thread(target=self._within.copy().run, args=work, name="slurm-watch", daemon=True)
        self._thread.start()

    def follow(self, job_id: int, restarts: int, nodes: tuple[str, ...], drained: tuple[str, ...] = ()) -> None:
        """Set the job to poll, and what is known about it.

        The operator calls this in each turn: then a pause that has ended is noticed here.

        Args:
            drained: Nodes that this run drained and that its waiting job therefore avoids. Whoever ends such a drain
                lets the run use the node again.
        """
        if drained != self._drained:
            self._drained, self._returns_at = drained, self._now() + RETURNS
        self._job_id, self._restarts, self._nodes = job_id, restarts, nodes or self._nodes
        due = self._due
        if due is not None and self._now() >= due[0]:
            self._go(due[1])

    def look(self, delay: float = 0.0) -> None:
        """Ask after `delay` seconds, or earlier if a question is due. A newer answer to another run is enough."""
        with self._resting:
            if self._due is None:
                self._delay = delay
                self._wake.set()
            elif delay:
                if self._now() + delay < self._due[0]:
                    self._due = self._now() + delay, delay
            else:
                self._go(0.0)

    def stop(self) -> None:
        if self._counted:
            self._counted = False
            self._count(-1)
        self._end = True
        self._wake.set()

    def _loop(self, age: float) -> None:
        """Ask repeatedly; a long pause needs no thread."""
        while not self._end:
            pause = self.poll(age)
            with self._resting:
                if pause.seconds >= LONG and not self._wake.is_set():
                    self._due = self._now() + pause.seconds, pause.age
                    return
            age = self._wait(pause)

    def _wait(self, pause: Pause) -> float:
        """Wait for the next question, and return how old its answer may be. `look` replaces the pause."""
        seconds, age = pause.seconds, pause.age
        while self._wake.wait(seconds) and not self._end:
            with self._resting:
                self._wake.clear()
                seconds = age = self._delay
            if not seconds:
                break
        return age

    def poll(self, age: float) -> Pause:
        """Ask once, put on the queue what Slurm says, and return when to ask next."""
        lost, forgotten = self._rounds
        job_id, began = self._job_id, self._now()
        if job_id != self._asked:
            forgotten, self._asked = 0, job_id
        if not job_id:
            return self._pace(0.0)
        try:
            event, forgotten = self._look(job_id, forgotten, age)
        except Exception as error:  # refused, nonsense, a fault of ours: an operator that sees nothing is worse
            if not isinstance(error, TransomError):
                log.exception("looking at job %s", job_id)
            told = (error.why or error.what) if isinstance(error, TransomError) else repr(error)
            self._out.put(ev.SlurmLost(self._clock.now(), told, self._answered))
            self._rounds = lost + 1, forgotten
            pause = self._pace(0.0)
            rest = error.seconds if isinstance(error, CircuitOpen) else max(pause.seconds, backoff(lost + 1))
            return Pause(min(rest, MOST_LOST), pause.age)
        self._answered = self._clock.now()
        if event is not None:
            self._out.put(event)
        self._look_for_returns()
        if lost:
            self._out.put(ev.SlurmBack(self._clock.now()))
        self._rounds = 0, forgotten
        pause = self._pace(self._now() - began)
        return Pause(min(pause.seconds, AGAIN), 0.0) if forgotten else pause

    def _look(self, job_id: int, forgotten: int, age: float = 0.0) -> tuple[ev.Event | None, int]:
        """Return Slurm's answer about the job as an event, and how often in a row it has not known the job."""
        try:
            job = self._ask(job_id, age)
        except NoSuchJob:
            job = None
        if job is not None and self._tag and is_other_runs(job.comment, self._tag):
            job = None
        if job is None or (job.state.ended and job.state is not JobState.COMPLETED):
            successor = self._successor(job_id)
            if successor is not None:
                return self._seen(successor, succeeds=job_id), 0
        if job is not None:
            return self._seen(job), 0
        gone = forgotten + 1 >= FORGOTTEN_AFTER
        return (self._forgotten(job_id) if gone else None), forgotten + 1

    def _look_for_returns(self) -> None:
        """Tell of drained nodes that somebody has returned to service."""
        if not self._drained or self._now() < self._returns_at:
            return
        self._returns_at = self._now() + RETURNS
        try:
            usable = tuple(n.name for n in self._slurm.nodes(self._drained) if n.usable)
        except TransomError as error:
            log.info("cannot see whether %s were returned: %s", ", ".join(self._drained), error)
            return
        if usable:
            now = self._clock.now()
            self._out.put(ev.LiftRequested(now, "an administrator in Slurm", f"returned-{now:.0f}", usable))

    def _successor(self, job_id: int) -> Job | None:
        """Return the job that replaces this one, or None.

        A held job counts only if its launcher has recorded it: otherwise its submission was interrupted, and a restart
        releases it.
        """
        if not self._tag:
            return None
        told = self._handed()
        for job in sorted(self._slurm.jobs(), key=lambda job: job.job_id):
            never = job.state is JobState.CANCELLED and not job.nodes
            known = not job.held or (told is not None and told.job_id == job.job_id)
            if known and not never and (replaces_job(job.comment, self._tag, job_id) or _is(told, job, job_id)):
                return job
        return None

    def _seen(self, job: Job, succeeds: int = 0) -> ev.JobSeen:
        lost: tuple[str, ...] = ()
        if (succeeds or job.restarts > self._restarts) and job.state is JobState.PENDING and self._nodes:
            try:
                lost = tuple(n.name for n in self._slurm.nodes(self._nodes) if not n.usable)
            except TransomError:
                lost = ()
        seen = replace(job_seen(self._clock.now(), job, lost), succeeds=succeeds)
        told = self._handed() if seen.held or job.restarts > self._restarts else None
        if told is None or told.start != (job.job_id, job.restarts):
            return seen
        held_why = told.why if seen.held and told.how == "held" else ""
        return replace(seen, held_why=held_why, by_launcher=told.how == "requeued")


def _is(told: Handoff | None, job: Job, old: int) -> bool:
    """Return whether this is the job that the launcher of job `old` says it submitted as its successor."""
    if told is None or told.job_id != job.job_id or job.job_id == old:
        return False
    return parse_attempt(told.attempt)[0] == old


def job_seen(now: float, job: Job, lost: tuple[str, ...] = ()) -> ev.JobSeen:
    return ev.JobSeen(
        now,
        job.job_id,
        job.restarts,
        job.state.value,
        completing=job.completing,
        held=job.held and job.state is JobState.PENDING,
        reason=job.reason,
        nodes=job.nodes,
        batch_host=job.batch_host,
        exit_code=job.exit_code if job.state.ended else None,
        exit_signal=job.exit_signal if job.state.ended else None,
        lost_nodes=lost,
        suspended_at=job.suspended_at,
    )


log = logging.getLogger("transom.forgotten")


class ForgottenJobs:
    """Describes jobs that Slurm no longer knows, with how they ended if accounting knows.

    Accounting is queried once per job: a query without a result may take until its deadline, and another one finds no
    more.
    """

    def __init__(self, run: RunDir, slurm: Slurm, clock: Clock, since: float) -> None:
        """since: when the run began, in seconds since the epoch."""
        self._run, self._slurm, self._clock, self._since = run, slurm, clock, since
        self._told: dict[int, JobGone] = {}

    def __call__(self, job_id: int) -> JobGone:
        if job_id not in self._told:
            self._told[job_id] = self._ask(job_id)
        told = self._told[job_id]
        return replace(told, at=self._clock.now())

    def _ask(self, job_id: int) -> JobGone:
        last = self._last(job_id)
        end = end_from_accounting(self._slurm, last, self._since, run_tag(self._run.run_id))
        if end is not None:
            log.info("job %s is forgotten, and accounting tells: %s", job_id, end)
            how = (end.state.value, end.exit_code, end.exit_signal, user_name(end.by), "accounting")
            return JobGone(0.0, job_id, *how)
        text, _ = tail_of(self._run.job_log(last))
        if was_cancelled(text.decode(errors="replace"), last):
            return JobGone(0.0, job_id, "CANCELLED", source="the job's log")
        return JobGone(0.0, job_id)

    def _last(self, job_id: int) -> int:
        """Return the last job: without an operator, the launcher may have submitted a successor and cancelled it."""
        handed = newest_handoff(self._run)
        ours = handed is not None and parse_attempt(handed.attempt)[0] == job_id
        return handed.job_id if handed is not None and ours else job_id
