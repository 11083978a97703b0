"""Writes what a run learns about its nodes into the user's history.

A thread of its own does this: the run must not wait for a home directory that does not respond, nor fail if it is full.
If something could not be written, the run's next operator writes it, because its journal yields the same records.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from transom_cli.core.events import Event
from transom_cli.core.operator.state import State
from transom_cli.health.history.attempts import OpenAttempt, records_of
from transom_cli.health.history.files import HistoryFile, read_history
from transom_cli.health.history.nodes import fold
from transom_cli.health.history.records import Record
from transom_cli.health.history.shared import publish
from transom_cli.layout import RunDir

log = logging.getLogger("transom.operator")

LAST = 5.0  # seconds that the end of an operator waits for the last records


class NodeHistory:
    def __init__(self, run: RunDir, folder: Path, cluster: str = "", shared: Path | None = None) -> None:
        """cluster: the name that its controller reports; "" if unknown. shared: the folder that all users report to."""
        self._telling = OpenAttempt(run.run_id, str(run.path), cluster=cluster)
        self._file = HistoryFile(folder, run.run_id)
        self._folder, self._shared = folder, shared
        self._todo: queue.SimpleQueue[tuple[Record, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="nodebook", daemon=True)

    def seen(self, before: State, event: Event, after: State) -> None:
        """Called for each event of the run in order, beginning with those in the journal."""
        if before == after:
            return
        self._telling, records = records_of(self._telling, before, event.at, after)
        if not records:
            return
        if self._thread.ident is None:
            self._thread.start()
        self._todo.put(records)

    def close(self) -> None:
        if self._thread.ident is not None:
            self._todo.put(None)
            self._thread.join(LAST)

    def _write(self) -> None:
        failed: list[Record] = []
        while (records := self._todo.get()) is not None:
            failed = self._try([*failed, *records])
        self._try(failed)

    def _try(self, records: Iterable[Record]) -> list[Record]:
        try:
            self._file.add(records)
            if self._shared is not None:
                now = time.time()
                publish(self._shared, fold(read_history(self._folder, now), now))
        except OSError as error:
            log.warning("cannot write the history of nodes: %s", error)
            return list(records)
        return []
