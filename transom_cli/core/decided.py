"""What a policy has decided of a failure, as events and outcomes carry it. Pure; the standard library alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decided:
    """What a rule made of a failure.

    rule: "" where none decided. words: which rule and why, for a person; "" where that is no news.
    """

    rule: str = ""
    action: str = ""
    category: str = ""
    fingerprint: str = ""
    words: str = ""


UNDECIDED = Decided()


@dataclass(frozen=True)
class Taken:
    """What was decided of an earlier failure of the run, and when (seconds, by the clock of whoever asks)."""

    at: float
    decided: Decided
    nodes: tuple[str, ...] = ()
