"""Numbers with the words that they count, in right English also for one. Pure, and light for the trainer's side."""

from __future__ import annotations


def several(number: int, what: str, more: str = "") -> str:
    """`1 node`, `3 nodes`, `12,000 steps`. more: the plural, where an s does not make it."""
    return f"{number:,} {what if number == 1 else more or what + 's'}"


def times(number: int) -> str:
    """`once`, `3 times`."""
    return "once" if number == 1 else f"{number:,} times"


def was(number: int, verb: str = "was", verbs: str = "were") -> str:
    """The verb that goes with so many."""
    return verb if number == 1 else verbs
