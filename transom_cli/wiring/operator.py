"""A run's operator, with all its parts."""

from __future__ import annotations

import os
import queue
import time
from typing import TYPE_CHECKING

from transom_cli.layout import JOB_LOG, RunDir
from transom_cli.supervise.operator.clock import Clock
from transom_cli.wiring.plan import Plan
from transom_cli.wiring.settings import checkpoints_of, quiet_limits, read_kept, read_settings
from transom_cli.wiring.slurm import patient_slurm_of
from transom_cli.wiring.telling import meter_for, notifier_for

if TYPE_CHECKING:
    from transom_cli.core.events import Event
    from transom_cli.health.finding import Finding
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.operator.hands import Hands
    from transom_cli.supervise.operator.loop import Operator, Pace
    from transom_cli.supervise.operator.slurmwatch import SlurmWatch


def operator_for(run: RunDir) -> Operator:
    """Take the run's lease and build its operator. OperatorAlive when another one lives."""
    from transom_cli.health.history.files import history_dir
    from transom_cli.health.reach import judge_reach, read_reach
    from transom_cli.submit.quoting import output_pattern
    from transom_cli.submit.script import inspect_script
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.handed import newest_handed
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import Lease
    from transom_cli.supervise.operator.filewatch import FileWatch
    from transom_cli.supervise.operator.forgotten import Forgotten
    from transom_cli.supervise.operator.hands import Hands, Orders
    from transom_cli.supervise.operator.loop import Operator, Pace, Witness
    from transom_cli.supervise.operator.nodebook import NodeBook
    from transom_cli.supervise.operator.slurmwatch import SlurmWatch
    from transom_cli.telling.ledger import Ledger

    settings = read_settings(run)
    slurm = patient_slurm_of(run, settings.slurm)
    script = inspect_script(read_kept(run, run.script))
    plan = Plan.load(run)
    submission = plan.submission(run)
    past = fold(run.journal)
    tasks = (script.ntasks_per_node or 1) if past.state.spares else 0
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

    def reach(node: str, address: str, port: int, job_id: int | None) -> Finding:
        own = None if plan.asked_cluster else job_id  # no step is started in another cluster's job from here
        return judge_reach(read_reach(node, address, port, own))

    def parts(clock: Clock, inbox: queue.SimpleQueue[Event], pace: Pace) -> tuple[Follower, SlurmWatch, Hands]:
        follower = Follower(run, checkpoints_of(run, settings), limits)
        if meter is not None:
            meter.watch(lambda: tuple(follower.tables.values()))
        forgotten = Forgotten(run, slurm, clock, since)
        watch = SlurmWatch(slurm, clock, inbox, pace, orders.tag, lambda: newest_handed(run), forgotten)
        return follower, watch, Hands(orders, slurm, reach, clock, inbox)

    ledger = Ledger(run.told, lease.epoch)
    meter = meter_for(run, settings, ledger)
    book = NodeBook(run, history_dir(os.environ), plan.cluster)
    notifier = notifier_for(run, settings, ledger)
    witnesses: list[Witness] = [book, notifier, FileWatch(run, notifier.tell), *([meter] if meter is not None else [])]
    return Operator(run, lease, Clock, parts, Pace(settings.slurm.poll, settings.slurm.poll_max), witnesses)
