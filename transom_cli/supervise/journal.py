"""The operator's journal: one JSON record per line, appended and synced before its actions run.

The first line is a header with the policy; every other line holds an event and the epoch of the operator that wrote it.
Records of an epoch older than one before them come from a fenced writer and do not count. A torn line (a crash,
a full disk) can only be the last of its epoch; it is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli import __version__
from transom_cli.core.codec import BadRecord, build, event_from_json, event_to_json, plain
from transom_cli.core.events import Event, StepSeen
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Policy, Request, State
from transom_cli.errors import TransomError
from transom_cli.layout import RUN_FORMAT, RunDir, other_format

Seen = Callable[[State, Event, State], None]  # an event, with the states before and after it


class JournalError(TransomError):
    """The journal cannot be read or written."""

    kind = "journal"


@dataclass(frozen=True)
class Folded:
    """What a journal says: the state after its last record, and every event that counts."""

    state: State
    last_at: float
    events: tuple[Event, ...]


def write_header(path: Path, policy: Policy, num_nodes: int, spares: int = 0) -> None:
    """Begin a run's journal. Called once, when the run directory is made. num_nodes: spares included."""
    header = {"type": "Header", "format": RUN_FORMAT, "transom": __version__, "policy": plain(policy)}
    header |= {"num_nodes": num_nodes, "spares": spares}
    with path.open("x", encoding="utf-8") as f:
        f.write(json.dumps(header) + "\n")
        f.flush()
        os.fsync(f.fileno())


class Folding:
    """Plays a journal through the core, and on the next call continues with the records added since.

    seen: is called for each event that counts, with the states before and after it. Without each_step, a row of steps
    during undisturbed training is played at once: each is reported with the state before the row.
    """

    def __init__(self, path: Path, seen: Seen | None = None, *, each_step: bool = True) -> None:
        self._path, self._seen = path, seen
        self._each_step = each_step and seen is not None
        self._begin()

    def _begin(self) -> None:
        self._offset, self._state, self._epoch, self._last_at = 0, State(), 0, 0.0
        self._events: list[Event] = []
        self._further: StepSeen | None = None
        self._folded: Folded | None = None

    def more(self) -> Folded:
        """Return the state at the last record in the file. Raises JournalError."""
        added = self._read()
        records = [record for line in added.splitlines() if (record := _record(line)) is not None]
        if self._folded is None:
            self._state = _first_state(self._path, records.pop(0) if records else {})
        elif not records:
            return self._folded
        for record in records:
            self._play(record)
        self._catch_up()
        self._folded = Folded(self._state, self._last_at, tuple(self._events))
        return self._folded

    def _read(self) -> str:
        """What was not read yet, in whole lines; the last one also where it has no end, if it is whole."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._begin()  # another file
                file.seek(self._offset)
                data = file.read()
        except OSError as error:
            raise JournalError(f"Cannot read the journal `{self._path}`", str(error)) from error
        whole, end, rest = data.rpartition(b"\n")
        if _record(rest.decode("utf-8", "replace")) is not None:
            whole, end, rest = data, b"", b""
        self._offset += len(whole) + len(end)
        return whole.decode("utf-8", "replace")

    def _play(self, record: dict[str, Any]) -> None:
        """Play a record. Of a row of plain steps, which are most of a long journal, only the newest is played."""
        if int(record.get("epoch", 0)) < self._epoch:
            return
        self._epoch = int(record.get("epoch", 0))
        try:
            event = event_from_json(record)
        except BadRecord as error:
            raise JournalError(f"A record of `{self._path}` cannot be read", str(error)) from error
        self._last_at = max(self._last_at, event.at)
        self._events.append(event)
        if not self._each_step and isinstance(event, StepSeen) and _only_further(self._state, event):
            if self._further is None or _newer(self._further, event):
                self._further = event
            if self._seen is not None:
                self._seen(self._state, event, self._state)
            return
        self._catch_up()
        before = self._state
        self._state, _ = decide(before, event)
        if self._seen is not None:
            self._seen(before, event, self._state)

    def _catch_up(self) -> None:
        if self._further is not None:
            self._state, _ = decide(self._state, self._further)
            self._further = None


def _newer(known: StepSeen, event: StepSeen) -> bool:
    return event.step > known.step or (known.since_start and not event.since_start)


def fold(path: Path, seen: Seen | None = None, *, each_step: bool = True) -> Folded:
    """Play the journal through the core, once. As `Folding`."""
    return Folding(path, seen, each_step=each_step).more()


def _only_further(state: State, event: StepSeen) -> bool:
    """Whether a step changes nothing but the step: of several in a row only the newest counts."""
    return state.phase is Phase.TRAINING and state.incident is None and event.attempt == state.attempt


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # torn
    return record if isinstance(record, dict) else None


def _first_state(path: Path, header: dict[str, Any]) -> State:
    if header.get("type") != "Header":
        raise JournalError(f"`{path}` is not a journal of transom", f"its first line has type {header.get('type')!r}")
    if header.get("format") != RUN_FORMAT:
        raise JournalError(*other_format(RunDir(path.parent), header, __version__))
    request = Request(int(header["num_nodes"]), int(header.get("spares", 0)))
    return State(policy=build(Policy, header["policy"]), request=request)


class Journal:
    """The writing end, owned by one operator (one epoch)."""

    def __init__(self, path: Path, epoch: int) -> None:
        self._path = path
        self._epoch = epoch
        try:
            self._torn = not path.read_bytes().endswith(b"\n")  # an earlier writer died in the middle of a line
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise JournalError(f"Cannot open the journal `{path}`", str(error)) from error

    def append(self, event: Event) -> None:
        """Durable when it returns. Raises JournalError (disk full, file system gone): nothing may be done then.

        It may be tried again: what a failed try left behind is kept apart as a torn line.
        """
        line = (json.dumps({"epoch": self._epoch, **event_to_json(event)}) + "\n").encode()
        left = memoryview(b"\n" + line if self._torn else line)
        try:
            while left:
                written = self._file.write(left)
                self._torn = True
                left = left[written:]
            os.fsync(self._file.fileno())
            self._torn = False
        except OSError as error:
            raise JournalError(f"Cannot write the journal `{self._path}`", str(error)) from error

    def close(self) -> None:
        self._file.close()


def step_and_remember(state: State, event: Event, journal: Journal) -> tuple[State, tuple[Action, ...]]:
    """Decide, and put the event in the journal if it changed anything; only then may its actions be done."""
    after, actions = decide(state, event)
    if actions or after != state:
        journal.append(event)
    return after, actions
