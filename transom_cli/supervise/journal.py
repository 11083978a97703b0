"""The operator's journal: one JSON record per line, appended and synced before its actions run.

The first line is a header with the policy; every other line holds an event and the epoch of the operator that wrote it.
Records of an epoch older than one before them come from a fenced writer and do not count. A torn line (a crash,
a full disk) can only be the last of its epoch; it is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom_cli import __version__
from transom_cli.core.codec import BadRecord, build, event_from_json, event_to_json, plain
from transom_cli.core.events import CheckpointSeen, Event, StepSeen
from transom_cli.core.journal_times import JournalTimes
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Policy, Request, State
from transom_cli.errors import TransomError
from transom_cli.files import open_private
from transom_cli.layout import RUN_FORMAT, RunDir, other_format, resuming
from transom_cli.supervise.journal_snapshot import Snapshot, SnapshotWriter, read_snapshot

if TYPE_CHECKING:
    from typing import TypeGuard

CHECKPOINT_EVERY = 60.0  # seconds between two checkpoint events of an undisturbed training in the journal
FREQUENT = 100  # checkpoint events after which they are that rare; a short run has all of them
BLOCK = 1 << 20  # bytes to read at once
_PLAIN = re.compile(
    rb'\{"epoch": (\d+), "type": "(?:StepSeen|CheckpointSeen)", "at": (\d+\.\d+), (?:"attempt": "([\d.]+)", )?'
    rb'"step": (\d+)(?:, "since_start": (true|false))?\}'
)
"""A line as `Journal` writes it: epoch, time, attempt, step, whether it counts from the start of the processes."""
_NONE = (0.0, -1)

Seen = Callable[[State, Event, State], None]  # an event, with the states before and after it


class JournalError(TransomError):
    """The journal cannot be read or written."""

    kind = "journal"
    advice = "check the file system of the run directory: `df -h`, `quota`, `ls -l`"


@dataclass(frozen=True)
class Folded:
    """What a journal says after its last record. times: moments that the state does not keep."""

    state: State
    last_at: float
    times: JournalTimes


def write_header(path: Path, policy: Policy, num_nodes: int, spares: int = 0, fewest: int = 0) -> None:
    """Begin a run's journal. Called once, when the run directory is made.

    num_nodes: spares included. fewest: nodes to train on if others are lost; 0: all but the spares.
    """
    header = {"type": "Header", "format": RUN_FORMAT, "transom": __version__, "policy": plain(policy)}
    header |= {"num_nodes": num_nodes, "spares": spares} | ({"min_nodes": fewest} if fewest else {})
    with open_private(path, "x", encoding="utf-8") as f:
        f.write(json.dumps(header) + "\n")
        f.flush()
        os.fsync(f.fileno())


class Folding:
    """Plays a journal through the core, and on the next call continues with the records added since.

    Without `seen`, it begins at the journal's snapshot, if there is one.

    Args:
        seen: Called for each event that counts, with the states before and after it.
        each_step: Play each event. Otherwise, a row of steps and checkpoints of undisturbed training is played at once:
            each is reported with the state before the row, and of checkpoints within a minute only the newest.
    """

    def __init__(self, path: Path, seen: Seen | None = None, *, each_step: bool = True) -> None:
        self._path, self._seen = path, seen
        self._each_step = each_step and seen is not None
        self._begin()

    def _begin(self) -> None:
        self._offset, self._state, self._epoch, self._last_at = 0, State(), 0, 0.0
        self._times = JournalTimes()
        self._row: dict[type[Event], StepSeen | CheckpointSeen] = {}  # the newest of each kind, not yet played
        self._held = _NONE  # time and step of a checkpoint that was not reported either
        self._reported = float("-inf")  # when a checkpoint was last reported
        self._checkpoints = 0  # reported so far
        self._rows = False  # steps and checkpoints need not be played one by one
        self._stepping, self._since_start = b"", False  # the attempt that steps, and how it counts
        self._header = False  # the first line was read

    def more(self) -> Folded:
        """Return the state at the last record in the file. Raises JournalError."""
        try:
            for line in self._lines():
                self._line(line)
            if not self._header:
                raise _not_a_journal(self._path, {})
        except JournalError:
            self._begin()
            raise
        except OSError as error:
            raise _damaged(
                f"Cannot read the journal `{self._path}`", error.strerror or str(error), self._path
            ) from error
        self._release()
        self._catch_up()
        return Folded(self._state, self._last_at, replace(self._times))

    def _lines(self) -> Iterator[bytes]:
        """Yield what was not read yet, in whole lines; the last one also without a line break, if it is whole."""
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._begin()  # another file
            file.seek(self._offset)
            if not self._header:
                line = file.readline()
                self._offset += len(line)
                yield line
                if self._seen is None and (snapshot := read_snapshot(self._path)) is not None:
                    self._start_from(snapshot)
                    file.seek(self._offset)
            rest = b""
            while block := file.read(BLOCK):
                size = len(rest) + len(block)
                *lines, rest = (rest + block).split(b"\n")
                self._offset += size - len(rest)
                yield from lines
            if _record(rest) is not None:
                self._offset += len(rest)
                yield rest

    def _start_from(self, snapshot: Snapshot) -> None:
        self._offset, self._epoch, self._last_at = snapshot.size, snapshot.epoch, snapshot.last_at
        self._times, self._state = snapshot.times, snapshot.state
        self._moved()

    def _line(self, line: bytes) -> None:
        if not self._header:
            self._state, self._header = _first_state(self._path, _record(line) or {}), True
            return
        found = _PLAIN.fullmatch(line) if self._rows else None
        if found is not None and int(found[1]) == self._epoch and self._further(found):
            return  # as most lines of a long journal
        record = _record(line)
        if record is None or int(record.get("epoch", 0)) < self._epoch:
            return
        self._epoch = int(record.get("epoch", 0))
        try:
            event = event_from_json(record)
        except BadRecord as error:
            raise _damaged(f"A record of `{self._path}` cannot be read", str(error), self._path) from error
        self._release()
        self._play(event)

    def _further(self, found: re.Match[bytes]) -> bool:
        """Take in a step or checkpoint that changes nothing but the progress. Return False if it changes more."""
        _, moment, attempt, number, since_start = found.groups()
        at, step = float(moment), int(number)
        if attempt is not None:
            if attempt != self._stepping or (since_start == b"true") != self._since_start:
                return False
            if self._held is not _NONE:
                self._release()
            if at > self._last_at:
                self._last_at = at
            self._keep(StepSeen(at, self._times.attempt, step, self._since_start))
            return True
        if at > self._last_at:
            self._last_at = at
        if step > self._held[1]:
            self._held = (at, step)
        if self._checkpoints < FREQUENT or at - self._reported >= CHECKPOINT_EVERY:
            self._release()
        return True

    def _release(self) -> None:
        """Report the newest checkpoint of the last minute."""
        at, step = self._held
        if step >= 0:
            self._held, self._reported, self._checkpoints = _NONE, at, self._checkpoints + 1
            self._keep(CheckpointSeen(at, step))

    def _keep(self, event: StepSeen | CheckpointSeen) -> None:
        """Add an event to the row. The times are those of the present attempt."""
        kind = type(event)
        if (known := self._row.get(kind)) is None or event.step > known.step:
            self._row[kind] = event
        if isinstance(event, StepSeen):
            self._times.stepped(event)
        else:
            self._times.saved(event.at, event.step)
        if self._seen is not None:
            self._seen(self._state, event, self._state)

    def _play(self, event: Event) -> None:
        self._last_at = max(self._last_at, event.at)
        if self._rows and only_further(event, self._state):
            self._keep(event)
            return
        self._catch_up()
        before = self._state
        self._state, _ = decide(before, event)
        self._moved()
        self._announce(before, event)

    def _moved(self) -> None:
        self._rows = not self._each_step and undisturbed(self._state)
        self._stepping, self._since_start = self._state.attempt.encode(), self._state.progress.since_start

    def _announce(self, before: State, event: Event) -> None:
        self._times.hear(event, self._times.attempt if before is self._state else self._state.attempt)
        if self._seen is not None:
            self._seen(before, event, self._state)

    def _catch_up(self) -> None:
        if self._row:
            for event in self._row.values():
                self._state, _ = decide(self._state, event)
            self._row.clear()


def fold(path: Path, seen: Seen | None = None, *, each_step: bool = True) -> Folded:
    """Play the journal through the core, once. As `Folding`."""
    return Folding(path, seen, each_step=each_step).more()


def read_events(path: Path) -> tuple[Event, ...]:
    """Return every event of a journal that counts, also those that changed nothing."""
    found: list[Event] = []
    fold(path, lambda _before, event, _after: found.append(event))
    return tuple(found)


def undisturbed(state: State) -> bool:
    """Whether the run trains without a fault, so that steps and checkpoints change nothing but its progress."""
    return state.phase is Phase.TRAINING and state.incident is None and state.saves_fail is None


def only_further(event: Event, state: State) -> TypeGuard[StepSeen | CheckpointSeen]:
    """Whether an event of an `undisturbed` run can be left out if a newer one of its kind follows at once."""
    if isinstance(event, StepSeen):
        return event.attempt == state.attempt and event.since_start == state.progress.since_start
    return isinstance(event, CheckpointSeen)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # torn
    return record if isinstance(record, dict) else None


def _first_state(path: Path, header: dict[str, Any]) -> State:
    if header.get("type") != "Header":
        raise _not_a_journal(path, header)
    if header.get("format") != RUN_FORMAT:
        raise JournalError(*other_format(RunDir(path.parent), header, __version__))
    request = Request(int(header["num_nodes"]), int(header.get("spares", 0)), fewest=int(header.get("min_nodes", 0)))
    return State(policy=build(Policy, header["policy"]), request=request)


def _not_a_journal(path: Path, header: dict[str, Any]) -> JournalError:
    found = f"has the type {header['type']!r}" if header.get("type") else "is empty or damaged"
    return _damaged(f"`{path}` is not a journal of transom", f"its first line {found}", path)


def _damaged(what: str, why: str, path: Path) -> JournalError:
    restart = "cancel the run's job (`squeue --me` shows it) and start a new run"
    return JournalError(
        what, why, f"restore the file if you have a copy, or {restart}:\n{resuming(RunDir(path.parent))}"
    )


class Journal:
    """The writing end, owned by one operator (one epoch).

    Attributes:
        alone: Nobody else has written since our first line, and no try of ours has failed.
        size, last_line: The journal's length after our last line, and that line.
        snapshots: Set by an operator that has read what the journal said before.
    """

    def __init__(self, path: Path, epoch: int) -> None:
        self.path, self.epoch = path, epoch
        self.alone, self.size, self.last_line = True, 0, ""
        self.snapshots: SnapshotWriter | None = None
        self._held: CheckpointSeen | None = None
        self._checkpoint_at, self._checkpoints = float("-inf"), 0  # when one was last written, and how many were
        try:
            self._torn = not _ends_line(path)  # an earlier writer died in the middle of a line
            self._file = open_private(path, "ab", buffering=0)
        except OSError as error:
            raise JournalError(f"Cannot open the journal `{path}`", str(error)) from error

    def append(self, event: Event, after: State | None = None) -> None:
        """Write an event. It is durable when this returns; if it raises, nothing may be done.

        It may be tried again: what a failed try left behind is kept apart as a torn line.

        Args:
            after: The state after all events so far, for a snapshot.

        Raises:
            JournalError: The disk is full, or the file system does not respond.
        """
        events = [one for one in (self._held, event) if one is not None]
        lines = [json.dumps({"epoch": self.epoch, **event_to_json(one)}) for one in events]
        data = ("\n" * self._torn + "\n".join(lines) + "\n").encode()
        left = memoryview(data)
        try:
            while left:
                written = self._file.write(left)
                self._torn = True
                left = left[written:]
            os.fsync(self._file.fileno())
            self._torn = False
            end = self._file.tell()
        except OSError as error:
            self.alone = False
            raise JournalError(f"Cannot write the journal `{self.path}`", str(error)) from error
        self.alone = self.alone and (not self.size or end - len(data) == self.size)
        self.size, self.last_line, self._held = end, lines[-1], None
        if any(isinstance(one, CheckpointSeen) for one in events):
            self._checkpoint_at, self._checkpoints = event.at, self._checkpoints + 1
        if self.snapshots is not None and after is not None:
            self.snapshots.wrote(self, events, after)

    def hold(self, event: CheckpointSeen, after: State) -> None:
        """Keep a checkpoint event that no action follows: write the newest one of a minute, before any other event.

        An operator that dies before loses nothing: its successor looks for the newest checkpoint itself.
        """
        if self._held is None or event.step > self._held.step:
            self._held = event
        self.write_held(event.at, after)

    def write_held(self, now: float, after: State | None = None) -> None:
        """Write the checkpoint event that is held, if a minute has passed since the last one. Raises JournalError."""
        due = self._checkpoints < FREQUENT or not 0 <= now - self._checkpoint_at < CHECKPOINT_EVERY
        if self._held is not None and due:
            held, self._held = self._held, None
            try:
                self.append(held, after)
            except JournalError:
                self._held = held
                raise

    def close(self) -> None:
        with contextlib.suppress(JournalError):
            self.write_held(float("inf"))
        self._file.close()


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() == b"\n"


def step_and_remember(state: State, event: Event, journal: Journal) -> tuple[State, tuple[Action, ...]]:
    """Decide, and put the event in the journal if it changed anything; only then may its actions be done."""
    after, actions = decide(state, event)
    if not actions and after == state:
        journal.write_held(event.at, after)
    elif not actions and isinstance(event, CheckpointSeen) and undisturbed(state):
        journal.hold(event, after)
    else:
        journal.append(event, after)
    return after, actions
