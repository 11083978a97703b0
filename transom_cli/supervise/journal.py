"""The operator's journal: one JSON record a line, appended and synced before anything is done about it.

The first line is a header with the policy; every other line holds an event and the epoch of the operator that wrote it.
Records of an epoch older than one that stands before them are a fenced writer's and do not count. A torn line (a crash,
a full disk) can only be the last of its epoch; it is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transom_cli.core.actions import Action
from transom_cli.core.codec import BadRecord, build, event_from_json, event_to_json, plain
from transom_cli.core.decide import decide
from transom_cli.core.events import Event, StepSeen
from transom_cli.core.state import Phase, Policy, State
from transom_cli.errors import TransomError

SCHEMA = 1


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
    header = {"type": "Header", "schema": SCHEMA, "policy": plain(policy), "num_nodes": num_nodes, "spares": spares}
    with path.open("x", encoding="utf-8") as f:
        f.write(json.dumps(header) + "\n")
        f.flush()
        os.fsync(f.fileno())


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise JournalError(f"Cannot read the journal `{path}`", str(error)) from error
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn
        if isinstance(record, dict):
            yield record


def fold(path: Path, seen: Callable[[State, Event, State], None] | None = None) -> Folded:
    """Play the journal through the core. What comes out is the state at its last record.

    seen: told of each event that counts, with the states before and after it.
    """
    records = _records(path)
    header = next(records, {})
    if header.get("type") != "Header" or header.get("schema") != SCHEMA:
        raise JournalError(
            f"`{path}` is not a journal that this transom can read",
            f"its first line has type {header.get('type')!r} and schema {header.get('schema')!r}, not schema {SCHEMA}",
        )
    state = State(policy=build(Policy, header["policy"]), num_nodes=int(header["num_nodes"]))
    state = replace(state, spares=int(header.get("spares", 0)))
    epoch, last_at, events = 0, 0.0, []
    further: StepSeen | None = None  # the newest of a row of such lines, which are most of a long journal
    for record in records:
        if int(record.get("epoch", 0)) < epoch:
            continue
        epoch = int(record.get("epoch", 0))
        try:
            event = event_from_json(record)
        except BadRecord as error:
            raise JournalError(f"A record of `{path}` cannot be read", str(error)) from error
        last_at = max(last_at, event.at)
        events.append(event)
        if seen is None and isinstance(event, StepSeen) and _only_further(state, event):
            further = event if further is None or event.step > further.step else further
            continue
        if further is not None:
            state, further = decide(state, further)[0], None
        before = state
        state, _ = decide(before, event)
        if seen is not None:
            seen(before, event, state)
    if further is not None:
        state, _ = decide(state, further)
    return Folded(state, last_at, tuple(events))


def _only_further(state: State, event: StepSeen) -> bool:
    """Whether it says no more than that all goes on: of several in a row the newest step alone counts."""
    return state.phase is Phase.TRAINING and state.incident is None and event.attempt == state.attempt


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
