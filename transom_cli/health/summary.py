"""What a person, the launcher's core and a file get to see of an examination. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from transom_cli.core.codec import plain
from transom_cli.core.events import NodeFault
from transom_cli.errors import printable
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.probe.matrix import Cell
from transom_cli.health.report import Report
from transom_cli.plural import several

SCHEMA = 1
_WORST = (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR, Verdict.UNKNOWN, Verdict.PASS)


def faults(findings: Iterable[Finding]) -> tuple[NodeFault, ...]:
    """What keeps nodes from carrying a rank: the proven first."""
    bad = sorted((f for f in findings if f.verdict.bad), key=lambda f: _WORST.index(f.verdict))
    return tuple(
        NodeFault(f.node, f.check, f.verdict.name, printable(f.evidence), f.remedy.value, f.device, f.serial)
        for f in bad
    )


def in_a_line(report: Report) -> str:
    """Of all of it."""
    bad = list(dict.fromkeys(f.node for f in report.findings if f.verdict.bad))
    counts = Counter(f.verdict for f in report.findings)
    count = several(len(report.nodes), "node")
    took = f" in {report.seconds['all']:.1f} s" if "all" in report.seconds else ""
    parts = [f"{count} examined{took}"]
    if bad:
        worst = faults(report.findings)[0]
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        parts.append(f"{worst.node}{more} bad ({worst.check}: {worst.evidence})")
    else:
        parts.append("none is bad")
    told = [f"{counts[v]} to {v.value}" for v in (Verdict.MONITOR,) if counts[v]]
    told += [f"{counts[Verdict.UNKNOWN]} checks without an answer"] if counts[Verdict.UNKNOWN] else []
    return ", ".join([*parts, *told])


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first, and what applies before what does not."""
    return sorted(findings, key=lambda f: (_WORST.index(f.verdict), not f.applies, f.check, f.node))


def document(report: Report, most: int | None = None) -> dict[str, Any]:
    """One versioned JSON document; `transom check --json` and the attempt's health folder have it.

    most: nodes; beyond them what is well is left out, and only counted ("passed"): of 1,024 nodes it is 9 MB.
    """
    told = by_weight(report.findings)
    if most is not None and len(report.nodes) > most:
        told = [f for f in told if f.verdict is not Verdict.PASS]
    return {
        "schema": SCHEMA,
        "nodes": list(report.nodes),
        "worst": worst(report.findings).value,
        "seconds": report.seconds,
        "notes": list(report.notes),
        "passed": sum(f.verdict is Verdict.PASS for f in report.findings),
        "findings": [plain(f) for f in told],
        "links": [_link(cell) for cell in report.cells],
    }


def _link(cell: Cell) -> dict[str, Any]:
    """rate: bytes a second. delay: seconds, one way."""
    return {"from": cell.src, "to": cell.dst, "device": cell.index, "rate": cell.rate, "delay": cell.delay}


def worst(findings: Iterable[Finding]) -> Verdict:
    """UNKNOWN counts for more than PASS here: a person is to hear that something was not looked at."""
    return min((f.verdict for f in findings), key=_WORST.index, default=Verdict.UNKNOWN)
