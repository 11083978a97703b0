"""Carries out the core's actions, each in a thread, and answers with events. Every action is safe to repeat.

A call that Slurm does not answer is retried with back-off. If Slurm refuses a call, the core receives ActionFailed.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from transom_cli.core import events as ev
from transom_cli.core.node_hazard import Hazard
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.isolation import drain_refused
from transom_cli.core.operator.job import NOTHING_SUBMITTED
from transom_cli.errors import TransomError
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.reach import Peer
from transom_cli.layout import AttemptDir, RunDir, attempt_name
from transom_cli.slurm.guards import CircuitOpen, backoff
from transom_cli.slurm.port import (
    Job,
    JobState,
    Node,
    NoSuchJob,
    Slurm,
    SlurmDenied,
    SlurmRefused,
    SlurmUnknown,
    Submission,
)
from transom_cli.slurm.requeue import SETTLE, RestartRequest, restart_job
from transom_cli.slurm.successor import existing_nodes, runs_script, submit_recorded
from transom_cli.slurm.tags import is_other_runs, is_successor, of_run, run_tag, successor_tag
from transom_cli.supervise.handoff_record import attempt_numbers, newest_handoff
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.drain import drain, reason
from transom_cli.supervise.operator.outputs import Outputs
from transom_cli.supervise.operator.second_opinion import launcher_says, slurm_says
from transom_cli.supervise.operator.slurm_poller import job_seen
from transom_cli.supervise.root_cause import examine

_HELD_BY_SUBMISSION = "JobHeldUser"  # Slurm's reason after `sbatch --hold`
_LAST = 150.0  # seconds in which Slurm starts by itself what it has requeued (its credential lifetime, and a poll)

LATE = 5.0  # seconds in which a submission without an answer may still make a job
PEERS = 8  # other nodes of the job that Slurm is asked about


@dataclass(frozen=True)
class Around:
    """What a probe of a node is compared with.

    slurm, launcher: What they say if the node is gone, or "". peers: Other nodes that Slurm calls good.
    """

    peers: Callable[[], Sequence[Peer]]
    slurm: str = ""
    launcher: str = ""


Reach = Callable[[str, str, int, int | None, Around], Finding]


@dataclass(frozen=True)
class Orders:
    """What the executor needs to know about a run, beyond what the actions hold."""

    run: RunDir
    submission: Submission
    drain_command: tuple[str, ...] = ()
    tasks_per_node: int = 0  # where a restart may do with fewer nodes (without spares): to keep the tasks in step
    stay_held: bool = False  # the user's own script asks for --hold: releasing it is theirs
    resubmit: bool = False  # a restart is a new job
    drain_spool: Path | None = None
    output_elsewhere: bool = False  # the user's own script says where its output goes
    since: float | None = None  # when the run began, in seconds since the epoch, where accounting may be asked of it
    observe: bool = False  # carry out nothing that changes a job or a node
    observed: int = 0  # the job to observe, where transom did not submit it
    others: Callable[[str], tuple[ev.OtherExclusion, ...]] = lambda node: ()  # as users of the cluster report them
    history: Callable[[str], tuple[Hazard | None, int]] = lambda node: (None, 0)  # hazard, elsewhere, as in Isolated

    @property
    def tag(self) -> str:
        """The comment that identifies our jobs if an answer of sbatch was lost."""
        return run_tag(self.run.run_id)


class _Stopped(Exception):
    """The operator is asked to leave during an action."""


class Executor:
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
        self._answers: list[tuple[str, int]] = []  # of sbatch, as in SubmissionAnswered
        self._past: frozenset[int] = frozenset()  # jobs of the run before a person resumed it
        self._submitting = threading.Lock()
        self._withdrawn = False  # the run is to end: no first job is submitted any more

    def remember(self, submissions: Sequence[tuple[str, int]], past: Iterable[int] = ()) -> None:
        """Set what sbatch has answered to this run's operators so far, from the journal. past: as `State.past_jobs`."""
        self._answers, self._past = list(submissions), frozenset(past)

    def do(self, action: act.Action) -> None:
        if action.key in self._busy:
            return
        self._busy.add(action.key)
        self._pool.submit(copy_context().run, self._do, action)

    @property
    def in_restart(self) -> bool:
        """Whether a requeue is in progress. If it is interrupted, the job stays held until an operator continues."""
        return any("/restart" in key for key in tuple(self._busy))

    def stop(self) -> None:
        """Start no further attempts. Actions in progress may finish."""
        self._end.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do(self, action: act.Action) -> None:
        tries = 0
        while not self._end.is_set():
            try:
                self._out.put(self._perform(action))
                break
            except _Stopped:
                break  # the next operator finds the action unanswered and continues it
            except CircuitOpen as early:  # it was not answered to another hand
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
                # A fault of ours must reach the journal, or the incident would never end.
                self._out.put(ev.ActionFailed(self._clock.now(), action.key, "internal", repr(error)))
                break
        self._busy.discard(action.key)

    def _perform(self, action: act.Action) -> ev.Event:
        if self._orders.observe and not isinstance(action, act.Submit | act.Probe | act.ReadLogs):
            return ev.Withheld(self._clock.now(), action.key)
        if isinstance(action, act.Submit):
            return self._observed(action) if self._orders.observed else self._submit(action)
        if isinstance(action, act.Probe):
            return self._probe(action)
        if isinstance(action, act.ReadLogs):
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
            cancelled = self._cancel(action.job_id)
            return ev.Acted(self._clock.now(), action.key, "cancelled" if cancelled else NOTHING_SUBMITTED)
        raise TypeError(f"no hand for {type(action).__name__}")

    def _submit(self, action: act.Submit) -> ev.Event:
        """Submit the job, so that no lost answer of sbatch and no crash before it is recorded creates a second job.

        The job is submitted held, and one job is released: a submission that timed out may still be accepted later.
        """
        with self._submitting:
            if self._withdrawn:
                raise _Stopped
            known = self._submitted()
            if not known and not self._returned:
                self._submit_held(action.key)
                known = self._submitted()
        if not known:  # sbatch accepted it and Slurm no longer knows it: a later event reports that
            return ev.Submitted(self._clock.now(), action.key, self._returned[0])
        first, *more = known
        for extra in (job for job in more if job.held):
            self._slurm.cancel(extra.job_id)
        ours = first.reason == _HELD_BY_SUBMISSION and not self._orders.stay_held
        if first.held and ours:
            self._slurm.release(first.job_id)
        self._show_output(first.job_id)
        return ev.Submitted(self._clock.now(), action.key, first.job_id, released=ours or not first.held)

    def _observed(self, action: act.Submit) -> ev.Event:
        """Somebody else has submitted the job."""
        self._slurm.job(self._orders.observed)
        self._show_output(self._orders.observed)
        return ev.Submitted(self._clock.now(), action.key, self._orders.observed, released=True)

    def _show_output(self, job_id: int) -> None:
        """Link the script's own output into the run directory. A failure is ignored."""
        if self._orders.output_elsewhere:
            with contextlib.suppress(TransomError, OSError):
                self._outputs.link(self._slurm.job(job_id), self._orders.submission.options)

    def _submit_held(self, key: str) -> None:
        submission = self._orders.submission
        options = (*submission.options, f"--comment={self._orders.tag}", "--hold")
        held = replace(submission, options=options)
        submit_recorded(lambda: self._slurm.submit(held), lambda job_id: self._note(key, job_id), self._unanswered(key))

    def _note(self, key: str, job_id: int) -> None:
        """Record sbatch's answer, also in the journal for the next operator."""
        self._answers.append((key, job_id))
        number = sum(answer[0] == key for answer in self._answers)
        self._out.put(ev.SubmissionAnswered(self._clock.now(), key, job_id, number))

    @property
    def _returned(self) -> tuple[int, ...]:
        return tuple(job_id for _, job_id in self._answers if job_id)

    def _unanswered(self, key: str) -> int:
        return sum(answer == (key, 0) for answer in self._answers)

    def _submitted(self) -> list[Job]:
        """Return the jobs of the first submission: a released one before those that are still held."""
        found = (job for job in self._ours() if not is_successor(job.comment, self._orders.tag))
        return sorted(found, key=lambda job: (job.state is JobState.CANCELLED, job.held, job.job_id))

    def _ours(self) -> list[Job]:
        """Return this run's jobs, known by their comment, their batch script, or an ID that sbatch returned."""
        orders, returned = self._orders, self._returned
        jobs = {job.job_id: job for job in self._slurm.jobs()}
        for job_id in returned:
            if job_id not in jobs:  # a site may limit what squeue lists
                with contextlib.suppress(NoSuchJob):
                    jobs[job_id] = self._slurm.job(job_id)

        def ours(job: Job) -> bool:
            by_id = job.job_id in returned and not is_other_runs(job.comment, orders.tag)
            return by_id or of_run(job.comment, orders.tag) or runs_script(job, orders.submission.script)

        return [job for job in jobs.values() if ours(job) and job.job_id not in self._past]

    def _cancel(self, job_id: int) -> bool:
        """Cancel the job, and a successor that its launcher may have submitted. Return whether there was a job."""
        self._withdrawn = True
        with self._submitting:  # an sbatch under way is waited for
            pass
        with contextlib.suppress(NoSuchJob):
            if job_id:
                self._job(job_id)
                self._slurm.cancel(job_id)
        cancelled = {job_id}
        for late in (False, True):
            for job in self._ours():
                if job.job_id not in cancelled and not job.state.ended:
                    self._slurm.cancel(job.job_id)
                    cancelled.add(job.job_id)
            if late or job_id or not any(number == 0 for _, number in self._answers):
                break
            self._sleep(LATE)
        return bool(cancelled - {0} or self._returned)

    def _job(self, job_id: int) -> Job:
        """Return the job. Raises NoSuchJob also if the ID now belongs to a job of another run."""
        job = self._slurm.job(job_id)
        if is_other_runs(job.comment, self._orders.tag):
            raise NoSuchJob("Slurm does not know this job (any more)", "its number is another job's now")
        return job

    def _probe(self, action: act.Probe) -> ev.Event:
        """Probe the node. An interrupted step in our job says nothing about the node."""
        self._sleep(action.delay)
        node = next(iter(self._slurm.nodes([action.node])))
        job = self._job_or_none(action.job_id)
        if job is not None and job.suspended_at and job.state in (JobState.RUNNING, JobState.SUSPENDED):
            self._out.put(job_seen(self._clock.now(), job))  # heard before the probe's answer
        if job is not None and job.state is JobState.SUSPENDED:
            return self._unknown(action, "the job is suspended: no step can run in it")
        runs = job is None or (job.state is JobState.RUNNING and not job.completing)
        step_in = action.job_id if runs and not self._orders.observed else 0  # no step of ours in somebody's job
        attempt = AttemptDir(self._orders.run.attempts / attempt_name(job.job_id, job.restarts)) if job else None
        says = launcher_says(attempt, action.node) if attempt is not None else ""
        around = Around(lambda: self._peers(action.node, job), slurm_says(node), says)
        finding = self._reach(node.name, node.address, node.port, step_in or None, around)
        if finding.verdict.bad and step_in and job is not None:
            after = self._job_or_none(action.job_id)
            if after is None or (after.state, after.restarts) != (job.state, job.restarts) or after.completing:
                return self._unknown(action, "the job ended, or was requeued or suspended, while the node was asked")
            if self.in_restart:
                return self._unknown(action, "the job is being requeued, which ends any step in it")
        return ev.Probed(self._clock.now(), action.key, action.node, finding.verdict.name, finding.evidence)

    def _unknown(self, action: act.Probe, why: str) -> ev.Probed:
        return ev.Probed(self._clock.now(), action.key, action.node, Verdict.UNKNOWN.name, why)

    def _job_or_none(self, job_id: int) -> Job | None:
        if not job_id:
            return None
        with contextlib.suppress(NoSuchJob):
            return self._job(job_id)
        return None

    def _peers(self, node: str, job: Job | None) -> list[Peer]:
        """Return nodes that Slurm calls good: others of the job, else any of the cluster."""
        inside = tuple(n for n in (job.nodes if job is not None else ()) if n != node)[:PEERS]
        found = [n for n in self._slurm.nodes(inside) if n.name != node and _good(n)]
        return [Peer(n.name, n.address, n.port, in_job=n.name in inside) for n in found]

    def _isolate(self, action: act.Isolate) -> ev.Event:
        how, detail = "excluded", ""
        if action.drain:
            why = reason(action.reason, self._orders.run.run_id)
            orders, capped = self._orders, None if action.most is None else partial(drain_refused, action)
            how, detail = drain(self._slurm, orders.drain_command, action.node, why, orders.drain_spool, capped)
        others, (hazard, elsewhere) = self._orders.others(action.node), self._orders.history(action.node)
        return ev.Isolated(self._clock.now(), action.key, action.node, how, detail, others, hazard, elsewhere)

    def _restart(self, action: act.Restart) -> ev.Event:
        handed = newest_handoff(self._orders.run)
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
            known=self._returned,
            unanswered=self._unanswered(action.key),
        )

        def answered(job_id: int) -> None:
            self._note(action.key, job_id)

        result = restart_job(self._slurm, request, sleep=self._sleep, clock=self._clock.now, on_submitted=answered)
        self._show_output(result.job_id)
        return ev.Restarted(self._clock.now(), action.key, result.job_id, result.restarts, result.how)

    def _sleep(self, seconds: float) -> None:
        """Pause. If the executor is to stop, end the action instead of shortening the pause."""
        if self._end.wait(seconds):
            raise _Stopped

    def _patch(self, action: act.Patch) -> ev.Event:
        """Change the job's exclusions while it is pending; once it runs, they count for the next start."""
        try:
            job = self._job(action.job_id)
            keep = [n for n in job.excluded if n not in action.drop]
            exclude = existing_nodes(self._slurm, tuple(dict.fromkeys((*keep, *action.exclude))))
            # Not compared with the job's number: of a pending job, Slurm shows a guess (1 after it was shrunk).
            fewer = action.num_nodes if action.num_nodes and job.state is not JobState.RUNNING else None
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
        """Let a requeued job start without Slurm's wait of two minutes, unless somebody holds it."""
        deadline = self._clock.now() + _LAST
        while self._clock.now() < deadline:
            job = self._job(job_id)
            if job.state is not JobState.PENDING or job.held:
                return False
            if not job.completing:
                self._sleep(SETTLE)
                with contextlib.suppress(SlurmRefused, SlurmDenied):  # it starts without, after Slurm's own delay
                    self._slurm.start_now(job_id)
                    return True
                return False
            self._sleep(1.0)
        return False


def _good(node: Node) -> bool:
    """Return whether Slurm can reach the node's slurmd. A drained node may be reachable."""
    return not node.not_responding and node.state in ("idle", "mixed", "allocated", "completing")
