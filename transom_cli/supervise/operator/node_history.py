"""Writes what a run learns about its nodes into the user's history.

A thread of its own does this: the run must not wait for a home directory that does not respond, nor fail if it is full.
If something could not be written, the run's next operator writes it, because its journal yields the same records.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transom_cli.core.events import Event
from transom_cli.core.node_hazard import PUBLISHED, Hazard
from transom_cli.core.operator.state import State
from transom_cli.health.history.attempts import OpenAttempt, records_of
from transom_cli.health.history.files import HistoryFile, read_history
from transom_cli.health.history.nodes import failures_elsewhere, fold, uses_after_return
from transom_cli.health.history.records import Record
from transom_cli.health.history.shared import publish
from transom_cli.layout import RunDir

log = logging.getLogger("transom.operator")

LAST = 5.0  # seconds that the end of an operator waits for the last records
PATIENCE = 2.0  # seconds that the isolation of a node waits for the history


@dataclass(frozen=True)
class _Question:
    node: str
    answer: queue.SimpleQueue[tuple[Hazard, int]]


class NodeHistory:
    def __init__(self, run: RunDir, folder: Path, cluster: str = "", shared: Path | None = None) -> None:
        """cluster: the name that its controller reports; "" if unknown. shared: the folder that all users report to."""
        self._telling = OpenAttempt(run.run_id, str(run.path), cluster=cluster)
        self._file = HistoryFile(folder, run.run_id)
        self._folder, self._shared = folder, shared
        self._todo: queue.SimpleQueue[tuple[Record, ...] | _Question | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="nodebook", daemon=True)
        self._starting = threading.Lock()

    def seen(self, before: State, event: Event, after: State) -> None:
        """Called for each event of the run in order, beginning with those in the journal."""
        if before == after:
            return
        self._telling, records = records_of(self._telling, before, event.at, after)
        if not records:
            return
        self._start()
        self._todo.put(records)

    def of(self, node: str) -> tuple[Hazard | None, int]:
        """Return what the user's runs know: the hazard after a return, and how often other runs blamed the node lately.

        From any thread. None without an answer within `PATIENCE`.
        """
        question = _Question(node, queue.SimpleQueue())
        self._start()
        self._todo.put(question)
        with contextlib.suppress(queue.Empty):
            return question.answer.get(timeout=PATIENCE)
        return None, 0

    def _start(self) -> None:
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        if self._thread.ident is not None:
            self._todo.put(None)
            self._thread.join(LAST)

    def _write(self) -> None:
        failed: list[Record] = []
        while (given := self._todo.get()) is not None:
            if isinstance(given, _Question):
                self._answer(given)
            else:
                failed = self._try([*failed, *given])
        self._try(failed)

    def _answer(self, question: _Question) -> None:
        now = time.time()
        try:
            records = read_history(self._folder, now)
            elsewhere = failures_elsewhere(records, question.node, self._telling.run, now)
            hazard = PUBLISHED.updated(uses_after_return(records))
        except (OSError, ValueError, ArithmeticError) as error:  # this thread must live: it writes the history
            log.warning("cannot use the history of nodes: %s", error)
            return
        question.answer.put((hazard, elsewhere))

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
