"""What both crews share: processes that are written to and read from by threads, so that the head never waits."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from transom_cli.health.crew import Message
from transom_cli.health.lines import Assembler

PACKAGE = Path(__file__).resolve().parents[2]
EXAMINER = "transom_cli.health.examiner"
_WORDS = 40  # lines that are no messages, kept for whoever asks why a node does not answer
BYE = 1.0  # seconds for them to end by themselves
KILL = 2.0  # seconds from TERM to KILL
_OVER: Message = {}


def interpreter() -> list[str]:
    """With -P (Python 3.11) the folder that it is started in is not searched for modules."""
    return [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else [])]


class Pipes:
    """Processes that talk as `crew` says; `over` is true once all of them have ended."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[bytes]] = []
        self._asks: list[queue.SimpleQueue[bytes]] = []
        self._living = 0
        self._ended: set[int] = set()  # queues of those that have
        self._lock = threading.Lock()
        self.words: deque[str] = deque(maxlen=_WORDS)

    def add(self, argv: Sequence[str], env: dict[str, str] | None = None) -> queue.SimpleQueue[bytes]:
        """Start one; what is put into the queue is written to it."""
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        asks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._children.append(child)
        self._asks.append(asks)
        self._living += 1
        for work in (self._read, self._listen, self._write):
            threading.Thread(target=work, args=(child, asks), name="crew", daemon=True).start()
        return asks

    @property
    def over(self) -> bool:
        return self._living == 0

    def ended(self, asks: queue.SimpleQueue[bytes]) -> bool:
        """Whether the process that this queue is written to has ended, and all that it said has been received."""
        return id(asks) in self._ended

    def receive(self, timeout: float) -> Message | None:
        if self.over and self._inbox.empty():
            return None
        try:
            message = self._inbox.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        return message or None

    def close(self) -> None:
        """They are told to end; srun passes TERM on and ends its step; whatever does not end by itself is killed."""
        for asks in self._asks:
            asks.put(line_of({"do": "bye"}))
            asks.put(b"")
        until = time.monotonic() + BYE
        while not self.over and time.monotonic() < until:
            time.sleep(0.01)
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = [child for child in self._children if child.poll() is None]
            for child in left:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
            until = time.monotonic() + KILL
            for child in left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, until - time.monotonic()))

    def _read(self, child: subprocess.Popen[bytes], asks: queue.SimpleQueue[bytes]) -> None:
        assembler = Assembler()
        assert child.stdout is not None
        for line in child.stdout:
            text = line.decode("utf-8", "replace")
            message = assembler.feed(text)
            if message is not None:
                self._inbox.put(message)
        child.wait()
        asks.put(b"")
        with self._lock:
            self._ended.add(id(asks))
            self._living -= 1
            if self.over:
                self._inbox.put(_OVER)

    def _listen(self, child: subprocess.Popen[bytes], _asks: queue.SimpleQueue[bytes]) -> None:
        assert child.stderr is not None
        for line in child.stderr:
            self.words.append(line.decode("utf-8", "replace").rstrip()[:500])

    @staticmethod
    def _write(child: subprocess.Popen[bytes], asks: queue.SimpleQueue[bytes]) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            while data := asks.get():
                child.stdin.write(data)
                child.stdin.flush()


def line_of(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
