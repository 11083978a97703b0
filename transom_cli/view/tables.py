"""Tables of isolated nodes (`transom nodes`) and policy rules (`transom policy`). Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transom_cli.core.log_lines import clean
from transom_cli.core.policy import NODE, ROLLBACK, Rule, in_words
from transom_cli.errors import printable
from transom_cli.health.finding import Finding
from transom_cli.health.history.nodes import IsolationStatus, NodeHistory
from transom_cli.health.history.records import Isolation
from transom_cli.plural import times
from transom_cli.slurm.port import Node
from transom_cli.view.text import fit, plain, span, table

LABEL = 12
_EVIDENCE_LINES = 3
_RULE_COLUMNS = ("rule", "when", "action", "from")
_ELSE = "restarted, or stopped on evidence that it would fail again; nodes are isolated as the evidence allows"

# --- isolated nodes ---


@dataclass(frozen=True)
class NodeRow:
    """An isolation, and Slurm's state of the node. Times are Unix time.

    Attributes:
        found: The check, or what the run saw.
        ended: "" while it is in force; else expired, lifted, over, run over or resumed.
        carried: New runs exclude the node as well.
        slurm: None if Slurm was not asked or did not answer.
        cluster: "" if unknown.
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
    """Return the isolations in force, newest first; with `ended`, also those of the last 90 days.

    Args:
        now_in_slurm: Nodes by cluster (named as in the isolations) and name, of the clusters that answered.
    """
    rows = (_node_row(standing, now_in_slurm.get(standing.isolation.cluster)) for standing in history.statuses)
    return tuple(row for row in rows if ended or not row.ended)


def _node_row(standing: IsolationStatus, now_in_slurm: Mapping[str, Node] | None) -> NodeRow:
    one = standing.isolation
    node = now_in_slurm.get(one.node) if now_in_slurm is not None else None
    resumed = one.how == "drained" and standing.run_over and node is not None and not node.drain
    return NodeRow(
        node=one.node,
        how=one.how,
        run=one.run,
        found=one.what,
        verdict=one.verdict,
        evidence=one.evidence,
        device=one.device,
        serial=one.serial,
        remedy=one.remedy,
        detail=one.detail,
        since=one.wall,
        until=standing.until,
        ended=standing.ended or ("resumed" if resumed else ""),
        ended_at=standing.ended_at,
        carried=standing.carried and standing.run_over,
        slurm=None if now_in_slurm is None else _slurm_state(node),
        cluster=one.cluster,
    )


def _slurm_state(node: Node | None) -> str:
    if node is None:
        return "not a node of this cluster"
    state = f"{node.state}{', drained' if node.drain else ''}{', not responding' if node.not_responding else ''}"
    return f"{state} by {node.reason_user or 'unknown user'}: {node.reason}" if node.reason else state


def node_lines(row: NodeRow, now: float, width: int = 80, here: str = "") -> list[str]:
    """Return an isolation as text. here: the cluster of the Slurm commands; others are named."""
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
    return lines + [line for label, text in rows if text for line in _labelled(label, text, width)]


def _labelled(label: str, text: str, width: int) -> list[str]:
    lines = textwrap.wrap(
        printable(text),
        max(20, width),
        initial_indent=f"  {fit(label, LABEL + 8):<{LABEL - 3}} ",
        subsequent_indent=" " * LABEL,
        max_lines=_EVIDENCE_LINES,
        placeholder=" ...",
    )
    return [fit(line, width) for line in lines]


def _until(row: NodeRow, now: float) -> str:
    if row.ended:
        return f"{row.ended} {span(now - row.ended_at)} ago" if row.ended_at is not None else row.ended
    if row.until is None:
        return "until lifted"
    return f"{'by new runs, ' if row.carried else ''}{span(row.until - now)} left"


def repeat_offender_lines(findings: tuple[Finding, ...], width: int = 80) -> list[str]:
    if not findings:
        return []
    return ["repeat offenders", *(line for f in findings for line in _labelled(f.node, f.evidence, width))]


def avoided_line(isolation: Isolation, now: float) -> str:
    """Return the note of a new run that excludes a node because of another run."""
    what = printable(f"{isolation.what}: {isolation.evidence}")
    found = f"found {span(now - isolation.wall)} ago by run {isolation.run}, which could not drain it"
    return f"note: {isolation.node} is excluded: {what} ({found}); lift with `transom nodes --lift {isolation.node}`"


# --- policy ---


def policy_lines(rules: Sequence[Rule]) -> list[str]:
    """Return a line per rule. Text from users is made safe for a terminal."""
    if not rules:
        return [f"no rules: a failed run is {_ELSE}"]
    rows = [tuple(clean(cell) for cell in (r.name, condition(r), action(r), r.source)) for r in rules]
    return [plain(one) for one in table(_RULE_COLUMNS, rows, frozenset())]


def policy_json(rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the document of `transom policy --json`, without empty conditions."""
    return {"schema": 1, "rules": [_rule(rule) for rule in rules], "else": _ELSE}


def _rule(rule: Rule) -> dict[str, Any]:
    about = asdict(rule)
    for name in ("lasting", "repeats"):
        if not about[name]:
            del about[name]
    if ROLLBACK not in (rule.action, rule.then):
        del about["skip_batches"]
    return {k: v for k, v in about.items() if v not in ((), "", None)}


def condition(rule: Rule) -> str:
    """Return the failures that a rule applies to."""
    yes_no = (
        (rule.before_first_step, "before the first step", "after the first step"),
        (rule.first_attempt, "first attempt", "a later attempt"),
        (rule.against_node, "evidence against a node", "no evidence against a node"),
    )
    lists: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("category", rule.category),
        ("reported", rule.reported),
        ("cause", rule.cause),
        ("exit code", rule.exit_code),
        ("signal", rule.signal),
        ("Slurm state", rule.slurm_state),
    )
    parts = [
        *(f"{name} {' or '.join(map(str, values))}" for name, values in lists if values),
        *([f'pattern "{rule.pattern}"'] if rule.pattern else []),
        *([f"for {in_words(rule.lasting)}"] if rule.lasting else []),
        *([f"{times(rule.repeats)} at the same step"] if rule.repeats else []),
        *(yes if wanted else no for wanted, yes, no in yes_no if wanted is not None),
    ]
    return ", ".join(parts) or "always"


def action(rule: Rule) -> str:
    """Return a rule's action with its budget."""
    if rule.budget is None:
        return rule.action
    within = f" within {in_words(rule.within)}" if rule.within is not None else ""
    where = " per node" if rule.scope == NODE else ""
    return f"{rule.action} {times(rule.budget)}{where}{within}, then {rule.then or 'the next rule'}"
