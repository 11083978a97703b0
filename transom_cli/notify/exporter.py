"""Exports metrics of a run in a thread of its own, beside the operator's loop: a text file and an HTTP endpoint."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom_cli import __version__
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.snapshot.account import newest_whole
from transom_cli.ckpt.snapshot.status_file import read_all
from transom_cli.core.events import Event
from transom_cli.core.goodput import Sums
from transom_cli.core.operator.state import State
from transom_cli.errors import TransomError
from transom_cli.heartbeat.table import NodeTable
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.notify.metrics import DISK, MEMORY, Family, RunSnapshot, families
from transom_cli.supervise.record_reader import read_run_record

Saved = tuple[int, float | None]  # step, and when it was committed (Unix time; None: unknown)


def on_disk(checkpoints: Path, durable: int) -> Saved | None:
    """Return the newest checkpoint on disk. durable: its step, or -1."""
    if durable < 0:
        return None
    try:
        return durable, (checkpoints / step_name(durable) / "manifest.json").stat().st_mtime
    except OSError:
        return durable, None


def in_memory(attempt: AttemptDir, now: float) -> Saved | None:
    """Return the newest complete snapshot in node memory. Reads a file per node."""
    newest = newest_whole(sight.accounts for sight in read_all(attempt, now).values())
    return None if newest is None else (newest.step, newest.committed)


log = logging.getLogger("transom.operator")

MEMORY_EVERY = 0.05  # seconds per node between two reads of node memory: a file each
SPENT_EVERY = 60.0  # seconds between two accounts of the run's time, for which its journals are read
RARELY = 50.0  # or so many times what one takes
FINAL_WAIT = 5.0  # seconds to write the last metrics


@dataclass(frozen=True)
class MetricsConfig:
    """What is exported, and where. port: None for no endpoint. every: seconds."""

    run: RunDir
    name: str
    checkpoints: Path
    textfile: Path | None
    port: int | None
    address: str
    every: float


class MetricsExporter:
    def __init__(self, about: MetricsConfig, sent: Callable[[], dict[tuple[str, str], int]] = dict) -> None:
        """sent: returns the number of messages by target and result."""
        self._about, self._sent = about, sent
        self._tables: Callable[[], tuple[NodeTable, ...]] = tuple
        self._state, self._born = State(), time.time()
        self._shown: tuple[Family, ...] = ()
        self._troubles: dict[str, str] = {}  # current errors
        self._memory: Saved | None = None
        self._memory_due = 0.0
        self._spent: Sums | None = None
        self._spent_due = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def watch(self, tables: Callable[[], tuple[NodeTable, ...]]) -> None:
        """Use heartbeat tables that another component reads."""
        self._tables = tables

    def seen(self, before: State, event: Event, after: State) -> None:
        self._state = after
        if event.at >= self._born and self._thread.ident is None:  # past events of the journal do not count
            self._thread.start()

    def close(self) -> None:
        """Write the last metrics, and end the thread."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(FINAL_WAIT)

    def look(self) -> None:
        """Read the run."""
        state, about, now = self._state, self._about, time.time()
        if now >= self._memory_due or state.phase.over:
            self._memory_due = now + max(about.every, MEMORY_EVERY * len(state.job.nodes))
            lives = state.job.id and not state.phase.over
            self._memory = in_memory(about.run.attempt(state.job.id, state.job.restarts), now) if lives else None
        if now >= self._spent_due or state.phase.over:
            self._spent = time_by_kind(about.run)
            self._spent_due = time.time() + max(SPENT_EVERY, RARELY * (time.time() - now))
        places = {DISK: on_disk(about.checkpoints, state.progress.durable), MEMORY: self._memory}
        saved = {place: found for place, found in places.items() if found is not None}
        sight = RunSnapshot(
            about.run.run_id, about.name, __version__, now, state, self._tables(), saved, self._sent(), self._spent
        )
        self._shown = families(sight)

    def _run(self) -> None:
        try:
            from transom_cli.notify.prometheus import registry, serve, sweep, write_text
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
        """Run one part. A failure is logged once and retried in the next look; it never ends the operator."""
        name = part.__name__
        try:
            part()
            self._troubles.pop(name, None)
        except Exception as error:
            # without the name of a temporary file
            words = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if self._troubles.get(name) != words:
                log.warning("metrics: cannot %s: %s", name, words)
            self._troubles[name] = words


def time_by_kind(run: RunDir) -> Sums | None:
    """Return the run's time by kind; None if it cannot be read, or no step was seen."""
    try:
        account = read_run_record(run).account
    except (OSError, TransomError):
        return None
    return account.whole if account.steps_seen else None
