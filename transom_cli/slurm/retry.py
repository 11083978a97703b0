"""Ask again, backing off, while Slurm does not answer. For reads, and for orders that are safe to repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from transom_cli.slurm.port import SlurmUnknown

T = TypeVar("T")


def backoff(tries: int, *, first: float = 0.5, cap: float = 30.0) -> float:
    """Seconds to wait after `tries` (1, 2, ...) answers that did not come: 0.5, 1, 2, 4 ... and then `cap`."""
    return min(cap, first * 2.0 ** min(tries - 1, 40))


def ask(
    call: Callable[[], T],
    deadline: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    *,
    first: float = 0.5,
    cap: float = 30.0,
) -> T:
    """`call()`, again after each SlurmUnknown, until `clock()` would pass `deadline` (seconds on that clock).

    The last SlurmUnknown surfaces then. Every other error surfaces at once: Slurm has spoken. `call` is tried at
    least once, also after the deadline. Never for `submit`: a lost answer would submit twice.
    """
    tries = 0
    while True:
        try:
            return call()
        except SlurmUnknown:
            tries += 1
            delay = backoff(tries, first=first, cap=cap)
            if clock() + delay > deadline:
                raise
        sleep(delay)
