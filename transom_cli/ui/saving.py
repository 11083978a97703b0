"""What is being saved and restored, how far it is, and when the next saves come. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from transom_cli.beats.table import RankBeat
from transom_cli.ckpt.pace.coming import Coming
from transom_cli.ckpt.underway import CHECKING, WRITING, Part
from transom_cli.plural import several
from transom_cli.ui.view import SaveAhead, Underway
from transom_cli.ui.words import count, size_of, span

PATIENCE = 2.0  # seconds: what takes less is over before it is read
OFTEN = 10.0  # seconds: of saves that follow each other faster nobody waits for the next
_AT_IT = {"restore": "restoring", "checkpoint": "saving"}  # phases that ranks tell of


def under_way(parts: Iterable[Part], directory: str, now: float) -> tuple[Underway, ...]:
    """parts: of all nodes, put together. directory: of the training's checkpoints; others are copies."""
    found = []
    for part in parts:
        if now - part.began < PATIENCE:
            continue
        what, words = _named(part, directory)
        checked = " checked" if part.what == CHECKING else ""
        share = f": {size_of(part.done, part.of)}{checked}" if part.of else ""
        told = f"{words}{share}, {span(now - part.began)} so far"
        found.append(Underway(what, part.step, told, part.began, part.done, part.of, "bytes"))
    return tuple(found)


def at_it(ranks: Iterable[RankBeat]) -> Underway | None:
    """Where nothing tells bytes: what the ranks of a launch say that they are at, themselves."""
    told = list(ranks)
    for phase, what in _AT_IT.items():
        busy = [r for r in told if r.phase == phase and r.age >= PATIENCE]
        if busy:
            words = f"{what} a checkpoint: {count(len(busy))} of {several(len(told), 'rank')}"
            return Underway(what, -1, words, None, len(busy), len(told), "ranks")
    return None


def saves_ahead(
    coming: Coming, step: int, step_time: float | None, stepped: float | None, now: float
) -> tuple[SaveAhead | None, SaveAhead | None]:
    """The next save, and the next that goes to disk as well; None: not known, or not worth a word.

    step: the last that is done, `stepped`: when (wall clock). step_time: seconds.
    """
    following = coming.after(step)
    pace = step_time if stepped is not None else None

    def ahead(then: int) -> SaveAhead:
        at = stepped + (then - step) * pace if stepped is not None and pace is not None else None
        return SaveAhead(then, at if at is not None and at > now else None)  # a training that is late tells no time

    to_disk = coming.durable_after(step)
    if to_disk is None and coming.durable_from is not None and pace and stepped is not None:  # goes by the clock
        waits = coming.durable_from - stepped - (following - step) * pace
        to_disk = following + coming.every * max(0, math.ceil(waits / (coming.every * pace)))
    apart = coming.every * pace if pace is not None else OFTEN
    soon = to_disk is not None and coming.durable is not None and apart * (coming.persist or 1) < OFTEN
    return None if apart < OFTEN else ahead(following), None if to_disk is None or soon else ahead(to_disk)


def next_words(save: SaveAhead | None, durable: SaveAhead | None, now: float) -> str:
    """`next save in 40 s, to disk in 6m 12s`; "" where nothing is known."""
    if save is not None and durable is not None and save.step == durable.step:
        return f"next save {_when(save, now)}, to disk too"
    to_disk = f"to disk {_when(durable, now)}" if durable is not None else ""
    if save is None:
        return f"next save {to_disk}" if to_disk else ""
    return ", ".join(x for x in (f"next save {_when(save, now)}", to_disk) if x)


def _when(save: SaveAhead, now: float) -> str:
    return f"at step {count(save.step)}" if save.at is None else f"in {span(save.at - now)}"


def _named(part: Part, directory: str) -> tuple[str, str]:
    """What is done, as a word and in words."""
    step, elsewhere = f"step {count(part.step)}", part.place if part.place != directory else ""
    if part.what == WRITING:
        return ("copying", f"copying {step} to {elsewhere}") if elsewhere else ("saving", f"saving {step} to disk")
    return "restoring", f"restoring {step} from {elsewhere or ('disk' if part.place else 'memory')}"
