"""What healthy lines look like: the templates of a run, or of several. Pure values; `miner` finds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from transom_cli.diagnose.unknown.miner import Miner


@dataclass(frozen=True)
class Template:
    """words: as `tokens.words_of` makes them, "<*>" where lines differ. count: lines that were of it."""

    words: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True)
class Templates:
    """lines: how many were read for it, blank ones too. The rarest may have been forgotten (`miner.TEMPLATES`)."""

    templates: tuple[Template, ...] = ()
    lines: int = 0

    def merge(self, other: Templates) -> Templates:
        """Whatever is known to one of them is known to both together, as far as there is room."""
        both = Miner(lines=self.lines + other.lines)
        for template in sorted((*self.templates, *other.templates), key=lambda t: (-t.count, t.words)):
            both.put(template.words, template.count)
        return of(both)

    def knows(self, line: str) -> bool:
        """Whether the line looks like one of the healthy ones. A blank line is known."""
        return not line.strip() or self._index.find(line) is not None

    @cached_property
    def _index(self) -> Miner:
        index = Miner()
        for template in self.templates:
            index.put(template.words, template.count)
        return index


def mine(lines: Iterable[str]) -> Templates:
    """The templates of these lines, in one pass and in bounded memory; some 10 microseconds a line.

    The lines are those of a healthy phase: sample them (`tape`) where there are millions.
    """
    miner = Miner()
    for line in lines:
        miner.add(line)
    return of(miner)


def of(miner: Miner) -> Templates:
    """The most frequent first."""
    found = (Template(c.words, c.count) for c in miner.clusters)
    return Templates(tuple(sorted(found, key=lambda t: (-t.count, t.words))), miner.lines)
