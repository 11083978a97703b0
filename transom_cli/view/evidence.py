"""Shortens an incident's timeline: ranks with the same evidence share an entry, and a long list is cut. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from transom_cli.core.incident import Mark
from transom_cli.plural import several
from transom_cli.view.text import some

STACKS = 12  # different pieces of evidence that are shown of an incident
MARKS = 100  # entries that are shown of an incident
_NODES = 3  # names of nodes in an entry
_RANK = re.compile(r"rank (\d+) on (\S+), (.+)", re.DOTALL)


def grouped(marks: Iterable[Mark]) -> list[Mark]:
    """Merge the evidence of ranks that differs in nothing but rank and node, at the place of the first one."""
    found: list[Mark] = []
    places: dict[tuple[str, str], int] = {}  # by evidence and its place in the order: index in `found`
    ranks: dict[int, list[tuple[int, str]]] = {}
    for mark in marks:
        match = _RANK.fullmatch(mark.words) if mark.what == "evidence" else None
        if match is None:
            found.append(mark)
            continue
        place = places.setdefault((mark.what, match[3]), len(found))
        if place == len(found):
            found.append(mark)
        ranks.setdefault(place, []).append((int(match[1]), match[2]))
    for place, members in ranks.items():
        if len(set(members)) > 1:
            numbers = ranges(sorted({rank for rank, _ in members}))
            nodes = some(tuple(dict.fromkeys(node for _, node in sorted(members))), _NODES)
            evidence = found[place].words.partition(", ")[2]
            found[place] = replace(found[place], words=f"ranks {numbers} on {nodes}: {evidence}")
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers: `0-7, 12`."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0]):
        same = [number for _, number in run]
        parts.append(str(same[0]) if len(same) == 1 else f"{same[0]}-{same[-1]}")
    return some(tuple(parts), 16)


def bounded(marks: Sequence[Mark], command: str) -> list[Mark]:
    """Cut a long list of evidence, and a long list of marks in its middle. command: what shows all of it."""
    evidence = [n for n, mark in enumerate(marks) if mark.what == "evidence"]
    cut = set(evidence[STACKS:])
    kept = [mark for n, mark in enumerate(marks) if n not in cut]
    if cut:
        last = evidence[STACKS - 1]
        more = replace(marks[last], words=f"{several(len(cut), 'more stack')}; `{command}` shows them")
        kept.insert(last + 1, more)
    if len(kept) > MARKS:
        half = MARKS // 2
        left = len(kept) - 2 * half
        gap = replace(
            kept[half], what="left_out", words=f"{several(left, 'entry', 'entries')} left out; `{command}` shows them"
        )
        kept = [*kept[:half], gap, *kept[-half:]]
    return kept
