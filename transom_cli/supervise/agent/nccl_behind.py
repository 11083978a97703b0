"""Asks NCCL's RAS which ranks the others wait for, and keeps the answer in `nodes/<node>.nccl` for screens.

    {"schema": 1, "launch": 0, "behind": [{"words": "rank 5 is behind in ...", "seconds": 40.1}]}

Its own thread asks and writes, so that neither NCCL nor a file system delays the heartbeats. There is no file until a
trainer on this node has answered. One of 2 KiB at most is replaced every 30 s, on two nodes of a job.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from transom_cli.files import replace_text
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent import nccl_ras

if TYPE_CHECKING:
    from transom_cli.diagnose.hangs.behind import Behind

EVERY = 30.0  # seconds between two questions
RARELY = 10.0  # times what the last answer took, if that is longer
ASK = 8.0  # seconds for an answer
MOST = 8  # communicators


class NcclBehind:
    """ranks: returns the launch, and the process IDs of its ranks on this node."""

    def __init__(self, attempt: AttemptDir, node: str, ranks: Callable[[], tuple[int, Mapping[int, int]]]) -> None:
        self._path, self._ranks = attempt.nccl(node), ranks
        self._launch = -1
        self._found: tuple[Behind, ...] = ()  # by the last answer
        self._written = ""
        self._leave = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="nccl-behind", daemon=True).start()

    def stop(self) -> None:
        self._leave.set()

    def _run(self) -> None:
        took = 0.0
        while not self._leave.wait(max(EVERY, RARELY * took)):
            began = time.monotonic()
            self.look()
            took = time.monotonic() - began

    def look(self) -> None:
        launch, pids = self._ranks()
        answer = nccl_ras.ask(pids.items(), time.monotonic() + ASK)
        if self._ranks()[0] != launch:
            return  # that launch has ended
        if launch != self._launch:
            self._launch, self._found = launch, ()
        if not answer and not self._written:
            return
        from transom_cli.diagnose.hangs import behind, ras  # only where NCCL answers

        now = time.monotonic()
        comms = ras.parse(answer.decode(errors="replace"))
        self._found = behind.lasting(self._found, behind.behind(comms, pids, nccl_ras.world(pids.values()), now))
        shown = [{"words": x.words[:240], "seconds": round(now - x.since, 1)} for x in self._found if x.since < now]
        text = json.dumps({"schema": 1, "launch": launch, "behind": shown[:MOST]}) + "\n"
        if answer or text != self._written:
            with contextlib.suppress(OSError):  # full or absent: its age shows it
                replace_text(self._path, text)
                self._written = text
