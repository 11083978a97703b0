"""Choose the Slurm client: commands or pyslurm, and which cluster; check what a run needs from it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from transom_cli.errors import TransomError, UsageError
from transom_cli.layout import RunDir
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.guards import CircuitBreaker, WrongCluster, pinned_to_cluster, require_name, with_circuit_breaker
from transom_cli.slurm.parse import parse_show_partitions
from transom_cli.slurm.port import BackendTrial, Node, Slurm, SlurmRefused
from transom_cli.slurm.runner import Runner, read_cluster_name
from transom_cli.slurm.shared import RunSlurm, SharedSlurm
from transom_cli.submit.capacity import with_hidden
from transom_cli.submit.submission import SubmissionRecord

if TYPE_CHECKING:
    from transom_cli.config.model import Settings, SlurmCalls
    from transom_cli.slurm.pyslurm.client import PySlurm


def slurm_client(timeout: float = 30.0, cluster: str = "") -> Slurm:
    """Return a client for a few calls: a command starts faster than pyslurm is imported."""
    return CliSlurm(Runner(timeout=timeout, cluster=cluster))


def cluster_name(requested: str = "", timeout: float = 10.0) -> str:
    """Return the controller's name for its cluster. Raises the port's errors. requested: as in `job.cluster`."""
    return read_cluster_name(Runner(timeout=timeout, cluster=requested))


def partitions(cluster: str = "") -> dict[str, tuple[str, ...]]:
    """Return each partition with its nodes; {} if Slurm does not answer. cluster: as in `job.cluster`."""
    with contextlib.suppress(TransomError):
        runner = Runner(timeout=10.0, cluster=cluster)
        return parse_show_partitions(runner.run(["scontrol", "show", "partition", "--all", "--oneliner"]))
    return {}


def known_nodes(inside: Mapping[str, Sequence[str]], timeout: float = 10.0, cluster: str = "") -> tuple[Node, ...]:
    """Return the cluster's nodes, with those that only their partitions name; () if Slurm does not answer.

    Args:
        inside: As `partitions` returns it.
    """
    with contextlib.suppress(TransomError):
        return with_hidden(slurm_client(timeout, cluster).nodes(), inside)
    return ()


def run_slurm(run: RunDir, timeout: float = 30.0) -> Slurm:
    """Return a client for the cluster that has the run's job. Each call raises WrongCluster if another one answers."""
    # a journal without a submission record can still be viewed
    record = SubmissionRecord.load(run) if run.submission.exists() else SubmissionRecord()
    slurm = slurm_client(timeout, record.requested_cluster)
    if not record.cluster:
        return slurm
    runner = Runner(timeout=timeout, cluster=record.requested_cluster)
    return pinned_to_cluster(slurm, record.cluster, lambda: read_cluster_name(runner))


_ADDRESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "PATH", "LD_LIBRARY_PATH")
"""Variables that decide which Slurm a command reaches."""


