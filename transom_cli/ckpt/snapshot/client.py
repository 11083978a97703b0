"""A process's line to its node's memory holder, and how it comes to have one."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from zlib import crc32

from transom_cli.ckpt.snapshot import messages
from transom_cli.ckpt.snapshot.messages import HolderGone
from transom_cli.heartbeat import paths
from transom_cli.start import own

SOCKET = "memory"  # in the beats folder of the node
LINGER = "TRANSOM_MEMORY_LINGER"
START = 20.0  # seconds for a holder to come up, on a busy node
ANSWER = 120.0  # seconds for an answer on this node: checksums of a large share are made in it


class Client:
    """One connection. Questions of several threads wait for one another. Raises HolderGone and Refused."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()

    def ask(
        self, name: str, fds: list[int] | None = None, timeout: float = ANSWER, **about: Any
    ) -> tuple[messages.Body, list[int]]:
        with self._lock:
            return messages.ask(self._sock, timeout, name, fds or [], **about)

    def gone(self) -> bool:
        """Whether the holder has ended. Only between questions: it says nothing by itself but its end."""
        return bool(select.select([self._sock], [], [], 0.0)[0])

    def close(self) -> None:
        self._sock.close()


def connect(path: str) -> Client:
    """Raises OSError where nobody listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
        if not messages.same_user(sock):
            raise PermissionError(f"{path} is another user's")
    except BaseException:
        sock.close()
        raise
    return Client(sock)


def agents_path(beats_dir: str) -> str:
    """Where the holder of a node's agent listens."""
    return f"{beats_dir}/{SOCKET}"


def own_path(directory: Path) -> str:
    """Where a holder listens that the ranks start themselves: one for each checkpoints directory, user and host."""
    return f"{paths.private_folder(_name(directory))}/{SOCKET}"


def living_path(directory: Path) -> str | None:
    """The same, where such a holder has been; nothing is made."""
    folder = paths.private_folder_there(_name(directory))
    return None if folder is None else f"{folder}/{SOCKET}"


def _name(directory: Path) -> str:
    return f"transom-{os.getuid()}-memory-{crc32(os.fsencode(directory)):08x}"


def start(path: str, *more: str) -> subprocess.Popen[bytes]:
    """A holder in a session of its own, which a Ctrl-C does not reach. Where there is one already it ends at once.

    It has none of our streams: who reads them to their end would wait for it. What it says stands beside its socket.
    """
    env = {key: value for key, value in os.environ.items() if key not in _NOT_ITS_OWN}
    Path(path).parent.mkdir(mode=0o700, exist_ok=True)  # one that has just ended has taken it away
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            own("transom_cli.ckpt.snapshot.holder", "--socket", path, *more),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, env=env,
        )  # fmt: skip
    finally:
        os.close(log)


# What tells a process of a launch from others (agent.belonging): a holder outlives the launch that started it.
_NOT_ITS_OWN = frozenset({paths.ROLE, paths.ATTEMPT_DIR, paths.LAUNCH, paths.BEAT_DIR, paths.ATTEMPT})


def reach(path: str, patience: float) -> Client:
    """Raises HolderGone where nobody listens within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return connect(path)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise HolderGone("no memory holder runs on this node", error.strerror or str(error)) from error
        time.sleep(0.02)


def reach_or_start(path: str) -> Client:
    """Raises HolderGone. One that is just ending keeps the next from starting: that one is started again."""
    linger = os.environ.get(LINGER)
    starting: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + START
    while True:
        try:
            return connect(path)
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() >= deadline:
            raise HolderGone("a memory holder was started and does not come up", why)
        if starting is None or starting.poll() is not None:
            try:
                starting = start(path, *(["--linger", linger] if linger else []))
            except OSError as error:
                raise HolderGone("a memory holder could not be started", error.strerror or str(error)) from error
            threading.Thread(target=starting.wait, daemon=True).start()  # so that no zombie stays
        time.sleep(0.02)
