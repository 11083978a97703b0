"""An examination as a person reads it: the verdict first, then what is bad, what is odd, and who is fit.

What several nodes have in common is one line, with the nodes folded as Slurm writes them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from transom_cli.errors import printable
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.report import Report
from transom_cli.health.summary import by_weight, in_a_line

_SAID = {Verdict.PASS: "pass", Verdict.MONITOR: "monitor", Verdict.SUSPECT: "SUSPECT", Verdict.FAIL: "FAIL"}
_TOLD = (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR)


def check_lines(report: Report, width: int = 100, *, verbose: bool = False) -> list[str]:
    """verbose: also what is well, what does not apply, and what nothing is known of, node by node."""
    lines = _wrapped(printable(in_a_line(report)), "", "  ", width)
    shown = [f for f in by_weight(report.findings) if verbose or f.verdict in _TOLD]
    for found, nodes in _groups(shown):
        lines += _finding(found, nodes, width)
    bad = {f.node for f in report.findings if f.verdict.bad}
    seen = {f.node for f in report.findings if f.verdict is not Verdict.UNKNOWN}
    fit = [n for n in report.nodes if n in seen and n not in bad]
    for word, nodes in (("fit", fit), ("unknown", [n for n in report.nodes if n not in seen])):
        lines += _wrapped(f"{word:<8} {_folded(nodes)}", "  ", " " * 11, width) if nodes else []
    unknown = sorted({f.check for f in report.findings if f.verdict is Verdict.UNKNOWN})
    if unknown and not verbose:
        lines += _wrapped(f"no answer from {', '.join(unknown)}: `--verbose` says why", "  ", "    ", width)
    for note in report.notes:
        lines += _wrapped(f"note: {printable(note)}", "  ", "    ", width)
    return lines


def _groups(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings that differ in nothing but the node, in the order of the first of each."""
    groups: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for f in findings:
        key = (f.check, f.verdict, f.evidence, f.remedy, f.device, f.applies)
        groups.setdefault(key, (f, []))[1].append(f.node)
    return list(groups.values())


def _finding(found: Finding, nodes: list[str], width: int) -> list[str]:
    what = "n/a" if not found.applies else _SAID.get(found.verdict, "unknown")
    device = f" {found.device}" if found.device else ""
    asks = f" [{found.remedy.value.replace('_', ' ')}]" if found.remedy.value != "none" else ""
    words = printable(f"{found.check}{device}: {found.evidence}{asks}")
    return _wrapped(f"{what:<8} {_folded(nodes)}  {words}", "  ", " " * 11, width)


def _folded(nodes: Sequence[str]) -> str:
    from transom_cli.slurm.parse import fold_nodes

    return printable(fold_nodes(nodes))


def _wrapped(text: str, first: str, more: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=more,
        break_on_hyphens=False,
        break_long_words=True,
    )
    return wrapped or [first]
