"""Where the ranks of a launch find their node's memory holder, and how the nodes' holders find one another."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.names import MEMORY
from transom_cli.ckpt.snapshot.client import Client, agents_path, own_path, reach, reach_or_start
from transom_cli.ckpt.snapshot.holder import within
from transom_cli.ckpt.snapshot.messages import HolderGone
from transom_cli.heartbeat import paths

AGENT = 15.0  # seconds for the holder of the node's agent to come up
_TRIES = 5  # holders that end while they are greeted


@dataclass(frozen=True)
class Meeting:
    """`node`: its name. `holder`: no other has it. `agents`: the node's agent sees to it that there is one. `path`: of
    its socket, "" when it is in this process. `trouble`: why it is."""

    node: str
    holder: str
    agents: bool
    path: str
    trouble: str = ""

    def connect(self, *, afresh: bool = False) -> Client:
        """`afresh`: the one there was is gone. Raises HolderGone."""
        if not self.path:
            return within()
        if not self.agents:
            return reach_or_start(self.path)
        try:
            return reach(self.path, AGENT if afresh else 0.0)
        except HolderGone:
            return reach_or_start(self.path)


def meet(directory: Path) -> Meeting:
    """Find this node's holder, or start one; where neither can be, there is one in this process."""
    node, folder = paths.node_name(), os.environ.get(paths.BEAT_DIR)
    agents = os.environ.get(paths.MEMORY) == paths.AGENTS
    why = ""
    try:
        found = Meeting(node, "", agents, agents_path(folder) if folder else own_path(directory))
        for _ in range(_TRIES):
            with contextlib.closing(found.connect(afresh=True)) as line:
                try:
                    return replace(found, holder=_id(line))
                except HolderGone as error:  # one that is just ending
                    why = f"{error.what} ({error.why})"
    except (HolderGone, OSError) as error:
        why = f"{error.what} ({error.why})" if isinstance(error, HolderGone) else str(error)
    with contextlib.closing(within()) as line:
        return Meeting(node, _id(line), False, "", why)


def _id(line: Client) -> str:
    return str(line.ask("hello")[0]["id"])


def names(holders: Sequence[tuple[str, str]]) -> list[str]:
    """For each (node, holder) how the others call it: by the node alone, where it has a single one."""
    of_node: dict[str, set[str]] = {}
    for node, holder in holders:
        of_node.setdefault(node, set()).add(holder)
    return [node if len(of_node[node]) == 1 else f"{node}#{holder}" for node, holder in holders]


def token(directory: Path) -> str:
    """What tells this directory from another that had its name: snapshots of that one are none of this one's.

    Raises OSError.
    """
    path = directory / MEMORY
    try:
        return path.read_text("ascii")[:64]
    except FileNotFoundError:
        pass
    made = secrets.token_hex(16)
    files.write_new(path, made.encode("ascii"))
    return made


def own_address() -> str:
    """By which the other nodes reach this one: that of the way to rank 0's."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
