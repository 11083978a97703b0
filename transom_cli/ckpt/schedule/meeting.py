"""How all ranks come to the same cadence: by what they exchange anyway while a save is written, no more collectives.

Every rank sends what it measured along with each of the writer's exchanges, and rank 0 also the cadence that holds.
The first exchange that all ranks make for one and the same scheduled save settles the next cadence: each computes it
from the same numbers, and from rank 0's cadence, so that ranks which ever came apart come together again.

The exchange is made in the background, so a rank's training may be further by then. What was settled at save n counts
from `LOOK` steps after n on, or from the next save if that is sooner: there each rank waits for it. Ranks that train
together have all come by save n long before, so there is nothing to wait for; and a rank that is behind needs nothing
of one that is ahead to get there, no more than for save n itself.

What is settled at saves that are not scheduled (a flush, `force`) would not do: not all ranks need make those.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.schedule.cadence import Cadence, Measured, retune, slowest

LOOK = 10  # steps


@dataclass(frozen=True)
class Note:
    """What one rank has to say at a scheduled save."""

    step: int
    measured: Measured
    cadence: Cadence | None  # rank 0's, as it held when this save was made


class Meeting:
    """One save's. Made in the training's thread, settled in the background thread."""

    def __init__(self, note: Note | None) -> None:
        self._note = note
        self._settled: Cadence | None = None
        self._over = threading.Event()
        if note is None:  # not a scheduled save
            self._over.set()

    @property
    def note(self) -> Note | None:
        """What is still to be sent: nothing once the ranks have met."""
        return None if self._over.is_set() else self._note

    def hear(self, notes: list[Note | None]) -> None:
        """The notes of all ranks, by rank, from one exchange."""
        mine = self.note
        told = [note for note in notes if note is not None and mine is not None and note.step == mine.step]
        if not told or len(told) < len(notes) or told[0].cadence is None:
            return
        self._settled = retune(told[0].cadence, slowest([note.measured for note in told]))
        self._over.set()

    def end(self) -> None:
        """Nothing more will be heard."""
        self._over.set()

    def outcome(self) -> Cadence | None:
        """Wait until the ranks have met. None: they have not, since the save failed before."""
        self._over.wait()
        return self._settled


class Carrier(Ranks):
    """The same ranks for the writer, with notes beside its own values. Used in the background thread alone."""

    def __init__(self, ranks: Ranks) -> None:
        self.size, self.rank, self._own = ranks.size, ranks.rank, ranks._own  # no process group of its own
        self.meeting: Meeting | None = None

    def gather(self, value: Any) -> list[Any]:
        told = super().gather((value, self.meeting.note if self.meeting is not None else None))
        if self.meeting is not None:
            self.meeting.hear([note for _, note in told])
        return [value for value, _ in told]
