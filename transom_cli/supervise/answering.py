"""Does a file system answer? Asked again and again, by threads of a process whose others would hang in it.

A file server that is gone lets every call wait for as long as it is gone (NFS with `hard`, the default). `statvfs` asks
the server itself: no client answers it from what it has kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 10.0  # seconds without an answer, after which it is reported
EVERY = 1.0  # seconds from an answer to the next question
TURN = 0.25


class Answering:
    """Calls, from a thread: `lost` once the folder's file system has owed an answer for `patience` seconds, with since
    when it does (seconds since the epoch); from then on every turn `still`, with for how many seconds; `back`, with how
    many it took, when it answers again. An error is an answer. Time in which this process itself stood still is no
    silence.
    """

    def __init__(
        self,
        folder: Path,
        lost: Callable[[float], object],
        back: Callable[[float], object] = lambda _: None,
        still: Callable[[float], object] = lambda _: None,
        patience: float = PATIENCE,
    ) -> None:
        self._folder, self._patience = folder, patience
        self._lost, self._back, self._still = lost, back, still
        self._answers = 0
        self._stopped = threading.Event()

    def start(self) -> Answering:
        for work in (self._ask, self._judge):
            threading.Thread(target=work, name=f"answering-{work.__name__}", daemon=True).start()
        return self

    def stop(self) -> None:
        """Returns at once; a question that hangs ends with the process, or when it is answered."""
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.wait(EVERY if self._answers else 0.0):
            with contextlib.suppress(OSError):
                os.statvfs(self._folder)
            self._answers += 1

    def _judge(self) -> None:
        heard, silent, told, turned = 0, 0.0, False, time.monotonic()
        while not self._stopped.wait(TURN):
            now = time.monotonic()
            silent, turned = silent + min(now - turned, 2 * TURN), now
            if self._answers != heard:
                if told:
                    self._back(silent)
                heard, silent, told = self._answers, 0.0, False
            elif told:
                self._still(silent)
            elif silent >= self._patience:
                told = True
                self._lost(time.time() - silent)


def interrupted() -> bool:
    """Whether a Ctrl-C waits for this process, that is: for its main thread to come back from the kernel (proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pending = next((line.split()[1] for line in lines if line.startswith("ShdPnd:")), "0")
    return bool(int(pending, 16) & 1 << (signal.SIGINT - 1))