class SlurmClients:
    """The clients of an operator process: runs on the same cluster share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[tuple[object, ...], SharedSlurm] = {}

    def of(self, record: SubmissionRecord, settings: SlurmCalls, environ: Mapping[str, str]) -> SharedSlurm:
        """Return the client for a run with this submission record and environment."""
        cluster = record.requested_cluster
        reached = (environ.get(name) for name in _ADDRESS)
        key = (cluster, settings.timeout, settings.backend, settings.pyslurm_python, *reached)
        with self._lock:
            if key not in self._shared:
                runner = Runner(timeout=settings.timeout, cluster=cluster, env=environ)
                slurm = CliSlurm(runner) if cluster else long_lived_slurm(settings, environ)
                self._shared[key] = SharedSlurm(slurm, lambda: read_cluster_name(runner))
            return self._shared[key]


def operator_slurm(record: SubmissionRecord, shared: SharedSlurm, own: Runner) -> Slurm:
    """Return a run's client for its operator: each call raises WrongCluster if another cluster answers.

    It may use pyslurm, but only for the default cluster; other clusters are reached through Slurm's commands. All runs
    share the circuit breaker.

    Args:
        own: submits the run's jobs, from its own environment.
    """
    slurm = cast(Slurm, RunSlurm(shared, CliSlurm(own)))
    if record.cluster:
        slurm = pinned_to_cluster(slurm, record.cluster, shared.cluster_name)
    return with_circuit_breaker(slurm, shared.breaker)


@cache
def _launcher_breaker() -> CircuitBreaker:
    return CircuitBreaker(time.monotonic)


def launcher_slurm(timeout: float = 30.0) -> Slurm:
    """Return a client for the launcher, inside the job. All clients of this process share one circuit breaker."""
    return with_circuit_breaker(slurm_client(timeout), _launcher_breaker())


def require_own_cluster(run: RunDir, timeout: float = 10.0) -> None:
    """Raise WrongCluster if the Slurm that answers is not the run's. No answer is accepted: it may be either."""
    record = SubmissionRecord.load(run)
    if record.cluster:
        try:
            require_name(record.cluster, cluster_name(record.requested_cluster, timeout))
        except WrongCluster:
            raise
        except TransomError:
            return


def require_slurm(settings: Settings) -> str:
    """Check that the cluster for the job answers and supports a run; return its name.

    Raises the port's errors, and UsageError for a federation.
    """
    from transom_cli.submit.unsupported import refuse_federation

    name, timeout = settings.job.cluster or "", settings.slurm.timeout
    slurm_client(timeout, name).jobs()
    runner = Runner(timeout=timeout, cluster=name)
    with contextlib.suppress(SlurmRefused):  # a Slurm that rejects the question has no federation
        refuse_federation(runner.run(["scontrol", "show", "federation"]))
    return read_cluster_name(runner)


def long_lived_slurm(settings: SlurmCalls, environ: Mapping[str, str] | None = None) -> Slurm:
    """Return a client for a process that calls Slurm throughout a run."""
    return _pyslurm(settings, environ) or CliSlurm(Runner(timeout=settings.timeout, env=environ))


def _pyslurm(settings: SlurmCalls, environ: Mapping[str, str] | None = None) -> PySlurm | None:
    """Return None if pyslurm is not requested or not installed. The first call shows whether it works."""
    from transom_cli.slurm.pyslurm.client import PySlurm

    if settings.backend == "cli":
        return None
    python = str(settings.pyslurm_python or (sys.executable if find_spec("pyslurm") else ""))
    runner = Runner(timeout=settings.timeout, env=environ)
    return PySlurm(python, runner, any_release=settings.backend == "pyslurm") if python else None


def require_backend(settings: SlurmCalls) -> None:
    """Raise UsageError, before anything is submitted, if pyslurm is required and does not work."""
    if settings.backend != "pyslurm":
        return
    client, why = _pyslurm(settings), f"it is not installed for {sys.executable}"
    if client is not None:
        with contextlib.closing(client):
            try:
                client.versions()
                return
            except TransomError as error:
                why = f"tried with {settings.pyslurm_python or sys.executable}: {error.why or error.what}"
    raise UsageError(
        'slurm.backend = "pyslurm", but pyslurm does not work here',
        why,
        "set slurm.pyslurm_python to a Python that has it, or set slurm.backend = auto",
    )


def try_pyslurm(settings: SlurmCalls) -> BackendTrial:
    """Report for `transom doctor` whether the operator would use pyslurm on this host, and if not, why."""
    from transom_cli.slurm.pyslurm.client import try_out

    if settings.backend == "pyslurm":
        wish = 'slurm.backend = "pyslurm"'
    else:
        wish = f"slurm.pyslurm_python = {settings.pyslurm_python}" if settings.pyslurm_python else ""
    client = _pyslurm(settings)
    if client is None and settings.backend == "cli":
        return BackendTrial(why_not='slurm.backend = "cli"')
    if client is None:
        return BackendTrial(why_not="it is not installed for this Python", wish=wish)
    with contextlib.closing(client):
        return replace(try_out(client), wish=wish)
