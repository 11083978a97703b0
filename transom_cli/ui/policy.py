"""The policy in force, for a person and as JSON: which rules, in which order, from which file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transom_cli.core.policy import NODE, ROLLBACK, Rule, in_words
from transom_cli.core.rootline import clean
from transom_cli.plural import times

_HEAD = ("rule", "when", "action", "from")
_ELSE = "restarted, or stopped on evidence that it would fail again; nodes are isolated as the evidence allows"


def policy_lines(rules: Sequence[Rule]) -> list[str]:
    """A table with a line a rule. What users wrote into it is safe for a terminal."""
    if not rules:
        return [f"no rules: what fails is {_ELSE}"]
    told = [_HEAD, *((r.name, when(r), what(r), r.source) for r in rules)]
    rows = [tuple(clean(cell) for cell in row) for row in told]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows]


def policy_json(rules: Sequence[Rule]) -> dict[str, Any]:
    """The document of `transom policy --json`. Conditions that ask nothing are left out."""
    return {"schema": 1, "rules": [_told(rule) for rule in rules], "else": _ELSE}


def _told(rule: Rule) -> dict[str, Any]:
    about = asdict(rule)
    if not rule.lasting:
        del about["lasting"]
    if ROLLBACK not in (rule.action, rule.then):
        del about["skip_batches"]
    return {k: v for k, v in about.items() if v not in ((), "", None)}


def when(rule: Rule) -> str:
    """What the rule asks of a failure, in words."""
    yes_no = (
        (rule.before_first_step, "before the first step", "after the first step"),
        (rule.first_attempt, "first attempt", "a later attempt"),
        (rule.against_node, "evidence against a node", "no evidence against a node"),
    )
    parts = [
        *(f"{word} {' or '.join(map(str, values))}" for word, values in _lists(rule) if values),
        *([f'pattern "{rule.pattern}"'] if rule.pattern else []),
        *([f"for {in_words(rule.lasting)}"] if rule.lasting else []),
        *(words if asked else other for asked, words, other in yes_no if asked is not None),
    ]
    return ", ".join(parts) or "always"


def what(rule: Rule) -> str:
    """The action and its budget, in words."""
    if rule.budget is None:
        return rule.action
    often = times(rule.budget)
    span = f" within {in_words(rule.within)}" if rule.within is not None else ""
    where = " on a node" if rule.scope == NODE else ""
    return f"{rule.action} {often}{where}{span}, then {rule.then or 'the next rule'}"


def _lists(rule: Rule) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    return (
        ("category", rule.category),
        ("reported", rule.reported),
        ("cause", rule.cause),
        ("exit code", rule.exit_code),
        ("signal", rule.signal),
        ("Slurm state", rule.slurm_state),
    )
