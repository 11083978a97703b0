"""Leaves what the node's GPUs tell in the run directory: `nodes/<node>.gpus`, the newest only.

A thread of its own writes, so that a file system that hangs keeps nothing from the launcher. One file of some 3 KiB a
node, replaced every 25 s at most: three file-system operations (create, write, rename), 123 a second over 1,024 nodes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

from transom_cli.files import replace_text
from transom_cli.health.gpu.status import BadStatus, NodeGpus, decode, encode, gpus_of
from transom_cli.layout import AttemptDir

EVERY = 25.0  # seconds between two writings; a little under the usual pace of the readings, so that none is left out


class GpuFile:
    def __init__(self, attempt: AttemptDir, node: str) -> None:
        self.attempt, self.node = attempt.name, node
        self._path = attempt.gpus(node)
        self._newest: NodeGpus | None = None
        self._fresh, self._leave = threading.Event(), threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpu-file", daemon=True).start()

    def stop(self) -> None:
        self._leave.set()
        self._fresh.set()

    def put(self, told: NodeGpus) -> None:
        """From any thread; returns at once."""
        self._newest = told
        self._fresh.set()

    def former(self) -> Mapping[str, tuple[int, float]]:
        """The last Xid of each GPU and when, as an agent before this one has left them."""
        try:
            told = decode(self._path.read_text())
        except (OSError, UnicodeError, BadStatus):
            return {}
        return {one.uuid: (one.xid, one.xid_at) for one in gpus_of(told) if one.uuid and one.xid and one.xid_at}

    def _run(self) -> None:
        while self._fresh.wait() and not self._leave.is_set():
            self._fresh.clear()
            if self._newest is not None:
                with contextlib.suppress(OSError):  # full or absent: its age tells it, and the next one is tried again
                    replace_text(self._path, encode(self._newest))
            if self._leave.wait(EVERY):
                return
