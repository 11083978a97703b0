"""Sums of a run's spans: by kind, by attempt, by cause; and what share of which time was productive. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from transom_cli.core.goodput.partition import START, partition
from transom_cli.core.goodput.shapes import Cause, History, Kind, Span

_NO_NODES = (Kind.QUEUE, Kind.HOLD, Kind.IDLE)
_NOT_WANTED = (Kind.HOLD, Kind.IDLE)


@dataclass(frozen=True)
class Sums:
    """ns by kind; each is there, and together they are `wall`."""

    ns: Mapping[Kind, int]

    @property
    def wall(self) -> int:
        return sum(self.ns.values())

    def without(self, *kinds: Kind) -> int:
        return sum(n for kind, n in self.ns.items() if kind not in kinds)

    def share(self, *without: Kind) -> float | None:
        """Productive, of all that is not of these kinds; None where there is none."""
        whole = self.without(*without)
        return self.ns[Kind.PRODUCTIVE] / whole if whole else None

    @property
    def goodput(self) -> float | None:
        """Of the wall time since submission."""
        return self.share()

    @property
    def ettr(self) -> float | None:
        """Meta's effective training time ratio: of the time in which the run had nodes, or was eligible for them."""
        return self.share(*_NOT_WANTED)

    @property
    def runtime(self) -> float | None:
        """Google's runtime goodput: of the time in which the run had its nodes."""
        return self.share(*_NO_NODES)


@dataclass(frozen=True)
class Category:
    """All causes of one category (as in `Cause`), so many, and what they cost together."""

    name: str
    causes: int
    sums: Sums


@dataclass(frozen=True)
class Account:
    """spans: in the order of time, without gap or overlap, from the submission to `until`."""

    begin: int
    until: int
    over: bool
    beats: bool
    spans: tuple[Span, ...]
    causes: tuple[Cause, ...]
    whole: Sums
    attempts: tuple[tuple[str, Sums], ...]
    by_cause: tuple[tuple[Cause, Sums], ...]  # of time that was lost for a reason, the most expensive first
    by_category: tuple[Category, ...]  # the same, put together


def account(history: History) -> Account:
    spans, causes = partition(history)
    named = {cause.key: cause for cause in causes}
    lost = [span for span in spans if span.cause]
    priced = [(named[key], sums) for key, sums in _grouped(lost, lambda span: span.cause).items()]
    kinds = _grouped(lost, lambda span: _category(named[span.cause]))
    categories = [Category(k, sum(_category(c) == k for c, _ in priced), sums) for k, sums in kinds.items()]
    return Account(
        begin=history.begin,
        until=history.until,
        over=history.over,
        beats=history.beats,
        spans=spans,
        causes=causes,
        whole=_sums(spans),
        attempts=tuple((key, sums) for key, sums in _grouped(spans, lambda span: span.attempt).items() if key),
        by_cause=tuple(sorted(priced, key=lambda one: -one[1].wall)),
        by_category=tuple(sorted(categories, key=lambda one: -one.sums.wall)),
    )


def _category(cause: Cause) -> str:
    """The start of a run is one of its own: no fault made it take its time."""
    return cause.category or (START if cause.key == START else "unknown")


def cost(of: Account, key: str) -> Sums | None:
    """What an incident has cost so far; None where the account has none of that name."""
    return next((sums for cause, sums in of.by_cause if cause.key == key), None)


def _grouped(spans: Iterable[Span], key: Callable[[Span], str]) -> dict[str, Sums]:
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(key(span), []).append(span)
    return {name: _sums(found) for name, found in groups.items()}


def _sums(spans: Iterable[Span]) -> Sums:
    total = dict.fromkeys(Kind, 0)
    for span in spans:
        total[span.kind] += span.length
    return Sums(total)
