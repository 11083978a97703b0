"""How the ranks of a launch find their node's snapshot daemon, and how the nodes' daemons find one another."""

import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.names import MEMORY
from transom_cli.ckpt.snapshot.client import agents_path, own_path, reach, reach_or_start
from transom_cli.ckpt.snapshot.daemon import in_process
from transom_cli.heartbeat import paths
from transom_cli.layout import RunDir
from transom_cli.rpc import secret
from transom_cli.rpc.errors import RpcError, Unreachable
from transom_cli.rpc.local import Client

AGENT = 15.0  # seconds for the daemon of the node's agent to start
_TRIES = 5  # daemons that end while they are greeted
_GREET = 10.0  # seconds for a daemon to answer


@dataclass(frozen=True)
class DaemonAddress:
    """``daemon``: its unique ID. ``agents``: the node's agent keeps it running. ``path``: its socket, "" if it is in
    this process. ``trouble``: why it is in this process."""

    node: str
    daemon: str
    agents: bool
    path: str
    trouble: str = ""

    def connect(self, *, afresh: bool = False) -> Client:
        """Raises Unreachable. ``afresh``: the former daemon is gone, so wait for the next one."""
        if not self.path:
            return in_process()
        if not self.agents:
            return reach_or_start(self.path)
        try:
            return reach(self.path, AGENT if afresh else 0.0)
        except Unreachable:
            return reach_or_start(self.path)


def find_daemon(directory: Path, token: str) -> DaemonAddress:
    """Find this node's daemon or start one. If neither is possible, use one in this process. token: the directory's."""
    node, folder = paths.node_name(), os.environ.get(paths.BEAT_DIR)
    agents = os.environ.get(paths.MEMORY) == paths.AGENTS
    why = ""
    try:
        found = DaemonAddress(node, "", agents, agents_path(folder) if folder else own_path(directory, token))
        for _ in range(_TRIES):
            with contextlib.closing(found.connect(afresh=True)) as client:
                try:
                    return replace(found, daemon=_id(client))
                except RpcError as error:  # it is just ending
                    why = f"{error.what} ({error.why})"
                    if isinstance(error.__cause__, TimeoutError):  # it is stopped, and keeps others from starting
                        break
    except (RpcError, OSError) as error:
        why = f"{error.what} ({error.why})" if isinstance(error, RpcError) else str(error)
    with contextlib.closing(in_process()) as client:
        return DaemonAddress(node, _id(client), False, "", why)


def _id(client: Client) -> str:
    return str(client.call("hello", timeout=_GREET)[0]["id"])


def names(daemons: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each (node, daemon): the node alone if it has a single daemon."""
    of_node: dict[str, set[str]] = {}
    for node, daemon in daemons:
        of_node.setdefault(node, set()).add(daemon)
    return [node if len(of_node[node]) == 1 else f"{node}#{daemon}" for node, daemon in daemons]


def token(directory: Path) -> str:
    """Return what distinguishes this directory from an earlier one of the same name. Raises OSError."""
    path = directory / MEMORY
    try:
        return path.read_text("ascii")[:64]
    except FileNotFoundError:
        pass
    made = secrets.token_hex(16)
    files.write_new(path, made.encode("ascii"))
    return made


def launch_key(launch: str) -> str:
    """Return the secret of a launch's daemons, in hex. launch: a random name of the launch.

    It is derived from the run's secret, which each rank reads from the run directory: nothing protects what ranks send
    over torch's process groups. Outside a run there is no such secret. Raises TransomError.
    """
    run = os.environ.get(paths.RUN_DIR)
    path = RunDir(Path(run)).secret if run else None
    known = secret.read(path) if path is not None and path.exists() else b""
    return hmac.digest(known, f"snapshot daemons {launch}".encode(), "sha256").hex()


def own_address() -> str:
    """Return the address by which other nodes reach this one: the one on the route to rank 0."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
