"""A snapshot of the operator's journal: the state after its first `size` bytes, so that readers start there.

The journal alone decides what happened. A snapshot counts only if the same version of transom wrote it and the journal
still has the snapshot's last line at that place. Otherwise, readers play the journal from its beginning.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom_cli import __version__
from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.core.journal_times import JournalTimes
from transom_cli.core.operator.state import State
from transom_cli.files import replace_text

if TYPE_CHECKING:
    from transom_cli.core.events import Event
    from transom_cli.supervise.journal import Folded, Journal

GROWTH = 128 << 10  # bytes of the journal between two snapshots, at least
LARGEST = 64 << 20  # bytes of a snapshot that is read


@dataclass(frozen=True)
class Snapshot:
    """What the first `size` bytes of a journal say. last: its last line there, without the line break."""

    size: int
    last: str
    epoch: int
    last_at: float
    state: State
    times: JournalTimes


def snapshot_path(journal: Path) -> Path:
    return journal.with_suffix(".snapshot")


def read_snapshot(journal: Path) -> Snapshot | None:
    """Return the snapshot of a journal; None if there is none that counts."""
    try:
        with snapshot_path(journal).open("rb") as file:
            found: dict[str, Any] = json.loads(file.read(LARGEST))
        if found["transom"] != __version__:
            return None
        line = str(found["last"]).encode() + b"\n"
        with journal.open("rb") as file:
            file.seek(found["size"] - len(line))
            if file.read(len(line)) != line:
                return None
        return build(Snapshot, found)
    except (OSError, ValueError, KeyError, TypeError, BadRecord):
        return None


class SnapshotWriter:
    """Writes snapshots of the operator's journal, in proportion to what the journal grows by.

    Args:
        folded: What the journal said when the operator took it over.
    """

    def __init__(self, folded: Folded) -> None:
        self._times, self._last_at = replace(folded.times), folded.last_at
        self._due = 0

    def wrote(self, journal: Journal, events: Iterable[Event], state: State) -> None:
        """Write a snapshot if one is due. events: just appended. state: what the journal leads to."""
        for event in events:
            self._times.hear(event, state.attempt)
            self._last_at = max(self._last_at, event.at)
        if journal.alone and journal.size >= self._due and not state.pending:
            self._write(journal, state)

    def _write(self, journal: Journal, state: State) -> None:
        """The state must survive being written and read, bit by bit. Otherwise there is no snapshot."""
        found = {"transom": __version__, "size": journal.size, "last": journal.last_line, "epoch": journal.epoch}
        found |= {"last_at": self._last_at, "state": plain(state), "times": asdict(self._times)}
        text = json.dumps(found)
        self._due = journal.size + max(GROWTH, len(text) // 2)
        with contextlib.suppress(BadRecord, OSError):  # a full disk: readers read more of the journal
            if build(Snapshot, json.loads(text)).state == state:
                replace_text(snapshot_path(journal.path), text)
