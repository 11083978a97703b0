"""Which snapshots are to become durable as well, and who waits for it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from transom_cli.ckpt.failures import RanksDiffer
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.schedule.intervals import span
from transom_cli.ckpt.schedule.schedule import AUTO
from transom_cli.errors import UsageError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh])")


class Rule:
    """Every n-th save, the first after so much time, or as `pace.schedule` finds best. Rank 0's word goes for all."""

    def __init__(self, persist: int | str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises UsageError."""
        self._every: int | None = None
        self._auto = persist == AUTO
        self._seconds = 0.0
        self._hurry = False
        self._count, self._clock, self._last = 0, clock, clock()
        found = _TIME.fullmatch(persist) if isinstance(persist, str) else None
        if found is not None and float(found[1]) > 0:
            self._seconds = float(found[1]) * _SECONDS[found[2]]
        elif type(persist) is int and persist >= 1:
            self._every = persist
        elif not self._auto:
            raise UsageError(
                f"persist={persist!r} is neither a number of saves nor a time nor {AUTO!r}",
                "it says how often a snapshot is made durable as well",
                'persist=10 (every tenth), or persist="10m" (also "30s", "1h")',
            )

    @property
    def words(self) -> str:
        """Which become durable; nothing where `ckpt.pace.schedule` finds that."""
        if self._auto:
            return ""
        if self._every is None:
            return f"the first after {span(self._seconds)} is made durable"
        return "each is made durable" if self._every == 1 else f"one of {self._every} is made durable"

    def hurry(self) -> None:
        """The training goes on from what is in memory alone: were it killed again and again before the n-th save,
        nothing would ever become durable. So the next save does."""
        self._hurry = True

    def left(self, found: int) -> tuple[int | None, float]:
        """As things stand, how many saves there are until one becomes durable, that one included; or None, and in how
        many seconds the first one will. `found`: as for `due`."""
        every = self.every(found)
        if every is not None:
            return 1 if self._hurry else max(1, every - self._count), 0.0
        return None, 0.0 if self._hurry else max(0.0, self._last + self._seconds - self._clock())

    def every(self, found: int) -> int | None:
        """Of how many saves one becomes durable; None where that goes by the clock."""
        return found if self._auto else self._every

    def due(self, asked: bool, found: int) -> bool:
        """For one save that was made. `asked`: it is to be durable in any case. `found`: of how many one is best."""
        self._count += 1
        every = self.every(found)
        late = self._count >= every if every is not None else self._clock() - self._last >= self._seconds
        due = asked or self._hurry or late
        if due:
            self._count, self._last, self._hurry = 0, self._clock(), False
        return due


class Saving:
    """One save. `over` is done when nothing more comes of it: it is durable, or is not to be, or failed. `compared`:
    once the ranks have compared what they hold; why nothing is saved, or None."""

    def __init__(self, step: int, asked: bool) -> None:
        self.step, self.asked = step, asked
        self.began = time.monotonic()
        self.over: Future[None] = Future()
        self.compared: Future[RanksDiffer | None] = Future()


class Lasting:
    """Waits, in a thread of its own a save, until a step is durable. `told`: of each what came of it, "" or why not."""

    def __init__(self, snapshots: Snapshots, told: Callable[[Saving, str], None]) -> None:
        self._snapshots, self._told = snapshots, told
        self._open: list[Saving] = []

    def follow(self, saving: Saving) -> None:
        self._open = [former for former in self._open if not former.over.done()]
        self._open.append(saving)
        threading.Thread(target=self._watch, args=(saving,), name="transom-durable", daemon=True).start()

    @property
    def busy(self) -> bool:
        return any(not saving.over.done() for saving in self._open)

    def wait(self, step: int | None = None) -> None:
        """Until nothing is being made durable, or `step` is not."""
        for saving in list(self._open):
            if step in (None, saving.step):
                saving.over.result()

    def _watch(self, saving: Saving) -> None:
        try:
            trouble = self._snapshots.outcome(saving.step)
        except Exception as error:  # whoever waits must hear of it
            trouble = f"{type(error).__name__}: {error}"
        try:
            self._told(saving, trouble)
        finally:
            saving.over.set_result(None)
