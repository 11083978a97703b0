"""Does what the core orders, a thread an action, and answers with events. Every action here is safe to do twice.

What Slurm does not answer is tried again with back-off until it does; what Slurm refuses is told to the core as
ActionFailed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.core import actions as act
from transom_cli.core import events as ev
from transom_cli.errors import TransomError
from transom_cli.health.finding import Finding
from transom_cli.layout import AttemptDir, RunDir, attempt_name
from transom_cli.slurm.breaker import NotAsked
from transom_cli.slurm.known import still_there
from transom_cli.slurm.port import (
    Job,
    JobState,
    NoSuchJob,
    Slurm,
    SlurmRefused,
    SlurmUnknown,
    Submission,
)
from transom_cli.slurm.restart import SETTLE, RestartRequest, restart_job
from transom_cli.slurm.retry import backoff
from transom_cli.slurm.tags import is_anothers, of_run, run_tag, successor_tag, tag_of
from transom_cli.supervise.examine import examine
from transom_cli.supervise.handed import attempt_numbers, newest_handed
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.draining import drain, reason
from transom_cli.supervise.operator.outputs import Outputs

_HELD_BY_SUBMISSION = "JobHeldUser"  # Slurm's reason after `sbatch --hold`
_LAST = 150.0  # seconds in which Slurm starts by itself what it has requeued (its credential lifetime, and a look)

Reach = Callable[[str, str, int, int | None], Finding]


@dataclass(frozen=True)
class Orders:
    """What the hands need to know of a run, beyond what stands in the actions."""

    run: RunDir
    submission: Submission
    drain_command: tuple[str, ...] = ()
    tasks_per_node: int = 0  # where a restart may do with fewer nodes (without spares): to keep the tasks in step
    stay_held: bool = False  # the user's own script asks for --hold: releasing it is theirs
    resubmit: bool = False  # a restart is a new job
    drain_spool: Path | None = None
    output_elsewhere: bool = False  # the user's own script says where its output goes
    since: float | None = None  # when the run began, in seconds since the epoch, where accounting may be asked of it

    @property
    def tag(self) -> str:
        """The comment by which our jobs are found again when an answer of sbatch was lost."""
        return run_tag(self.run.run_id)


class _Stopped(Exception):
    """The operator leaves in the middle of an action."""


class Hands:
    def __init__(
        self, orders: Orders, slurm: Slurm, reach: Reach, clock: Clock, out: queue.SimpleQueue[ev.Event]
    ) -> None:
        self._orders = orders
        self._slurm = slurm
        self._reach = reach
        self._clock = clock
        self._out = out
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="hand")
        self._busy: set[str] = set()
        self._outputs = Outputs(orders.run)

    def do(self, action: act.Action) -> None:
        if action.key in self._busy:
            return
        self._busy.add(action.key)
        self._pool.submit(self._do, action)

    @property
    def in_restart(self) -> bool:
        """A requeue is under way: cut off now, it would leave the job held until somebody attaches."""
        return any("/restart" in key for key in tuple(self._busy))

    def stop(self) -> None:
        """Begin no new try; what is under way may end by itself."""
        self._end.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do(self, action: act.Action) -> None:
        tries = 0
        while not self._end.is_set():
            try:
                self._out.put(self._perform(action))
                break
            except _Stopped:
                break  # the next operator finds the action unanswered and goes on where this one was
            except NotAsked as early:  # it was not answered to another hand
                self._end.wait(early.seconds)
            except SlurmUnknown as error:
                tries += 1
                self._out.put(ev.SlurmLost(self._clock.now(), error.why or error.what))
                self._end.wait(backoff(tries))
            except TransomError as error:
                told = f"{error.what}: {error.why}" if error.why else error.what
                self._out.put(ev.ActionFailed(self._clock.now(), action.key, error.kind, told))
                break
            except Exception as error:
                # A fault of ours must reach the journal, or the incident would wait for ever.
                self._out.put(ev.ActionFailed(self._clock.now(), action.key, "internal", repr(error)))
                break
        self._busy.discard(action.key)

    def _perform(self, action: act.Action) -> ev.Event:
        if isinstance(action, act.Submit):
            return self._submit(action)
        if isinstance(action, act.Probe):
            return self._probe(action)
        if isinstance(action, act.Examine):
            attempt = AttemptDir(self._orders.run.attempts / action.attempt)
            since = self._outputs.before(attempt)
            found = examine(action.key, self._orders.run, attempt, action.rank, 0.0, since=since)
            return replace(found, at=self._clock.now())
        if isinstance(action, act.Isolate):
            return self._isolate(action)
        if isinstance(action, act.Restart):
            return self._restart(action)
        if isinstance(action, act.Patch):
            return self._patch(action)
        if isinstance(action, act.Release):
            self._job(action.job_id)
            self._slurm.release(action.job_id)
            return ev.Acted(self._clock.now(), action.key, "released")
        if isinstance(action, act.Cancel):
            self._cancel(action.job_id)
            return ev.Acted(self._clock.now(), action.key, "cancelled")
        raise TypeError(f"no hand for {type(action).__name__}")

    def _submit(self, action: act.Submit) -> ev.Event:
        """A lost answer of sbatch, or a crash before it was remembered, must not make a second job.

        It is submitted held, and one is released: a submission that we gave up waiting for may be taken after all.
        """
        known = self._submitted()
        if not known:
            submission = self._orders.submission
            options = (*submission.options, f"--comment={self._orders.tag}", "--hold")
            self._slurm.submit(replace(submission, options=options))
            known = self._submitted()
        if not known:
            raise SlurmUnknown("Slurm does not show the job that it has just taken", "", "squeue --me")
        first, *more = known
        for extra in (job for job in more if job.held):
            self._slurm.cancel(extra.job_id)
        ours = first.reason == _HELD_BY_SUBMISSION and not self._orders.stay_held
        if first.held and ours:
            self._slurm.release(first.job_id)
        self._show_output(first.job_id)
        return ev.Submitted(self._clock.now(), action.key, first.job_id, released=ours or not first.held)

    def _show_output(self, job_id: int) -> None:
        """A script's own output is found in the run directory as well. Not worth a try more, nor a failed action."""
        if self._orders.output_elsewhere:
            with contextlib.suppress(TransomError, OSError):
                self._outputs.link(self._slurm.job(job_id), self._orders.submission.options)

    def _submitted(self) -> list[Job]:
        """The jobs of the first submission: one that was released already before those still held."""
        found = (job for job in self._slurm.jobs() if tag_of(job.comment) == self._orders.tag)
        return sorted(found, key=lambda job: (job.held, job.job_id))

    def _cancel(self, job_id: int) -> None:
        """The run is to end, and with it a successor that its launcher submitted meanwhile."""
        with contextlib.suppress(NoSuchJob):
            self._job(job_id)
            self._slurm.cancel(job_id)
        for job in self._slurm.jobs():
            if of_run(job.comment, self._orders.tag) and job.job_id != job_id and not job.state.ended:
                self._slurm.cancel(job.job_id)

    def _job(self, job_id: int) -> Job:
        """NoSuchJob also of one that is not of this run, though it has the number of one that was."""
        job = self._slurm.job(job_id)
        if is_anothers(job.comment, self._orders.tag):
            raise NoSuchJob("Slurm does not know this job (any more)", "its number is another job's now")
        return job

    def _probe(self, action: act.Probe) -> ev.Event:
        self._sleep(action.delay)
        node = next(iter(self._slurm.nodes([action.node])))
        finding = self._reach(node.name, node.address, node.port, action.job_id or None)
        return ev.Probed(self._clock.now(), action.key, action.node, finding.verdict.name, finding.evidence)

    def _isolate(self, action: act.Isolate) -> ev.Event:
        how, detail = "excluded", ""
        if action.drain:
            why = reason(action.reason, self._orders.run.run_id)
            how, detail = drain(self._slurm, self._orders.drain_command, action.node, why, self._orders.drain_spool)
        return ev.Isolated(self._clock.now(), action.key, action.node, how, detail)

    def _restart(self, action: act.Restart) -> ev.Event:
        handed = newest_handed(self._orders.run)
        before = (action.job_id, action.expect_restarts)
        went_on = any(number > before for number in attempt_numbers(self._orders.run))  # then we may have cancelled it
        request = RestartRequest(
            job_id=action.job_id,
            expect_restarts=action.expect_restarts,
            exclude=action.exclude,
            dead=action.dead,
            num_nodes=action.num_nodes,
            tasks_per_node=self._orders.tasks_per_node,
            tag=successor_tag(self._orders.tag, attempt_name(action.job_id, action.expect_restarts)),
            submission=self._orders.submission,
            drop=action.drop,
            resubmit=self._orders.resubmit,
            held=handed.start if handed is not None else None,  # its launcher left it held, or a person held it since
            since=None if went_on else self._orders.since,
        )
        result = restart_job(self._slurm, request, sleep=self._sleep, clock=self._clock.now)
        self._show_output(result.job_id)
        return ev.Restarted(self._clock.now(), action.key, result.job_id, result.restarts, result.how)

    def _sleep(self, seconds: float) -> None:
        """A pause that must not be cut short: told to stop, the hand stops instead."""
        if self._end.wait(seconds):
            raise _Stopped

    def _patch(self, action: act.Patch) -> ev.Event:
        """Only while the job is pending: once it runs, the exclusions are for the next time."""
        try:
            job = self._job(action.job_id)
            keep = [n for n in job.excluded if n not in action.drop]
            exclude = still_there(self._slurm, tuple(dict.fromkeys((*keep, *action.exclude))))
            fewer = action.num_nodes if 0 < action.num_nodes < job.num_nodes else None
            if set(exclude) != set(job.excluded) or fewer:
                tasks = fewer * self._orders.tasks_per_node if fewer else None
                self._slurm.update_pending(action.job_id, exclude=exclude, num_nodes=fewer, num_tasks=tasks or None)
            detail = f"excluded: {', '.join(action.exclude) or 'none'}"
            if action.start and self._start(action.job_id):
                detail += "; started at once"
        except (SlurmRefused, NoSuchJob) as error:
            detail = f"too late: {error.why or error.what}"
        return ev.Acted(self._clock.now(), action.key, detail)

    def _start(self, job_id: int) -> bool:
        """Spare a job that Slurm requeued the wait for its old start's credentials; never one that somebody holds."""
        deadline = self._clock.now() + _LAST
        while self._clock.now() < deadline:
            job = self._job(job_id)
            if job.state is not JobState.PENDING or job.held:
                return False
            if not job.completing:
                self._sleep(SETTLE)
                self._slurm.start_now(job_id)
                return True
            self._sleep(1.0)
        return False
