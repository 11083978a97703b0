"""What an examination gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.health.finding import Finding
from transom_cli.health.judging import Clock, Readings
from transom_cli.health.probe.matrix import Cell
from transom_cli.health.probe.reading import ProbeReading


@dataclass(frozen=True)
class Report:
    """findings: of all nodes, also those that are well. readings: as they came, to be recorded. seconds: by part.

    notes: what could not be done, for a person. silent: nodes that gave no sign at all. cells: delay and bandwidth from
    each node to its partners. probe: what was computed and sent, None where that was not done.
    """

    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]
    readings: Readings
    clocks: dict[str, Clock]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    probe: ProbeReading | None = None
