"""How much room a file system has. Asked in a thread: one that hangs must hold up nobody but that thread."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """used, inodes: fractions of what an ordinary user may fill, None where there is no such number.

    free: bytes. waited: seconds for which the file system has owed an answer, 0.0 when it gave one. error: its words.
    """

    path: str
    used: float | None = None
    inodes: float | None = None
    free: int = 0
    waited: float = 0.0
    error: str = ""


class RoomReader:
    """One path, one thread at most: while an answer is owed, no second question is put."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        self._found = Room(path)

    def read(self, patience: float) -> Room:
        """Waits at most `patience` seconds. What is owed from an earlier call is taken when it comes."""
        if self._thread is None:
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="room", daemon=True)
            self._thread.start()
        self._thread.join(patience)
        if self._thread.is_alive():
            return Room(self._path, waited=time.monotonic() - self._asked)
        self._thread = None
        return self._found

    def _ask(self) -> None:
        try:
            found = os.statvfs(self._path)
        except OSError as error:
            self._found = Room(self._path, error=error.strerror or str(error))
            return
        full = found.f_blocks - found.f_bfree
        usable, nodes = full + found.f_bavail, found.f_files
        self._found = Room(
            self._path,
            used=full / usable if usable else None,
            inodes=(nodes - found.f_favail) / nodes if nodes else None,
            free=found.f_bavail * found.f_frsize,
        )
