"""Small parts of other ranks' shares, from those ranks themselves.

What all ranks hold alike (step counters, buffers, plain values) stands in one rank's share alone. A share is checked as
a whole, so for a kilobyte of it each rank would bring it here and read all of it. Its own rank has done so already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from transom_cli.ckpt.names import rank_of_data
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore.placing import Wanted
from transom_cli.ckpt.save.publishing import words

SMALL = 16 << 20  # bytes wanted of a share

Part = tuple[str, int, int]  # of a data file: its name, where the part begins, bytes
Parts = dict[Part, bytes]


def divide(wanted: dict[str, Wanted], ranks: Ranks) -> tuple[dict[str, Wanted], dict[str, Wanted]]:
    """What this rank reads itself, and what it asks other ranks for."""
    near: dict[str, Wanted] = {}
    far: dict[str, Wanted] = {}
    for name, some in wanted.items():
        owner = rank_of_data(name)
        others = owner is not None and owner != ranks.rank and owner < ranks.size
        (far if others and sum(length for *_, length in parts(name, some)) <= SMALL else near)[name] = some
    return near, far


def parts(name: str, wanted: Wanted) -> list[Part]:
    tensors = [(name, one.start, one.length) for one in wanted.tensors]
    return tensors + [(name, one.start, one.length) for one in wanted.objects]


def exchange(asked: Iterable[Part], ranks: Ranks, serve: Callable[[Part], bytes]) -> Parts:
    """A collective. Raises OSError, in the words of the rank that could not serve what is asked for here."""
    wanted = list(asked)
    everyones = {part for of_rank in ranks.gather(wanted) for part in of_rank}
    mine: Parts = {}
    trouble = ""
    try:
        mine = {part: serve(part) for part in sorted(everyones) if rank_of_data(part[0]) == ranks.rank}
    except Exception as error:  # the others wait
        trouble = words(error)
    found: Parts = {}
    troubles: list[str] = []
    for served, why in ranks.gather((mine, trouble)):
        found |= served
        troubles.append(why)
    for part in wanted:
        if part not in found:
            raise OSError(f"{part[0]}: {troubles[rank_of_data(part[0]) or 0]}")
    return found
