"""The one place that picks real parts: which Slurm, which probe, which files, for which settings."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.core.policy import Rule
from transom_cli.core.quiet_shapes import QuietLimits
from transom_cli.core.state import Policy
from transom_cli.errors import TransomError, UsageError
from transom_cli.files import publish_text
from transom_cli.health.options import HealthOptions
from transom_cli.layout import RunDir
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.onecluster import WrongCluster, held_to, read_cluster_name, require_name
from transom_cli.slurm.port import Slurm, SlurmRefused, Submission
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.clock import Clock

if TYPE_CHECKING:
    from transom_cli.config.model import Settings, SlurmCalls
    from transom_cli.core.events import Event
    from transom_cli.health.finding import Finding
    from transom_cli.slurm.pyslurm.client import PySlurm
    from transom_cli.slurm.pyslurm.trial import Trial
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.hands import Hands
    from transom_cli.supervise.operator import Operator, Pace
    from transom_cli.supervise.slurmwatch import SlurmWatch
    from transom_cli.telling.ledger import Ledger
    from transom_cli.telling.meter import Meter
    from transom_cli.telling.notifier import Notifier
    from transom_cli.telling.senders import Send
    from transom_cli.telling.target import Target


def slurm_client(timeout: float = 30.0, cluster: str = "") -> Slurm:
    """For who asks a few times: a command starts sooner than pyslurm is imported."""
    return CliSlurm(Runner(timeout=timeout, cluster=cluster))


def slurm_of(run: RunDir, timeout: float = 30.0, lasting: SlurmCalls | None = None) -> Slurm:
    """The Slurm that has the run's job, and no other: each call raises WrongCluster where another one answers.

    lasting: for who asks all along. Another cluster than the one at hand is asked by Slurm's commands alone.
    """
    plan = Plan.load(run) if run.submission.exists() else Plan()  # a record alone may still be looked at
    if lasting is not None and not plan.asked_cluster:
        slurm = lasting_slurm(lasting)
    else:
        slurm = slurm_client(timeout, plan.asked_cluster)
    if not plan.cluster:  # of a run that was made before this was kept
        return slurm
    runner = Runner(timeout=timeout, cluster=plan.asked_cluster)
    return held_to(slurm, plan.cluster, lambda: read_cluster_name(runner))


def require_own_cluster(run: RunDir, timeout: float = 10.0) -> None:
    """WrongCluster where the Slurm that answers is another one than the run's. One that is silent may be either."""
    plan = Plan.load(run)
    if plan.cluster:
        try:
            require_name(plan.cluster, read_cluster_name(Runner(timeout=timeout, cluster=plan.asked_cluster)))
        except WrongCluster:
            raise
        except TransomError:
            return


def ask_as_submitted(run: RunDir) -> None:
    """Let this process ask Slurm for what the run's first submission asked for, whatever shell it was started in."""
    from transom_cli.submit.environment import as_frozen

    kept = Plan.load(run).sbatch
    if kept is not None:
        as_frozen(os.environ, dict(kept))


def require_slurm(settings: Settings) -> str:
    """The name of the cluster that would have the job, once it is clear that it answers and that a run can live there.

    The port's errors; UsageError for a federation.
    """
    from transom_cli.submit.clusters import refuse_federation

    name, timeout = settings.job.cluster or "", settings.slurm.timeout
    slurm_client(timeout, name).jobs()
    runner = Runner(timeout=timeout, cluster=name)
    with contextlib.suppress(SlurmRefused):  # a Slurm that will not tell of federations has none that matters here
        refuse_federation(runner.run(["scontrol", "show", "federation"]))
    return read_cluster_name(runner)


def lasting_slurm(asked: SlurmCalls) -> Slurm:
    """For who asks all along."""
    return _pyslurm(asked) or slurm_client(asked.timeout)


def _pyslurm(asked: SlurmCalls) -> PySlurm | None:
    """None where it is not wanted, or not installed. Whether it works shows at its first call."""
    from transom_cli.slurm.pyslurm.client import PySlurm

    if asked.backend == "cli":
        return None
    python = str(asked.pyslurm_python or (sys.executable if find_spec("pyslurm") else ""))
    return PySlurm(python, Runner(timeout=asked.timeout), any_release=asked.backend == "pyslurm") if python else None


