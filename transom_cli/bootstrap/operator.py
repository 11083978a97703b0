"""Build a run's operator with all its parts."""

from __future__ import annotations

import os
import queue
import time
from typing import TYPE_CHECKING

from transom_cli.bootstrap.notifications import meter_for, notifier_for
from transom_cli.bootstrap.slurm import operator_slurm
from transom_cli.config.run_settings import checkpoints_of, quiet_limits, read_run_file, read_settings
from transom_cli.layout import JOB_LOG, RunDir
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.operator.clock import Clock

if TYPE_CHECKING:
    from transom_cli.core.events import Event
    from transom_cli.health.finding import Finding
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.operator.executor import Around, Executor
    from transom_cli.supervise.operator.loop import Operator, Pace
    from transom_cli.supervise.operator.slurm_poller import SlurmPoller


def operator_for(run: RunDir) -> Operator:
    """Take the run's lease and build its operator. Raises OperatorAlive if another operator is alive."""
    from transom_cli.health.history.files import history_dir
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
    slurm = operator_slurm(run, settings.slurm)
    script = inspect_script(read_run_file(run, run.script))
    record = SubmissionRecord.load(run)
    submission = record.submission(run)
    past = fold(run.journal)
    tasks = (script.ntasks_per_node or 1) if past.state.request.spares else 0
    since = past.events[0].at if past.events else time.time()
    resubmit = settings.restart.how == "resubmit"
    orders = Orders(
        run,
        submission,
        tuple(settings.isolate.drain_command),
        tasks,
        stay_held="hold" in script.lines,
        resubmit=resubmit,
        drain_spool=settings.isolate.drain_spool,
        output_elsewhere=script.output != output_pattern(str(run.path), JOB_LOG),
        since=since,
    )
    limits = quiet_limits(settings)
    lease = Lease.take(run)

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
            )
        )

    def parts(clock: Clock, inbox: queue.SimpleQueue[Event], pace: Pace) -> tuple[Follower, SlurmPoller, Executor]:
        follower = Follower(run, checkpoints_of(run, settings), limits)
        if meter is not None:
            meter.watch(lambda: tuple(follower.tables.values()))
        forgotten = ForgottenJobs(run, slurm, clock, since)
        watch = SlurmPoller(slurm, clock, inbox, pace, orders.tag, lambda: newest_handoff(run), forgotten)
        return follower, watch, Executor(orders, slurm, reach, clock, inbox)

    ledger = DeliveryLog(run.told, lease.epoch)
    meter = meter_for(run, settings, ledger)
    node_history = NodeHistory(run, history_dir(os.environ), record.cluster)
    notifier = notifier_for(run, settings, ledger)
    watch = RunDirWatch(run, notifier.submit)
    observers: list[Observer] = [node_history, notifier, watch, *([meter] if meter is not None else [])]
    return Operator(run, lease, Clock, parts, Pace(settings.slurm.poll, settings.slurm.poll_max), observers)
