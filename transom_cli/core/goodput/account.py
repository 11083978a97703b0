"""The account of a run's time: sums by kind, attempt, cause and category, shares, and time series. Pure."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.core.goodput.model import NS, Cause, History, Kind, Launch, Span
from transom_cli.core.goodput.partition import START, partition

_NO_NODES = (Kind.QUEUE, Kind.HOLD, Kind.IDLE)
_NOT_ELIGIBLE = (Kind.HOLD, Kind.IDLE)


@dataclass(frozen=True)
class Sums:
    """Nanoseconds by kind. Every kind has an entry; their sum is `wall`."""

    ns: Mapping[Kind, int]

    @property
    def wall(self) -> int:
        return sum(self.ns.values())

    def without(self, *kinds: Kind) -> int:
        return sum(n for kind, n in self.ns.items() if kind not in kinds)

    def share(self, *without: Kind) -> float | None:
        """Return the productive share of the time without these kinds; None if there is no such time."""
        whole = self.without(*without)
        return self.ns[Kind.PRODUCTIVE] / whole if whole else None

    @property
    def goodput(self) -> float | None:
        """Share of the wall time since submission."""
        return self.share()

    @property
    def ettr(self) -> float | None:
        """Meta's effective training time ratio: share of the time with nodes or eligible for them."""
        return self.share(*_NOT_ELIGIBLE)

    @property
    def runtime(self) -> float | None:
        """Google's runtime goodput: share of the time with nodes."""
        return self.share(*_NO_NODES)


@dataclass(frozen=True)
class Category:
    """All causes of one category, or kind of recovery. causes: their number."""

    name: str
    causes: int
    sums: Sums


@dataclass(frozen=True)
class Account:
    """The account of a run."""

    begin: int
    until: int
    over: bool
    steps_seen: bool
    spans: tuple[Span, ...]  # in order of time, without gap or overlap, from submission to `until`
    causes: tuple[Cause, ...]
    whole: Sums
    attempts: tuple[tuple[str, Sums], ...]
    by_cause: tuple[tuple[Cause, Sums], ...]  # lost time by cause, the most expensive first
    by_category: tuple[Category, ...]  # the same by category
    # the same by how the training continued, without causes after which it has not
    by_recovery: tuple[Category, ...] = ()
    from_zero: bool = False  # as in `History`


def account(history: History) -> Account:
    spans, causes = partition(history)
    named = {cause.key: cause for cause in causes}
    lost = [span for span in spans if span.cause]
    priced = [(named[key], sums) for key, sums in _grouped(lost, lambda span: span.cause).items()]
    continued = [span for span in lost if named[span.cause].how is not None]

    def by(name: Callable[[Cause], str], spans: list[Span]) -> tuple[Category, ...]:
        kinds = _grouped(spans, lambda span: name(named[span.cause]))
        found = [Category(kind, sum(name(cause) == kind for cause, _ in priced), sums) for kind, sums in kinds.items()]
        return tuple(sorted(found, key=lambda one: -one.sums.wall))

    return Account(
        begin=history.begin,
        until=history.until,
        over=history.over,
        steps_seen=history.steps_seen,
        spans=spans,
        causes=causes,
        whole=_sums(spans),
        attempts=tuple((key, sums) for key, sums in _grouped(spans, lambda span: span.attempt).items() if key),
        by_cause=tuple(sorted(priced, key=lambda one: -one[1].wall)),
        by_category=by(_category, lost),
        by_recovery=by(lambda cause: cause.recovery, continued),
        from_zero=history.from_zero,
    )


def _category(cause: Cause) -> str:
    """The start of a run is a category of its own, because no fault caused it."""
    return cause.category or (START if cause.key == START else "unknown")


def cost(of: Account, key: str) -> Sums | None:
    """Return the cost of an incident so far; None if the account does not have it."""
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


# --- time series ---

Point = tuple[float, float]
"""Unix time and value."""


@dataclass(frozen=True)
class Loss:
    """The loss of a step. at: when it was reported (Unix time; 0: unknown)."""

    attempt: str
    launch: int
    at: float
    step: int
    loss: float


def step_times(launch: Launch) -> list[Point]:
    """Return seconds per step, between consecutive samples."""
    pairs = zip(launch.samples, launch.samples[1:], strict=False)
    return [
        ((a.at + b.at) / 2 / NS, (b.at - a.at) / NS / (b.step - a.step)) for a, b in pairs if b.step > a.step
    ]  # fmt: skip


def goodput_series(spans: Sequence[Span], points: int) -> list[Point]:
    """Return the productive share (0 to 1) of the time so far, at `points` equally spaced times.

    Args:
        spans: As an account has them. The last value is the account's goodput.
    """
    if not spans or points < 1:
        return []
    begin, whole = spans[0].begin, spans[-1].end - spans[0].begin
    if not whole:
        return []
    begins = [span.begin for span in spans]
    before = [0]  # productive ns before each span
    for span in spans:
        before.append(before[-1] + _productive(span, span.end))
    found = []
    for n in range(1, points + 1):
        at = begin + whole * n // points
        here = bisect_right(begins, at) - 1
        if at > begin:
            found.append((at / NS, (before[here] + _productive(spans[here], at)) / (at - begin)))
    return found


def _productive(span: Span, until: int) -> int:
    return min(until, span.end) - span.begin if span.kind is Kind.PRODUCTIVE else 0
