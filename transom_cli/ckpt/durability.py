"""Waiting until a step is durable, or known not to become so."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.snapshot import messages
from transom_cli.ckpt.snapshot.client import Client
from transom_cli.ckpt.snapshot.meeting_place import Meeting
from transom_cli.ckpt.snapshot.outcomes import ENDED, FAILED, RUNNING
from transom_cli.ckpt.snapshot.record import Record

_UNHEARD = 10.0  # seconds in which nothing is heard of a write


class Durability:
    """`by`: the node whose holder sees to it. Asks this node's holder, by a line of its own. For any thread."""

    def __init__(self, at: Meeting, directory: Path, token: str, by: str) -> None:
        self._at, self._directory, self._token, self._by = at, directory, token, by

    def outcome(self, step: int, record: Record | None) -> str:
        """Wait until `step` is durable. Returns "", or why it is not. `record`: as it was committed."""
        silent: float | None = None
        line: Client | None = None
        try:
            while True:
                try:
                    if line is None:
                        line = self._at.connect()
                        line.ask("look", directory=str(self._directory), token=self._token)
                    answer = line.ask("outcome", step=step, by=self._by, patience=1.0)[0]
                except messages.FAILURES as error:
                    line, answer = None, {"trouble": error.what}
                state, trouble = answer.get("state"), str(answer.get("trouble", ""))
                if state in ENDED:
                    return trouble if state == FAILED else ""
                now = time.monotonic()
                silent = None if state == RUNNING else silent or now
                if silent is not None and now - silent >= _UNHEARD:
                    with suppress(*messages.FAILURES):
                        if line is not None:
                            line.ask("unheard", step=step)
                    unknown = trouble or f"the memory holder of {self._by} knows nothing of it any more"
                    return "" if self.on_disk(step, record) else unknown
                if line is None:
                    time.sleep(0.5)
        finally:
            if line is not None:
                line.close()

    def on_disk(self, step: int, record: Record | None) -> bool:
        """Whether the very step that `record` names is published."""
        with suppress(OSError):
            return record is not None and (self._directory / step_name(step) / MANIFEST).read_bytes() == record.manifest
        return False
