"""The curves of a run up to now, from what its journals and launchers have kept; not to be read at each look."""

from __future__ import annotations

import math
from dataclasses import dataclass

from transom_cli.core.goodput.curves import Point, goodputs, paces
from transom_cli.layout import RunDir
from transom_cli.supervise.handed import attempt_numbers
from transom_cli.supervise.ledger import read_book
from transom_cli.supervise.losses import read_losses

POINTS = 240  # of the goodput's


@dataclass(frozen=True)
class Past:
    """loss and pace (seconds a step): about one point a minute of training. goodput: %, from 0 to 100."""

    loss: tuple[Point, ...] = ()
    pace: tuple[Point, ...] = ()
    goodput: tuple[Point, ...] = ()


def read_past(run: RunDir, now: float | None = None) -> Past:
    """Raises OSError and JournalError where the run cannot be read now."""
    book = read_book(run, now)
    attempts = [run.attempt(*number) for number in sorted(attempt_numbers(run))]
    losses = [(one.at, one.loss) for attempt in attempts for one in read_losses(attempt) if math.isfinite(one.loss)]
    launches = [launch for attempt in book.history.attempts for launch in attempt.launches]
    shares = goodputs(book.account.spans, POINTS) if book.account.beats else []
    return Past(
        tuple(sorted(losses)),
        tuple(sorted(point for launch in launches for point in paces(launch))),
        tuple((at, 100 * share) for at, share in shares),
    )