def require_backend(asked: SlurmCalls) -> None:
    """Refuse a wish that could only be passed over, before anything is submitted."""
    if asked.backend == "pyslurm" and _pyslurm(asked) is None:
        raise UsageError(
            'slurm.backend = "pyslurm", and this Python has no pyslurm',
            f"it is not in {sys.executable}",
            "name a Python that has it (slurm.pyslurm_python), or leave it to slurm.backend = auto",
        )


def try_pyslurm(asked: SlurmCalls) -> Trial:
    """What the doctor tells: whether the operator would speak through pyslurm here, and what not."""
    from transom_cli.slurm.pyslurm.trial import Trial, try_out

    client = _pyslurm(asked)
    if client is None:
        return Trial(why_not="it is not wanted" if asked.backend == "cli" else "it is not in this Python")
    with contextlib.closing(client):
        return try_out(client)


def read_settings(run: RunDir) -> Settings:
    """What was asked for, as it was frozen at submission."""
    from transom_cli.config.load import thaw

    return thaw(_read(run, run.settings), str(run.settings))


def _read(run: RunDir, path: Path) -> str:
    """One of the files without which a run cannot be operated. Bytes of a user's script may be of any encoding."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        from transom_cli.submit.rundir import explain

        instead = f"end the run's job by hand (`scancel`; `transom status {run.run_id}` names it)"
        raise explain(error, path, doing="read", instead=instead) from error


def policy_of(settings: Settings) -> Policy:
    return Policy(
        max_without_progress=settings.restart.max_without_progress,
        backoff=settings.restart.backoff,
        release_held=settings.restart.release_held,
        drain=settings.isolate.drain,
        cap_nodes=settings.isolate.max_nodes,
        cap_fraction=settings.isolate.max_fraction,
        cap_window=settings.isolate.window,
        expiry=settings.isolate.expiry,
        rules=rules_of(settings),
    )


def rules_of(settings: Settings) -> tuple[Rule, ...]:
    """The policy's table, the same for operator and launcher."""
    return tuple(table.rule() for table in settings.policy.rules)


def health_options(settings: Settings) -> HealthOptions:
    from transom_cli.submit.render import interpreter

    asked = settings.health
    return HealthOptions(
        preflight=asked.preflight,
        budget=asked.budget,
        deep=asked.deep,
        deep_budget=asked.deep_budget,
        probe=asked.probe,
        python=interpreter(asked.python or settings.launch.python),
        watch=asked.watch,
        every=asked.every,
        off=asked.off,
        limits=tuple(sorted(asked.limits.items())),
        site_checks=str(asked.site_checks or ""),
    )


