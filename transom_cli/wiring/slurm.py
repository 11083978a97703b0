"""Which Slurm: the commands or pyslurm, of which cluster; and what a run needs of it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from transom_cli.errors import TransomError, UsageError
from transom_cli.layout import RunDir
from transom_cli.slurm.breaker import Breaker, patient
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.onecluster import WrongCluster, held_to, read_cluster_name, require_name
from transom_cli.slurm.port import Slurm, SlurmRefused
from transom_cli.slurm.runner import Runner
from transom_cli.wiring.plan import Plan

if TYPE_CHECKING:
    from transom_cli.config.model import Settings, SlurmCalls
    from transom_cli.slurm.pyslurm.client import PySlurm
    from transom_cli.slurm.pyslurm.trial import Trial


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


def patient_slurm_of(run: RunDir, asked: SlurmCalls) -> Slurm:
    """`slurm_of` for the operator: whatever its parts want, one that does not answer is asked a few times a minute."""
    return patient(slurm_of(run, asked.timeout, lasting=asked), Breaker(time.monotonic))


@cache
def _launchers_breaker() -> Breaker:
    return Breaker(time.monotonic)


def launcher_slurm(timeout: float = 30.0) -> Slurm:
    """For the launcher, from inside the job: likewise for all that this process asks."""
    return patient(slurm_client(timeout), _launchers_breaker())


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
    if asked.backend != "pyslurm":
        return
    client, why = _pyslurm(asked), f"it is not in {sys.executable}"
    if client is not None:
        with contextlib.closing(client):
            try:
                client.versions()
                return
            except TransomError as error:
                why = f"asked was {asked.pyslurm_python or sys.executable}: {error.why or error.what}"
    raise UsageError(
        'slurm.backend = "pyslurm", and pyslurm does not work here',
        why,
        "name a Python that has it (slurm.pyslurm_python), or leave it to slurm.backend = auto",
    )


def try_pyslurm(asked: SlurmCalls) -> Trial:
    """What the doctor tells: whether the operator would speak through pyslurm here, and what not."""
    from transom_cli.slurm.pyslurm.trial import Trial, try_out

    if asked.backend == "pyslurm":
        wish = 'slurm.backend = "pyslurm"'
    else:
        wish = f"slurm.pyslurm_python = {asked.pyslurm_python}" if asked.pyslurm_python else ""
    client = _pyslurm(asked)
    if client is None:
        not_here = "it is not in this Python"
        return Trial(why_not='slurm.backend = "cli"') if asked.backend == "cli" else Trial(why_not=not_here, wish=wish)
    with contextlib.closing(client):
        return replace(try_out(client), wish=wish)
