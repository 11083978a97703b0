"""How the agent runs the node's snapshot daemon (`ckpt.snapshot.daemon`): starts, watches, queries and ends it.

The daemon is a process of its own, so that it outlives an agent that is killed. The next agent finds it by its socket.
A connection stays open as long as the agent lives; through it each side notices that the other is gone.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from transom_cli.ckpt.snapshot.client import LINGER, agents_path, start
from transom_cli.rpc.errors import RpcError, Unreachable
from transom_cli.rpc.local import Client, connect

LOOK = 1.0  # seconds between two checks whether it lives
COMING_UP = 0.1  # the same, while it starts
PAUSES = (1.0, 60.0)  # seconds between two starts of one that dies at once, first and longest
STEADY = 60.0  # seconds after which the pauses restart from the shortest
HELLO = 5.0  # seconds for a simple reply
END = 2.0  # seconds for it to end on request
_LOG = 16 << 10  # bytes of its log that are copied at a time


class SnapshotDaemon:
    """Call `newest` and `rescue` from any thread. `say` writes a line to the agent's log."""

    def __init__(self, beats_dir: str, attempt_dir: Path, say: Callable[[str], None]) -> None:
        self._path, self._attempt_dir, self._say = agents_path(beats_dir), attempt_dir, say
        self._client: Client | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._due, self._pause = 0.0, 0.0, PAUSES[0]
        self._read = self._size_of_log()  # a former agent has copied the rest
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="snapshot-daemon", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def newest(self) -> dict[str, object]:
        """Return each training's newest committed step here (`Training.newest`). Raises RpcError."""
        return self._call("newest", HELLO)

    def rescue(self, directory: str, step: int, attempt: str, seconds: float) -> dict[str, object]:
        """Have `step` made durable. Raises RpcError."""
        about = {"directory": directory, "step": step, "attempt": attempt, "seconds": seconds}
        return self._call("rescue", seconds + HELLO, **about)

    def end(self) -> None:
        """End the daemon: the attempt is over."""
        self._over.set()
        self._thread.join()
        if self._client is None:
            return
        with contextlib.suppress(RpcError):
            self._client.call("end", timeout=HELLO)
        until = time.monotonic() + END
        while not self._client.gone() and time.monotonic() < until:
            time.sleep(0.02)
        self._client.close()
        self._copy_log()

    def _watch(self) -> None:
        while not self._over.wait(LOOK if self._client is not None else COMING_UP):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        self._copy_log()
        if self._client is not None and self._client.gone():
            self._client.close()
            self._client = None
            self._say("this node's snapshot daemon has died; restarting it (the ranks register their memory again)")
        if self._client is None:
            self._connect_or_start(now)

    def _connect_or_start(self, now: float) -> None:
        """Connect to a running daemon, no matter who started it; otherwise start one."""
        try:
            self._client = connect(self._path)
            return
        except OSError:
            pass
        if now < self._due or (self._process is not None and self._process.poll() is None):
            return
        self._pause = PAUSES[0] if now - self._started > STEADY else min(PAUSES[1], 2 * self._pause)
        self._started, self._due = now, now + self._pause
        linger = os.environ.get(LINGER)
        try:
            more = ("--linger", linger) if linger else ()
            self._process = start(self._path, "--attempt-dir", str(self._attempt_dir), *more)
        except OSError as error:
            self._say(f"cannot start a snapshot daemon on this node: {error}")

    def _call(self, verb: str, timeout: float, **request: object) -> dict[str, object]:
        """Use a connection of its own: on the watched one nothing may arrive."""
        try:
            client = connect(self._path)
        except OSError as error:
            raise Unreachable("No snapshot daemon runs on this node", error.strerror or str(error)) from error
        try:
            return client.call(verb, (), timeout, **request)[0]
        finally:
            client.close()

    def _copy_log(self) -> None:
        """Copy the daemon's log, which is in a file beside its socket and is lost with the node."""
        try:
            with open(f"{self._path}.log", "rb") as file:  # noqa: PTH123
                file.seek(self._read)
                new = file.read(_LOG)
        except OSError:
            return
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for line in new.decode("utf-8", "replace").splitlines():
            self._say(f"snapshot daemon: {line.removeprefix('transom: ')}")

    def _size_of_log(self) -> int:
        try:
            return os.stat(f"{self._path}.log").st_size  # noqa: PTH116
        except OSError:
            return 0
