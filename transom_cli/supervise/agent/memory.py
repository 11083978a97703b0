"""The node's memory holder (ckpt.memory), as its agent sees to it: started, watched, asked, and ended at the end.

The holder is a process of its own, so that it outlives an agent that is killed: the next agent finds it by its socket.
A connection stays open as long as the agent lives; by it each learns that the other is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from transom_cli.ckpt.snapshot.client import LINGER, Client, agents_path, connect, start
from transom_cli.ckpt.snapshot.messages import FAILURES, HolderGone

LOOK = 1.0  # seconds between two looks at it
COMING_UP = 0.1  # the same, until it is there
PAUSES = (1.0, 60.0)  # seconds between two starts of one that dies at once: from the first to the longest
STEADY = 60.0  # seconds of a life after which the pauses begin anew
HELLO = 5.0  # seconds for a simple answer
END = 2.0  # seconds for it to end when it is told to
_WORDS = 16 << 10  # bytes of what it says that are passed on at a time


class Memory:
    """`newest` and `rescue` may be called from any thread. `say`: a line for whoever reads the agent's log."""

    def __init__(self, beats_dir: str, attempt_dir: Path, say: Callable[[str], None]) -> None:
        self._path, self._attempt_dir, self._say = agents_path(beats_dir), attempt_dir, say
        self._line: Client | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._due, self._pause = 0.0, 0.0, PAUSES[0]
        self._read = self._size_of_log()  # an earlier agent has passed on what stands there
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def newest(self) -> dict[str, object]:
        """Of each training the newest committed step here (ckpt.memory.rescue). Raises TransomError."""
        return self._ask("newest", HELLO)

    def rescue(self, directory: str, step: int, attempt: str, seconds: float) -> dict[str, object]:
        """Have `step` made durable. Raises TransomError."""
        about = {"directory": directory, "step": step, "attempt": attempt, "seconds": seconds}
        return self._ask("rescue", seconds + HELLO, **about)

    def end(self) -> None:
        """The attempt is over: so is what the node holds of it."""
        self._over.set()
        self._thread.join()
        if self._line is None:
            return
        with contextlib.suppress(*FAILURES):
            self._line.ask("end", timeout=HELLO)
        until = time.monotonic() + END
        while not self._line.gone() and time.monotonic() < until:
            time.sleep(0.02)
        self._line.close()
        self._pass_on()

    def _watch(self) -> None:
        while not self._over.wait(LOOK if self._line is not None else COMING_UP):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        self._pass_on()
        if self._line is not None and self._line.gone():
            self._line.close()
            self._line = None
            self._say("the memory holder of this node has died: it is started again, and ranks lend it theirs anew")
        if self._line is None:
            self._come_together(now)

    def _come_together(self, now: float) -> None:
        """Connect to the holder that is there, whoever has started it, else start one."""
        try:
            self._line = connect(self._path)
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
            self._say(f"no memory holder can be started on this node: {error}")

    def _ask(self, name: str, timeout: float, **about: object) -> dict[str, object]:
        """On a line of its own: the one that is watched must stay quiet."""
        try:
            line = connect(self._path)
        except OSError as error:
            raise HolderGone("no memory holder runs on this node", error.strerror or str(error)) from error
        try:
            return line.ask(name, timeout=timeout, **about)[0]  # type: ignore[arg-type]
        finally:
            line.close()

    def _pass_on(self) -> None:
        """What the holder has said stands in a file beside its socket, which goes with the node."""
        try:
            with open(f"{self._path}.log", "rb") as file:  # noqa: PTH123
                file.seek(self._read)
                new = file.read(_WORDS)
        except OSError:
            return
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for line in new.decode("utf-8", "replace").splitlines():
            self._say(f"memory holder: {line.removeprefix('transom: ')}")

    def _size_of_log(self) -> int:
        try:
            return os.stat(f"{self._path}.log").st_size  # noqa: PTH116
        except OSError:
            return 0
