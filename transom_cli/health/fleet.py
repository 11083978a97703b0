"""Compares a probe with the site's own history, and adds it to the history."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

from transom_cli.health.history.criteria import CHECK, judge_fleet
from transom_cli.health.history.files import history_dir, read_history, write_record
from transom_cli.health.history.records import Measured
from transom_cli.health.report import Report


def with_fleet(report: Report, off: frozenset[str], environ: Mapping[str, str]) -> Report:
    """Return the report with findings against the history, if the probe ran. Without a history nothing is judged."""
    now = measured(report)
    if not now or CHECK in off:
        return report
    folder = history_dir(environ)
    with contextlib.suppress(OSError):
        findings = judge_fleet(now, read_history(folder, time.time()))
        write_record(folder, "speed", now)
        return replace(report, findings=(*report.findings, *findings))
    return report


def measured(report: Report) -> tuple[Measured, ...]:
    """Return each node's rates in the probe's first look, of its slowest device."""
    if report.probe is None or not report.probe.looks:
        return ()
    kinds = {(h.node, h.index): h.kind for h in report.probe.hellos}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for one in report.probe.looks[0]:
        rates = found.setdefault((one.node, kinds.get((one.node, one.index), "")), {})
        for name, rate in one.rates:
            rates[name] = min(rate, rates.get(name, rate))
    wall = time.time()
    return tuple(Measured(wall, node, kind, tuple(rates.items())) for (node, kind), rates in found.items() if rates)
