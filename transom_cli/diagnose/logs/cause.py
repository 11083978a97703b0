"""Of all that logs tell, what came first in time and causality: the root, its consequences, and what stands alone.

The loudest line is a victim's, mostly. So: who knows it (`Level.AUTHORITY`) is believed, whatever was printed before;
else the first thing that went wrong (CAUSE), unless the job was ended from outside before it (ENDING); only where none
of these is there, the strongest of the victims' words (SIGN). What comes later is a consequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.blame import completed, who_lags
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.rule import Level

Survived = Callable[[Hit], bool]
_SHOWN = 12  # kinds of consequences


@dataclass(frozen=True)
class Incident:
    """root: the hit that tells. others: what it explains. culprits: () is an honest "not determinable"."""

    root: Hit
    others: tuple[Hit, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    confidence: float = 0.0
    why: tuple[str, ...] = ()

    @property
    def category(self) -> Category:
        return self.root.rule.category or Category.UNKNOWN


def incidents(
    hits: Iterable[Hit], survived: Survived = lambda hit: False, ranks: frozenset[int] = frozenset()
) -> tuple[Incident, ...]:
    """The deciding one first; () for healthy logs. survived: whether the training went on after a hit. ranks: all that
    there are, as far as the logs show it."""
    left = sorted(_often_enough(hits), key=_order)
    if len({hit.file for hit in left}) > 1:  # whose clocks nobody compares: who waits has not begun it
        left.sort(key=lambda hit: hit.rule.category is Category.NCCL_HANG)
    found: list[Incident] = []
    while left:
        root = _root(left, survived)
        if root is None:
            break
        place = left.index(root)
        others = tuple(h for n, h in enumerate(left) if h is not root and _explains(root, h, later=n > place))
        found.append(_incident(root, others, ranks))
        left = [h for h in left if h is not root and h not in others and h.rule.level >= Level.CAUSE]
    return tuple(found)


def _often_enough(hits: Iterable[Hit]) -> list[Hit]:
    hits = list(hits)
    counts = Counter[tuple[str, str]]()
    for hit in hits:
        counts[hit.file, hit.rule.name] += 1 + hit.more
    return [hit for hit in hits if counts[hit.file, hit.rule.name] >= hit.rule.times]


def _order(hit: Hit) -> tuple[float, int, str]:
    """Time, as far as it is known; of one file its own order, and files of which none has a time side by side."""
    return (hit.record.at or 0.0, hit.offset, hit.file)


def _root(hits: Sequence[Hit], survived: Survived) -> Hit | None:
    """Each kind of line is asked once whether the training went on after it: at its last one."""
    asked: dict[tuple[str, str], bool] = {}

    def over(hit: Hit) -> bool:
        if not hit.rule.lasts:
            return True
        key = hit.file, hit.rule.name
        if key not in asked:
            last = max((h for h in hits if (h.file, h.rule.name) == key), key=lambda h: h.offset)
            asked[key] = not survived(last)
        return asked[key]

    fatal = [hit for hit in hits if over(hit)]
    authority = [h for h in fatal if h.rule.level is Level.AUTHORITY]
    if authority:
        return max(authority, key=lambda h: h.rule.weight)
    first = next((h for h in fatal if h.rule.level in (Level.CAUSE, Level.ENDING)), None)
    if first is not None:
        return first if first.rule.level is Level.CAUSE else _ending(fatal, first)
    return max((h for h in fatal if h.rule.level is Level.SIGN), key=lambda h: h.rule.weight, default=None)


def _ending(fatal: Sequence[Hit], first: Hit) -> Hit:
    """Of several words for one end the one that says most: "DUE TO TIME LIMIT" rather than a bare "CANCELLED"."""
    return max((h for h in fatal if h.rule.level is Level.ENDING), key=lambda h: (h.rule.weight, h is first))


def _explains(root: Hit, other: Hit, later: bool) -> bool:
    """What is weaker, what comes later, and what the rule says; not an earlier cause of another kind."""
    if other.rule.level < Level.CAUSE or other.rule.category is root.rule.category:
        return True
    return later or other.rule.category in root.rule.explains


def _incident(root: Hit, others: tuple[Hit, ...], ranks: frozenset[int]) -> Incident:
    culprits: tuple[Culprit, ...] = (root.culprit,)
    why: tuple[str, ...] = ()
    if root.rule.category is Category.NCCL_HANG:
        lagging = who_lags([root, *others], ranks)
        if lagging is not None:
            culprits, why = lagging
    culprits = completed(culprits, (root, *others), root)
    same = [h for h in others if h.rule.name == root.rule.name and h.record.rank != root.record.rank]
    told = tuple(dict.fromkeys(c for c in culprits if c != Culprit()))
    signs = any(h.rule.level <= Level.ENDING for h in others)
    sure = min(0.99, root.rule.confidence + (0.05 if signs or same else 0.0))
    return Incident(root, others, told, round(sure, 2), why)


def consequences(incident: Incident) -> tuple[str, ...]:
    """In words, by kind, the commonest first."""
    counts: Counter[str] = Counter()
    ranks: dict[str, set[int]] = {}
    for hit in incident.others:
        counts[hit.rule.name] += 1 + hit.more
        if hit.record.rank is not None:
            ranks.setdefault(hit.rule.name, set()).add(hit.record.rank)
    told = []
    for name, count in counts.most_common(_SHOWN):
        of = f" of {len(ranks[name])} ranks" if len(ranks.get(name, ())) > 1 else ""
        told.append(f"{name}: {count} line{'s' if count > 1 else ''}{of}")
    return tuple(told)
