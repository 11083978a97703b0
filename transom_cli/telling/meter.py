"""Measures a run beside the operator's loop: reads what is to be read in a thread of its own, writes it, serves it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom_cli import __version__
from transom_cli.beats.table import NodeTable
from transom_cli.core.events import Event
from transom_cli.core.goodput import Sums
from transom_cli.core.state import State
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.supervise.ledger import read_book
from transom_cli.telling.numbers import DISK, MEMORY, Family, Sight, families
from transom_cli.telling.saved import Saved, in_memory, on_disk

log = logging.getLogger("transom.operator")

MEMORY_EVERY = 0.05  # seconds for each node between two looks at what their memories hold: a file of each is read
SPENT_EVERY = 60.0  # seconds between two accounts of the run's time: its journals are read for it
RARELY = 50.0  # times as long as that took
LAST = 5.0  # seconds for the last numbers of an operator


@dataclass(frozen=True)
class Gauging:
    """What of a run is measured, and where that goes. port: None for no endpoint. every: seconds."""

    run: RunDir
    name: str
    checkpoints: Path
    textfile: Path | None
    port: int | None
    address: str
    every: float


class Meter:
    def __init__(self, about: Gauging, told: Callable[[], dict[tuple[str, str], int]] = dict) -> None:
        """told: messages by target and what became of them."""
        self._about, self._told = about, told
        self._tables: Callable[[], tuple[NodeTable, ...]] = tuple
        self._state, self._born = State(), time.time()
        self._shown: tuple[Family, ...] = ()
        self._troubles: dict[str, str] = {}  # what fails at the moment, and how
        self._memory: Saved | None = None
        self._memory_due = 0.0
        self._spent: Sums | None = None
        self._spent_due = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def watch(self, tables: Callable[[], tuple[NodeTable, ...]]) -> None:
        """The beat tables that somebody reads anyway."""
        self._tables = tables

    def seen(self, before: State, event: Event, after: State) -> None:
        self._state = after
        if event.at >= self._born and self._thread.ident is None:  # what the journal tells of the past is no number
            self._thread.start()

    def close(self) -> None:
        """With the last numbers in the file."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(LAST)

    def look(self) -> None:
        """Read the run as it is now."""
        state, about, now = self._state, self._about, time.time()
        if now >= self._memory_due or state.phase.over:
            self._memory_due = now + max(about.every, MEMORY_EVERY * len(state.nodes))
            lives = state.job_id and not state.phase.over
            self._memory = in_memory(about.run.attempt(state.job_id, state.restarts), now) if lives else None
        if now >= self._spent_due or state.phase.over:
            self._spent = spent_of(about.run)
            self._spent_due = time.time() + max(SPENT_EVERY, RARELY * (time.time() - now))
        places = {DISK: on_disk(about.checkpoints, state.durable), MEMORY: self._memory}
        saved = {place: found for place, found in places.items() if found is not None}
        sight = Sight(
            about.run.run_id, about.name, __version__, now, state, self._tables(), saved, self._told(), self._spent
        )
        self._shown = families(sight)

    def _run(self) -> None:
        try:
            from transom_cli.telling.exposition import registry, serve, sweep, write_text
        except ImportError as error:
            log.error("no metrics: %s; install transom-cli[metrics] where the operator runs", error)
            return
        about = self._about
        stops: list[Callable[[], None]] = []
        made = registry(about.run.run_id, lambda: self._shown)

        def listen() -> None:
            if about.port is not None and not stops:
                stops.append(serve(made, about.address, about.port))
                log.info("metrics: http://%s:%d/metrics", about.address, about.port)

        def write() -> None:
            if about.textfile is not None:
                write_text(made, about.textfile, about.run.run_id)
                sweep(about.textfile)

        pause, over = 0.0, False
        while not over:
            over = self._end.wait(pause)
            pause = about.every
            for part in (self.look, write) if over else (self.look, write, listen):
                self._try(part)
        for stop in stops:
            stop()

    def _try(self, part: Callable[[], None]) -> None:
        """Nothing of this may end an operator: what fails is told once, and tried again with the next look."""
        name = part.__name__
        try:
            part()
            self._troubles.pop(name, None)
        except Exception as error:
            words = (error.strerror if isinstance(error, OSError) else None) or str(error)  # no name of the moment's
            if self._troubles.get(name) != words:
                log.warning("metrics: cannot %s: %s", name, words)
            self._troubles[name] = words


def spent_of(run: RunDir) -> Sums | None:
    """None where it cannot be made now, or no step was seen, so that it would say nothing."""
    try:
        account = read_book(run).account
    except (OSError, TransomError):
        return None
    return account.whole if account.beats else None
