"""Tables of isolated nodes (`transom nodes`) and policy rules (`transom policy`). Pure."""

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
from transom_cli.view.text import cells, fit, plain, span, table, wrapped

LABEL = 12
_EVIDENCE_LINES = 3
_RULE_COLUMNS = ("rule", "when", "action", "from")
_ELSE = "restarted, or stopped on evidence that it would fail again; nodes are isolated as the evidence allows"

# --- isolated nodes ---


@dataclass(frozen=True)
class NodeRow:
    """An isolation, and Slurm's state of the node: None if Slurm was not asked or did not answer."""

    standing: IsolationStatus
    slurm: str | None
    resumed: bool = False  # by somebody in Slurm, after the run was over

    @property
    def ended(self) -> str:
        """Empty while it is in force; else expired, lifted, over, run over or resumed."""
        return self.standing.ended or ("resumed" if self.resumed else "")

    @property
    def carried(self) -> bool:
        """Whether new runs exclude the node as well."""
        return self.standing.carried and self.standing.run_over

    def as_json(self) -> dict[str, Any]:
        one, same = self.standing.isolation, ("verdict", "evidence", "device", "serial", "remedy", "detail")
        about: dict[str, Any] = {"node": one.node, "how": one.how, "run": one.run, "found": one.what}
        about |= {name: getattr(one, name) for name in same}
        about |= {"since": one.wall, "until": self.standing.until, "ended": self.ended}
        about |= {"ended_at": self.standing.ended_at, "carried": self.carried}
        return about | {"slurm": self.slurm, "cluster": one.cluster}


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
    if now_in_slurm is None:
        return NodeRow(standing, None)
    node = now_in_slurm.get(standing.isolation.node)
    resumed = standing.isolation.how == "drained" and standing.run_over and node is not None and not node.drain
    return NodeRow(standing, _slurm_state(node), resumed)


def _slurm_state(node: Node | None) -> str:
    if node is None:
        return "not a node of this cluster"
    state = f"{node.state}{', drained' if node.drain else ''}{', not responding' if node.not_responding else ''}"
    return f"{state} by {node.reason_user or 'unknown user'}: {node.reason}" if node.reason else state


def node_lines(row: NodeRow, now: float, width: int = 80, here: str = "") -> list[str]:
    """Return an isolation as text. here: the cluster of the Slurm commands; others are named."""
    one = row.standing.isolation
    where = f", on cluster {one.cluster}" if one.cluster not in ("", here) else ""
    about = ", ".join(x for x in (one.device, f"serial {one.serial}" if one.serial else "") if x)
    remedy = "" if one.remedy == "none" else one.remedy
    proven = "proven" if one.proven else "suspected"
    lines = [fit(f"{one.node:<{LABEL - 1}} {one.how} {span(now - one.wall)} ago, {_until(row, now)}", width)]
    rows = (
        (one.what, f"{one.evidence} ({proven})"),
        ("device", about),
        ("remedy", remedy),
        ("run", one.run + where),
        ("note", one.detail),
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
    until, ended_at = row.standing.until, row.standing.ended_at
    if row.ended:
        return f"{row.ended} {span(now - ended_at)} ago" if ended_at is not None else row.ended
    if until is None:
        return "until lifted"
    return f"{'by new runs, ' if row.carried else ''}{span(until - now)} left"


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


def policy_lines(rules: Sequence[Rule], width: int | None = None) -> list[str]:
    """Return a line per rule, or three where they would be wider. Text from users is made safe for a terminal."""
    if not rules:
        return [f"no rules: a failed run is {_ELSE}"]
    rows = [tuple(clean(cell) for cell in (r.name, condition(r), action(r), r.source)) for r in rules]
    lines = [plain(one) for one in table(_RULE_COLUMNS, rows, frozenset())]
    if width is None or max(map(cells, lines)) <= width:
        return lines
    found = []
    for name, when, do, source in rows:
        found += wrapped("", f"{name} (from {source})", width)
        found += [*wrapped("  when    ", when, width), *wrapped("  action  ", do, width)]
    return found


def policy_json(rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the document of `transom policy --json`, without empty conditions."""
    return {"schema": 1, "rules": [_rule(rule) for rule in rules], "else": _ELSE}


def _rule(rule: Rule) -> dict[str, Any]:
    about = asdict(rule)
    for name in ("lasting", "repeats", "on_nodes"):
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
        *(["by the same exit code or signal"] if rule.on_nodes else []),
        *([f"on {rule.on_nodes} nodes or more"] if rule.on_nodes > 1 else []),
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