@dataclass(frozen=True)
class Plan:
    """How a run's job is submitted: what sbatch gets beside the script that stands in the run directory.

    asked_cluster: as `job.cluster`; "": the cluster that Slurm's commands speak to. cluster: by its controller's own
    word, when the run was made. sbatch: the SBATCH_* variables of whoever submitted; None: they were not kept then.
    """

    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    chdir: str = ""
    env: tuple[tuple[str, str], ...] = ()
    asked_cluster: str = ""
    cluster: str = ""
    sbatch: tuple[tuple[str, str], ...] | None = None

    def save(self, run: RunDir) -> None:
        data = {**asdict(self), "env": dict(self.env), "sbatch": None if self.sbatch is None else dict(self.sbatch)}
        publish_text(run.submission, json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, run: RunDir) -> Plan:
        text = _read(run, run.submission)
        try:
            data = json.loads(text)
            clusters = data.get("asked_cluster", ""), data.get("cluster", "")
            words = tuple(data["options"]), tuple(data["args"]), data["chdir"], tuple(data["env"].items())
            kept = data.get("sbatch")
            return cls(*words, *clusters, tuple(kept.items()) if kept is not None else None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TransomError(f"`{run.submission}` is damaged", f"{type(error).__name__}: {error}") from error

    def submission(self, run: RunDir) -> Submission:
        chdir = Path(self.chdir) if self.chdir else None
        return Submission(run.script, self.options, self.args, dict(self.env), chdir)


def checkpoints_of(run: RunDir, settings: Settings) -> Path:
    return settings.checkpoint.directory or run.checkpoints


def quiet_limits(settings: Settings) -> QuietLimits:
    return QuietLimits(**settings.detect.model_dump())


def operator_for(run: RunDir) -> Operator:
    """Take the run's lease and build its operator. OperatorAlive when another one lives."""
    from transom_cli.health.history.files import history_dir
    from transom_cli.health.reach import judge_reach, read_reach
    from transom_cli.submit.script import inspect_script
    from transom_cli.supervise.follow import Follower
    from transom_cli.supervise.handed import newest_handed
    from transom_cli.supervise.hands import Hands, Orders
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import Lease
    from transom_cli.supervise.nodebook import NodeBook
    from transom_cli.supervise.operator import Operator, Pace, Witness
    from transom_cli.supervise.slurmwatch import SlurmWatch
    from transom_cli.telling.ledger import Ledger

    settings = read_settings(run)
    slurm = slurm_of(run, settings.slurm.timeout, lasting=settings.slurm)
    script = inspect_script(_read(run, run.script))
    plan = Plan.load(run)
    submission = plan.submission(run)
    tasks = (script.ntasks_per_node or 1) if fold(run.journal).state.spares else 0
    resubmit = settings.restart.how == "resubmit"
    orders = Orders(
        run,
        submission,
        tuple(settings.isolate.drain_command),
        tasks,
        stay_held="hold" in script.lines,
        resubmit=resubmit,
        drain_spool=settings.isolate.drain_spool,
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
        watch = SlurmWatch(slurm, clock, inbox, pace, orders.tag, lambda: newest_handed(run))
        return follower, watch, Hands(orders, slurm, reach, clock, inbox)

    ledger = Ledger(run.told, lease.epoch)
    meter = meter_for(run, settings, ledger)
    book = NodeBook(run, history_dir(os.environ))
    witnesses: list[Witness] = [book, notifier_for(run, settings, ledger), *([meter] if meter is not None else [])]
    return Operator(run, lease, Clock, parts, Pace(settings.slurm.poll, settings.slurm.poll_max), witnesses)


def notifier_for(run: RunDir, settings: Settings, ledger: Ledger) -> Notifier:
    """What tells the targets of the settings."""
    from transom_cli.telling.courier import Courier
    from transom_cli.telling.notifier import Notifier
    from transom_cli.telling.words import About

    about, send, per_hour = (
        About(run.run_id, settings.name, str(run.path)),
        senders_of(settings),
        settings.notify.per_hour,
    )
    targets = [table.target() for table in settings.notify.targets]
    return Notifier([Courier(t, about, send(t), ledger, per_hour) for t in targets if t.events])


def secrets_of(settings: Settings) -> Path:
    """The file of URLs and tokens: as set, else beside the user's own settings."""
    from transom_cli.config.load import user_file

    return settings.notify.secrets or user_file(os.environ).parent / "secrets.toml"


def senders_of(settings: Settings) -> Callable[[Target], Send]:
    """How a target is told, with the secrets and within the time that the settings name."""
    from transom_cli.telling.senders import sender

    secrets = secrets_of(settings)
    return lambda target: sender(target, secrets, settings.notify.timeout)


def meter_for(run: RunDir, settings: Settings, ledger: Ledger) -> Meter | None:
    """What measures the run for Prometheus; None where nobody asked for it."""
    if not settings.metrics.wanted:
        return None
    from transom_cli.telling.meter import Gauging, Meter

    asked = settings.metrics
    about = Gauging(
        run, settings.name, checkpoints_of(run, settings), asked.textfile, asked.port, asked.address, asked.every
    )
    return Meter(about, ledger.counts)


def require_telling(settings: Settings) -> None:
    """Refuse, before anything is submitted, notifications and metrics that would only fail in the night."""
    from transom_cli.telling.ready import require_metrics, require_target

    secrets = secrets_of(settings)
    for table in settings.notify.targets:
        if table.events:
            require_target(table.target(), secrets)
    if settings.metrics.wanted:
        require_metrics(settings.metrics.textfile)


def runs_root(explicit: Path | None = None) -> Path:
    """Where run directories live: as asked, else as the settings' layers say."""
    from transom_cli.config import root

    return root.runs_root(explicit, os.environ)
