"""The nodes that runs keep away from, as rows and as lines of text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.errors import printable
from transom_cli.health.finding import Finding
from transom_cli.health.history.fold import NodeHistory, Standing
from transom_cli.health.history.records import Isolation
from transom_cli.slurm.port import Node
from transom_cli.ui.words import fit, span

LABEL = 12
_LINES = 3  # of one evidence


@dataclass(frozen=True)
class NodeRow:
    """An isolation, and what Slurm says of the node. Times are seconds of the wall clock.

    found: the check, or what the run itself saw. ended: empty while it stands; else expired, lifted, over, run over or
    resumed. slurm: in words; None where Slurm was not asked, or gave no answer. cluster: "" where it was not kept.
    """

    node: str
    how: str
    run: str
    found: str
    verdict: str
    evidence: str
    device: str
    serial: str
    remedy: str
    detail: str
    since: float
    until: float | None
    ended: str
    ended_at: float | None
    carried: bool
    slurm: str | None
    cluster: str


def node_rows(
    history: NodeHistory, now_in_slurm: Mapping[str, Mapping[str, Node]], *, ended: bool
) -> tuple[NodeRow, ...]:
    """Those that stand, newest first; with `ended` all others of the last 90 days too.

    now_in_slurm: by cluster, as the isolations name it, and node, of those clusters that answered.
    """
    rows = (_row(standing, now_in_slurm.get(standing.isolation.cluster)) for standing in history.standings)
    return tuple(row for row in rows if ended or not row.ended)


def _row(standing: Standing, now_in_slurm: Mapping[str, Node] | None) -> NodeRow:
    one = standing.isolation
    node = now_in_slurm.get(one.node) if now_in_slurm is not None else None
    resumed = one.how == "drained" and standing.run_over and node is not None and not node.drain
    return NodeRow(
        one.node,
        one.how,
        one.run,
        one.what,
        one.verdict,
        one.evidence,
        one.device,
        one.serial,
        one.remedy,
        one.detail,
        one.wall,
        standing.until,
        standing.ended or ("resumed" if resumed else ""),
        standing.ended_at,
        standing.carried and standing.run_over,
        None if now_in_slurm is None else slurm_words(node),
        one.cluster,
    )


def slurm_words(node: Node | None) -> str:
    if node is None:
        return "not a node of this cluster"
    state = f"{node.state}{', drained' if node.drain else ''}{', not responding' if node.not_responding else ''}"
    return f"{state} by {node.reason_user or 'somebody'}: {node.reason}" if node.reason else state


def node_lines(row: NodeRow, now: float, width: int = 80, here: str = "") -> list[str]:
    """here: the cluster that Slurm's commands speak to; of another one its name is told."""
    where = f", on cluster {row.cluster}" if row.cluster not in ("", here) else ""
    about = ", ".join(x for x in (row.device, f"serial {row.serial}" if row.serial else "") if x)
    remedy = "" if row.remedy == "none" else row.remedy
    proven = "proven" if row.verdict == "FAIL" else "suspected"
    lines = [fit(f"{row.node:<{LABEL - 1}} {row.how} {span(now - row.since)} ago, {_until(row, now)}", width)]
    rows = (
        (row.found, f"{row.evidence} ({proven})"),
        ("device", about),
        ("remedy", remedy),
        ("run", row.run + where),
        ("note", row.detail),
        ("slurm", row.slurm or ""),
    )
    return lines + [line for label, text in rows if text for line in _wrapped(label, text, width)]


def _wrapped(label: str, text: str, width: int) -> list[str]:
    head = f"  {fit(label, LABEL + 8):<{LABEL - 3}} "
    rest = " " * LABEL
    room = max(20, width)
    wrapped = textwrap.wrap(
        printable(text), room, initial_indent=head, subsequent_indent=rest, max_lines=_LINES, placeholder=" ..."
    )
    return [fit(line, width) for line in wrapped]


def _until(row: NodeRow, now: float) -> str:
    if row.ended:
        return f"{row.ended} {span(now - row.ended_at)} ago" if row.ended_at is not None else row.ended
    if row.until is None:
        return "until it is lifted"
    return f"{'by new runs ' if row.carried else ''}for {span(row.until - now)} more"


def lemon_lines(findings: tuple[Finding, ...], width: int = 80) -> list[str]:
    if not findings:
        return []
    return ["lemons", *(line for f in findings for line in _wrapped(f.node, f.evidence, width))]


def avoided_line(isolation: Isolation, now: float) -> str:
    """The note of a new run that keeps off a node, on one line."""
    what = printable(f"{isolation.what}: {isolation.evidence}")
    found = f"run {isolation.run} found it {span(now - isolation.wall)} ago and could not drain the node"
    return f"note: {isolation.node} is excluded: {what} ({found}); `transom nodes --lift {isolation.node}` ends that"
