"""Build a run's operator with all its parts."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, cast

from transom_cli.bootstrap.notifications import meter_for, notifier_for
from transom_cli.bootstrap.slurm import SlurmClients, operator_slurm
from transom_cli.config.run_settings import cancel_by_hand, checkpoints_of, read_run_file, read_settings, stall_limits
from transom_cli.layout import JOB_LOG, RunDir
from transom_cli.slurm.runner import Runner
from transom_cli.submit.rundir import path_error
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.registry import Shell

if TYPE_CHECKING:
    from transom_cli.config.model import SlurmCalls
    from transom_cli.core.events import Event
    from transom_cli.core.operator.cadence import Cadence
    from transom_cli.health.finding import Finding
    from transom_cli.slurm.shared import RunSlurm
    from transom_cli.supervise.answering import Folders
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.operator.executor import Around, Executor
    from transom_cli.supervise.operator.loop import Operator, Pace
    from transom_cli.supervise.operator.process import OperatorProcess, Service
    from transom_cli.supervise.operator.registry import Registry
    from transom_cli.supervise.operator.slurm_poller import SlurmPoller


def cadence_of(calls: SlurmCalls) -> Cadence:
    """Return how often the job is polled. Without a launcher, Slurm alone reports the end of a job."""
    from transom_cli.core.operator.cadence import Cadence

    return Cadence(calls.poll, min(Cadence.blind, calls.poll_max), calls.poll_max, calls.poll_held)


def operator_for(
    run: RunDir, shell: Shell | None = None, clients: SlurmClients | None = None, folders: Folders | None = None
) -> Operator:
    """Take the run's lease and build its operator. Raises OperatorAlive if another operator is alive.

    Args:
        shell: its jobs are submitted as from there; None: as from this process.
        clients, folders: what the runs of a process share; None: this run is alone.
    """
    from transom_cli.health.history.files import history_dir
    from transom_cli.health.history.shared import read_others
    from transom_cli.health.reach import StepTimes, judge_reach, read_reach
    from transom_cli.notify.delivery import DeliveryLog
    from transom_cli.submit.render import output_pattern
    from transom_cli.submit.script import inspect_script
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.handoff_record import newest_handoff
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import Lease
    from transom_cli.supervise.operator.executor import Executor, Orders
    from transom_cli.supervise.operator.loop import Observer, Operator, Pace
    from transom_cli.supervise.operator.node_history import NodeHistory
    from transom_cli.supervise.operator.run_dir_watch import RunDirWatch
    from transom_cli.supervise.operator.slurm_poller import ForgottenJobs, SlurmPoller

    settings = read_settings(run)
    script = inspect_script(read_run_file(run, run.script))
    record = SubmissionRecord.load(run)
    shell, clients = shell or Shell(dict(os.environ)), clients or SlurmClients()
    shared = clients.of(record, settings.slurm, shell.environ)
    runner = Runner(
        timeout=settings.slurm.timeout, cluster=record.requested_cluster, env=shell.environ, umask=shell.umask
    )
    slurm = operator_slurm(record, shared, runner)
    submission = record.submission(run)
    past = fold(run.journal)
    tasks = (script.ntasks_per_node or 1) if past.state.request.least < past.state.request.num_nodes else 0
    since = past.times.begun or time.time()
    resubmit, shared_history = settings.restart.how == "resubmit", settings.isolate.shared_history
    orders = Orders(
        run,
        submission,
        tuple(settings.isolate.drain_command),
        tasks,
        stay_held="hold" in script.lines,
        resubmit=resubmit,
        drain_spool=settings.isolate.drain_spool,
        output_elsewhere=bool(record.observed) or script.output != output_pattern(str(run.path), JOB_LOG),
        since=since,
        observe=past.state.policy.observe,
        observed=record.observed,
        others=partial(read_others, shared_history, record.cluster) if shared_history is not None else lambda node: (),
        history=lambda node: node_history.of(node),  # it begins with the lease
    )
    limits = stall_limits(settings)
    times = StepTimes()

    def reach(node: str, address: str, port: int, job_id: int | None, around: Around) -> Finding:
        own = None if record.requested_cluster else job_id  # this host cannot start a step in a job of another cluster
        return judge_reach(
            read_reach(
                node,
                address,
                port,
                own,
                times=times,
                peers=around.peers,
                slurm_says=around.slurm,
                another_says=around.launcher,
                ask_peers=True,
                runner=Runner(env=shell.environ),
            )
        )

    def parts(clock: Clock, inbox: queue.SimpleQueue[Event], pace: Pace) -> tuple[Follower, SlurmPoller, Executor]:
        # a user's own script, or job, may start no launcher
        launcher_within = None if record.env or record.observed else limits.first_step
        follower = Follower(run, checkpoints_of(run, settings), limits, launcher_within)
        if meter is not None:
            meter.watch(lambda: tuple(follower.tables.values()))
        forgotten = ForgottenJobs(run, slurm, clock, since)
        ask = cast("RunSlurm", slurm).ask
        handed = partial(newest_handoff, run)
        watch = SlurmPoller(slurm, clock, inbox, pace, orders.tag, handed, forgotten, ask, shared.count)
        return follower, watch, Executor(orders, slurm, reach, clock, inbox)

    try:
        lease = Lease.take(run, past.state.epoch)
    except OSError as error:
        raise path_error(error, run.lease, doing="write the lease", instead=cancel_by_hand(run)) from error
    try:
        ledger = DeliveryLog(run.notified, lease.epoch)
        meter = meter_for(run, settings, ledger)
        node_history = NodeHistory(run, history_dir(os.environ), record.cluster, shared_history)
        notifier = notifier_for(run, settings, ledger)
        watch = RunDirWatch(run, notifier.submit, folders=folders)
        observers: list[Observer] = [node_history, notifier, watch, *([meter] if meter is not None else [])]
        return Operator(run, lease, Clock, parts, Pace(cadence_of(settings.slurm), rest=shared.rest), observers)
    except BaseException:
        lease.give_up()
        raise


_LATER = (
    *(f"health.{name}" for name in ("history.files", "reach")),
    *(f"notify.{name}" for name in ("checks", "delivery", "exporter", "messages", "senders")),
    *(f"slurm.{name}" for name in ("pyslurm.client",)),
    *(f"submit.{name}" for name in ("render", "script", "submission", "unsupported")),
    *(f"supervise.{name}" for name in ("answering", "follow", "handoff_record", "journal", "lease")),
    *(f"supervise.operator.{name}" for name in ("executor", "loop", "node_history", "process", "request_socket")),
    *(f"supervise.operator.{name}" for name in ("run_dir_watch", "slurm_poller")),
    *(
        "bootstrap.notifications",
        "ckpt.seal",
        "config.load",
        "config.sources",
        "core.operator.cadence",
        "diagnose.logs.rule_files",
    ),
)
"""Modules that an operator needs only for some runs or faults; none needs an extra."""


def import_ahead() -> None:
    """Import what an operator may need weeks later, when an upgrade may have replaced the files."""
    for name in _LATER:
        import_module(f"transom_cli.{name}")


def operator_process(
    registry: Registry,
    check: Callable[[RunDir], None],
    find_lost: Callable[[], None] | None = None,
    *,
    idle_exit: bool = False,
) -> OperatorProcess:
    """Build the process that operates all runs of a registry. The other arguments: as in `OperatorProcess`."""
    from transom_cli.supervise.answering import Folders
    from transom_cli.supervise.operator.process import OperatorProcess

    import_ahead()
    clients, folders = SlurmClients(), Folders()

    def build(run: RunDir, shell: Shell) -> Operator:
        return operator_for(run, shell, clients, folders)

    return OperatorProcess(registry, build, check, services(), find_lost, idle_exit=idle_exit)


def services() -> list[Service]:
    """Return what an operator process offers for its runs."""
    from transom_cli.supervise.operator.request_socket import RequestSocket

    return [RequestSocket()]
