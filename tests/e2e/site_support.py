"""A cluster as sites have them: a tree of switches, and accounting with limits that are held to."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_support import release_home, require_slurm

from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

ACCOUNT, QOS = "lab", "small"


@contextmanager
def site(folder: Path) -> Iterator[Sandbox]:
    """Five nodes, node[1-2] on one switch and node[3-5] on the other; the user may use ACCOUNT with QOS."""
    require_slurm(accounting=True)
    extra = {"AccountingStorageEnforce": "limits,qos"}
    cluster = Sandbox.up(SandboxSpec(folder, 5, 2, accounting=True, extra=extra, home=release_home(), switches=2))
    try:
        manage(cluster, "add", "qos", QOS)
        manage(cluster, "add", "account", ACCOUNT, f"cluster={cluster.cluster}")
        manage(cluster, "add", "user", getpass.getuser(), f"account={ACCOUNT}", f"qos=normal,{QOS}")
        yield cluster
    finally:
        cluster.down()


def manage(cluster: Sandbox, *words: str) -> None:
    """As the accounting's administrator."""
    print(cluster.slurm("sacctmgr", "-i", *words), file=sys.stderr)


def admin(cluster: Sandbox, *words: str) -> None:
    """As the cluster's administrator: `scontrol`."""
    cluster.slurm("scontrol", *words)
