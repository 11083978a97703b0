"""Start one daemon of a sandbox and learn its pid; tell from its log why it did not start."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.sandbox import procs
from transom_cli.sandbox.belonging import MARK, MARK_NODE
from transom_cli.sandbox.conf import Ports
from transom_cli.sandbox.procs import Ident
from transom_cli.sandbox.tools import search_path

# below the kernel's usual range for outgoing connections (32768-60999), so that none of those takes a port first
_PORTS = range(20000, 32000)
_START_TIMEOUT_S = 15.0
NFS = "nfs="  # before the seconds of a view that is asked anew where one of NFS is


def daemon_env(where: Path, cluster: str, node: str = "", first: str = "") -> dict[str, str]:
    """A daemon's whole environment: nothing of the caller's but its home, and our mark. ``first`` leads its PATH."""
    env = {
        "PATH": search_path(first),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(where / "slurm.conf"),
        MARK: cluster,
    }
    return {**env, MARK_NODE: node} if node else env


def late_view(late: Mapping[str, str], log: Path) -> list[str]:
    """What goes before a node's slurmd so that it and its jobs see these folders late, and how: see `stale_view`."""
    view = [sys.executable, "-m", "transom_cli.sandbox.stale_view"]
    return [word for folder, how in late.items() for word in (*view, how, folder, str(log))]


def free_ports(nodes: int) -> Ports:
    """A block of ports that nobody listens on now."""
    count = nodes + 3
    for _ in range(100):
        first = secrets.choice(range(_PORTS.start, _PORTS.stop - count))
        if all(port_is_free(port) for port in range(first, first + count)):
            return Ports(controller=first, database=first + 1, dbd=first + 2, nodes=first + 3)
    raise TransomError(f"No {count} free TCP ports in a row between {_PORTS.start} and {_PORTS.stop}", hint="ss -ltn")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm's own daemons do
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def start_daemon(
    name: str, argv: Sequence[str], *, env: dict[str, str], cwd: Path, pid_file: Path, log: Path,
    port: int | None = None,
) -> Ident:  # fmt: skip
    """Start a daemon that goes to the background by itself and writes ``pid_file``; its identity.

    One that runs already, started by an `up` that died before it could record it, is taken over.
    Raises TransomError with the end of its log, or with the port that someone else holds.
    """
    running = _written(pid_file, env)
    if running is not None:
        return running
    if port is not None and not port_is_free(port):
        raise TransomError(
            f"Cannot start {name}: port {port} is taken by another program",
            hint=f"ss -ltnp 'sport = :{port}'   (a new start chooses new ports: transom sandbox down, then up)",
        )
    pid_file.unlink(missing_ok=True)
    done = subprocess.run(
        list(argv), env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", umask=0o022, start_new_session=True, timeout=_START_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        ident = _await_pid(pid_file, env)
        if ident is not None:
            return ident
    words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
    raise TransomError(
        f"Cannot start {name} (exit {done.returncode})", "\n".join([*words, *log_tail(log)]), f"less {log}"
    )


def log_tail(log: Path, lines: int = 5) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def _await_pid(pid_file: Path, env: dict[str, str]) -> Ident | None:
    """The daemon that wrote ``pid_file``, once it did; None when it died or never came."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if pid_file.exists() and pid_file.read_text().strip():
            return _written(pid_file, env)
        time.sleep(0.02)
    return None


def _written(pid_file: Path, env: dict[str, str]) -> Ident | None:
    """The live daemon whose pid the file holds, if it bears the marks of ``env``."""
    try:
        pid = int(pid_file.read_text().strip())
    except (OSError, ValueError):
        return None
    proc = procs.read(pid, with_environ=True)
    if proc is None or proc.comm != pid_file.stem.partition("-")[0]:
        return None
    same = all(proc.environ.get(mark) == env.get(mark) for mark in (MARK, MARK_NODE))
    return proc.ident if same else None
