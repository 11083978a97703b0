"""An examination as a person reads it: the verdict first, then a line for each node that differs. Pure."""

from __future__ import annotations

import textwrap

from transom_cli.errors import printable
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.report import Report
from transom_cli.health.summary import by_weight, in_a_line, worst

_SAID = {Verdict.PASS: "pass", Verdict.MONITOR: "monitor", Verdict.SUSPECT: "SUSPECT", Verdict.FAIL: "FAIL"}


def check_lines(report: Report, width: int = 100, *, verbose: bool = False) -> list[str]:
    """verbose: also what is well, what does not apply, and what nothing is known of."""
    lines = [in_a_line(report)]
    for node in report.nodes:
        mine = [f for f in by_weight(report.findings) if f.node == node]
        shown = [f for f in mine if verbose or f.verdict in (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR)]
        told = _SAID.get(worst([f for f in mine if f.verdict is not Verdict.UNKNOWN]), "unknown")
        if not shown:
            lines.append(f"  {printable(node):<16} {told}")
            continue
        lines.append(f"  {printable(node):<16} {told}")
        for found in shown:
            lines += _finding(found, width)
    unknown = sorted({f.check for f in report.findings if f.verdict is Verdict.UNKNOWN})
    if unknown and not verbose:
        lines += _wrapped(f"no answer from: {', '.join(unknown)}; `--verbose` says why", "  ", width)
    for note in report.notes:
        lines += _wrapped(f"note: {printable(note)}", "  ", width)
    return lines


def _finding(found: Finding, width: int) -> list[str]:
    what = "n/a" if not found.applies else _SAID.get(found.verdict, "unknown")
    device = f" {found.device}" if found.device else ""
    asks = f" [{found.remedy.value.replace('_', ' ')}]" if found.remedy.value != "none" else ""
    words = printable(f"{found.check}{device}: {found.evidence}{asks}")
    return _wrapped(f"{what:<8} {words}", "    ", width)


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    more = indent + " " * 9
    return textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=more, break_on_hyphens=False)
