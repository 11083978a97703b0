"""Nodes that see a shared folder late, each by itself, as clients of a network file system do: see `stale_view`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.daemons import NFS
from transom_cli.sandbox.fault_nodes import kill_node, restore_node
from transom_cli.sandbox.fault_shared import check_fuse
from transom_cli.sandbox.state import State


def late_files(sb: Sandbox, where: Path, seconds: float, *, nfs: bool = False) -> None:
    """From now on every node has a view of its own of this folder: what others change there it sees so much later.

    What its own processes change they see at once, and with ``nfs`` what a client of NFS asks its server anew. Until
    `fresh_files`, also for a node that dies and comes back. The nodes' slurmds are started anew for it, so no job may
    be there. Raises NotPermitted where it cannot be done.
    """
    where = where.expanduser().absolute()
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise NotPermitted(
            f"Cannot show {where} late", "it takes root, and unshare (of util-linux), to mount for a node"
        )
    check_fuse(where)
    _check_idle(sb)
    where.mkdir(parents=True, exist_ok=True)
    sb.change(lambda known: known.late.update({str(where): f"{NFS if nfs else ''}{seconds:g}"}))
    _start_again(sb)


def fresh_files(sb: Sandbox, where: Path) -> None:
    """Undo `late_files`."""
    where = where.expanduser().absolute()
    if str(where) not in sb.late():
        raise UsageError(f"The nodes do not see {where} late", f"those are: {', '.join(sb.late()) or 'none'}")
    _check_idle(sb)

    def forget(known: State) -> None:
        del known.late[str(where)]

    sb.change(forget)
    _start_again(sb)


def _check_idle(sb: Sandbox) -> None:
    jobs = sb.slurm("squeue", "-h", "-a", "-o", "%A").split()
    if jobs:
        raise UsageError(
            "The nodes have jobs, and would lose them", f"job {', '.join(jobs)}", "transom sandbox fault heal"
        )


def _start_again(sb: Sandbox) -> None:
    for node in sb.node_names:
        kill_node(sb, node)
    for node in sb.node_names:
        restore_node(sb, node)
