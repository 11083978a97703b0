"""What is told along the time of a run: the loss, the time of a step, and the goodput so far. Pure.

A point is (seconds since the epoch, value).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from transom_cli.core.goodput.shapes import NS, Kind, Launch, Span

Point = tuple[float, float]


@dataclass(frozen=True)
class Loss:
    """The loss of `step`, when it was told (seconds; 0: not known)."""

    attempt: str
    launch: int
    at: float
    step: int
    loss: float


def paces(launch: Launch) -> list[Point]:
    """Seconds a step, between each two samples that have steps between them."""
    pairs = zip(launch.samples, launch.samples[1:], strict=False)
    return [
        ((a.at + b.at) / 2 / NS, (b.at - a.at) / NS / (b.step - a.step)) for a, b in pairs if b.step > a.step
    ]  # fmt: skip


def goodputs(spans: Sequence[Span], points: int) -> list[Point]:
    """The productive share of all time from the first span's begin, at `points` times as far from each other.

    spans: without gap or overlap, in the order of time, as an account has them. Shares are from 0 to 1; the last is
    the account's own.
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
