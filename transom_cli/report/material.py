"""All that a report is made from, as it was read from a run directory. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.core.goodput.curves import Loss
from transom_cli.supervise.book import Book
from transom_cli.ui.view import RunView


@dataclass(frozen=True)
class Found:
    """A line of an agent about its node; times: how often the same was found in that attempt, the first time `at`."""

    at: float
    attempt: str
    node: str
    kind: str
    verdict: str
    words: str
    times: int = 1


@dataclass(frozen=True)
class Examined:
    """A finding of an examination (`attempts/<a>/health`), as `health.finding.Finding` has it."""

    attempt: str
    node: str
    check: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Material:
    """losses: along the time; last: the newest one of each attempt. settings: run.toml, or why it cannot be read.

    left: what was not read because there is too much of it, in words.
    """

    book: Book
    view: RunView
    version: str
    settings: Mapping[str, Any] | str
    losses: tuple[Loss, ...] = ()
    last: tuple[Loss, ...] = ()
    found: tuple[Found, ...] = ()
    examined: tuple[Examined, ...] = ()
    left: tuple[str, ...] = ()
