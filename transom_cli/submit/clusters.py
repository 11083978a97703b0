"""Which of several clusters a job goes to, as sbatch would find it; and which clusters a run cannot live on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from transom_cli.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def one_cluster(asked: str, source: str) -> str:
    """The name, if it is one cluster's. UsageError: sbatch would choose among several, and a run has one job."""
    if _NAME.fullmatch(asked) and asked.lower() != "all":
        return asked
    raise UsageError(
        "A run lives on one cluster",
        f"{source} asks for `{asked}`",
        "name one: `transom run --clusters NAME ...`; `sacctmgr show clusters` lists them",
    )


def cluster_of(setting: str | None, script: str | None, line: int, environ: Mapping[str, str]) -> str:
    """The cluster's name, or "" for the one that Slurm's commands speak to anyway.

    setting: `job.cluster`. script: what the user's own script says on that line; a variable of sbatch's own overrides
    it, and both of them a setting.
    """
    by_script = script is not None
    found = [
        (environ.get("SBATCH_CLUSTERS") if by_script else None, "SBATCH_CLUSTERS"),
        (script, f"line {line} of the script"),
        (setting, "`job.cluster`"),
        (environ.get("SBATCH_CLUSTERS"), "SBATCH_CLUSTERS"),
        (environ.get("SLURM_CLUSTERS"), "SLURM_CLUSTERS"),
    ]
    return next((one_cluster(asked, source) for asked, source in found if asked), "")


def refuse_federation(shown: str) -> None:
    """shown: what `scontrol show federation` printed."""
    name = re.match(r"\s*Federation:\s*(\S+)", shown)
    if name:
        raise UsageError(
            f"This cluster is part of a federation, `{name[1]}`",
            "a job of a federation may start, and be requeued, on any of its clusters, where transom sees no node",
            "submit on a cluster outside of it; `scontrol show federation` lists its clusters",
        )
