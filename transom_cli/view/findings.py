"""Results of `transom check` and `transom doctor` as text. Pure.

What several nodes have in common is one line, with the nodes folded as Slurm writes them.
"""

import textwrap
from collections.abc import Sequence

from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.errors import printable
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.report import Report, by_weight, summary_line

ABOUT = 17  # width of a symptom's subject
_NAMES = {Verdict.PASS: "pass", Verdict.MONITOR: "monitor", Verdict.SUSPECT: "SUSPECT", Verdict.FAIL: "FAIL"}
_SHOWN = (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR)

# --- transom check ---


def check_lines(report: Report, width: int = 100, *, verbose: bool = False) -> list[str]:
    """Return the verdict, findings, and the nodes that passed.

    Args:
        verbose: Also list what passed, does not apply or is unknown, node by node.
    """
    lines = _wrapped(printable(summary_line(report)), "", "  ", width)
    shown = [f for f in by_weight(report.findings) if verbose or f.verdict in _SHOWN]
    for found, nodes in _groups(shown):
        lines += _finding(found, nodes, width)
    bad = {f.node for f in report.findings if f.verdict.bad}
    seen = {f.node for f in report.findings if f.verdict is not Verdict.UNKNOWN}
    fit = [n for n in report.nodes if n in seen and n not in bad]
    for word, nodes in (("fit", fit), ("unknown", [n for n in report.nodes if n not in seen])):
        lines += _wrapped(f"{word:<8} {_folded(nodes)}", "  ", " " * 11, width) if nodes else []
    unknown = sorted({f.check for f in report.findings if f.verdict is Verdict.UNKNOWN})
    if unknown and not verbose and len(report.silent) < len(report.nodes):
        lines += _wrapped(f"without a result: {', '.join(unknown)} (`--verbose` shows why)", "  ", "    ", width)
    for note in report.notes:
        lines += _wrapped(f"note: {printable(note)}", "  ", "    ", width)
    return lines


def _groups(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Group findings that differ only in the node."""
    groups: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for f in findings:
        key = (f.check, f.verdict, f.evidence, f.remedy, f.device, f.applies)
        groups.setdefault(key, (f, []))[1].append(f.node)
    return list(groups.values())


def _finding(found: Finding, nodes: list[str], width: int) -> list[str]:
    what = "n/a" if not found.applies else _NAMES.get(found.verdict, "unknown")
    device = f" {found.device}" if found.device else ""
    remedy = f" [{found.remedy.value.replace('_', ' ')}]" if found.remedy.value != "none" else ""
    text = printable(f"{found.check}{device}: {found.evidence}{remedy}")
    return _wrapped(f"{what:<8} {_folded(nodes)}  {text}", "  ", " " * 11, width)


def _folded(nodes: Sequence[str]) -> str:
    from transom_cli.slurm.parse import fold_nodes

    return printable(fold_nodes(nodes))


def _wrapped(text: str, first: str, more: str, width: int) -> list[str]:
    lines = textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=more,
        break_on_hyphens=False,
        break_long_words=True,
    )
    return lines or [first]


# --- transom doctor ---


def symptom_lines(one: Symptom, width: int = 100) -> list[str]:
    """Return the grade, the message, and below it a hint if there is something to do."""
    head = f"{one.grade.value:<5} {printable(one.about):<{ABOUT}} "
    room = max(20, width - len(head))
    lines = textwrap.wrap(printable(one.words), room, break_on_hyphens=False)
    if one.hint and one.grade is not Grade.OK:
        for each in one.hint.splitlines():
            hint = textwrap.wrap(printable(each.strip()), room - 2, break_on_hyphens=False)
            lines += [f"{'> ' if n == 0 else '  '}{line}" for n, line in enumerate(hint)]
    return [(head if n == 0 else " " * len(head)) + line for n, line in enumerate(lines or [""])]
