"""What an examination gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.health.finding import Finding
from transom_cli.health.judging import Clock, Readings


@dataclass(frozen=True)
class Report:
    """findings: of all nodes, also those that are well. readings: as they came, to be recorded. seconds: by part.

    notes: what could not be done, for a person. silent: nodes that gave no sign at all.
    """

    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]
    readings: Readings
    clocks: dict[str, Clock]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    matrix: tuple[tuple[str, str, float], ...] = ()  # from, to, seconds of delay
