"""Any adapter, held to the one cluster that took a run's job: job ids of two controllers are the same numbers.

A login node may be given another slurm.conf, a cluster another name, a run may be attached from somewhere else. Until
the controller has said that it is the right one nothing is asked of it; then nothing is known, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from transom_cli.slurm.port import Slurm, SlurmUnknown
from transom_cli.slurm.runner import Runner


class WrongCluster(SlurmUnknown):
    """The Slurm here is not the one that has the run's job."""

    kind = "wrong_cluster"


def read_cluster_name(runner: Runner) -> str:
    """The ClusterName of the controller that answers; "" where its answer has none. The port's errors."""
    text = runner.run(["scontrol", "show", "config"])
    rows = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in rows if name.strip() == "ClusterName"), "")


def require_name(name: str, told: str) -> None:
    """WrongCluster unless the controller's name for its cluster is that of the run's."""
    if told != name:
        raise WrongCluster(
            "The Slurm here is not the one that has this run's job",
            f"the job was submitted to cluster `{name}`, and this is `{told or 'one without a name'}`",
            f"attach where Slurm's commands speak to `{name}`: scontrol show config | grep ClusterName\n"
            "where that one was renamed: end the job by scancel; a new run goes on from its checkpoints: docs/sites.md",
        )


def held_to(slurm: Slurm, name: str, ask: Callable[[], str]) -> Slurm:
    """`slurm`, each call of which raises WrongCluster unless `ask()`, the controller's name for its cluster, is `name`.

    It is asked before the first call, and again after one that was not answered: only a controller that was gone can
    come back as another one.
    """
    return cast(Slurm, _OneCluster(slurm, name, ask))


class _OneCluster:
    def __init__(self, slurm: Slurm, name: str, ask: Callable[[], str]) -> None:
        self._slurm, self._name, self._ask = slurm, name, ask
        self._sure = False

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._slurm, method)

        def checked(*args: Any, **options: Any) -> Any:
            self._require()
            try:
                return call(*args, **options)
            except SlurmUnknown:
                self._sure = False
                raise

        return checked

    def _require(self) -> None:
        if self._sure:
            return
        require_name(self._name, self._ask())
        self._sure = True
