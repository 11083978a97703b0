"""The settings of a run as rows of a table, without what may be secret. Pure.

A report is passed on. Values in `job.env` are left out, and so are those of any setting, and of any assignment inside
one, whose name speaks of a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from transom_cli.report.shapes import Cell, Table, Words

HIDDEN = "(left out)"
RULES = ("policy", "rules")
_SECRET = r"(?:(?:\b|_|-|api|access)key|token(?![is])|secret|passw|credential)"  # not: monkey, tokenizer, tokens
_NAME = re.compile(_SECRET, re.IGNORECASE)
_ASSIGNED = re.compile(rf"([\w-]*{_SECRET}[\w-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;]+)", re.IGNORECASE)
_IN_URL = re.compile(r"(://)[^/\s@]+@")
_LONG = 400  # characters of a value


def asked(settings: Mapping[str, Any] | str) -> tuple[Table | Words, ...]:
    """settings: run.toml, or why it cannot be read."""
    if isinstance(settings, str):
        return (Words(f"Settings: not recorded. {settings}", "dim"),)
    rows = tuple((Cell(name), Cell(value)) for name, value in _flat(settings))
    return (Table("Settings, frozen at submission (run.toml)", ("setting", "value"), rows), *_rules(settings))


def _flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        where = (*path, str(key))
        if where == RULES:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, where)
        elif value not in ("", [], None):
            hidden = path[:2] == ("job", "env") or _NAME.search(str(key))
            yield ".".join(where), HIDDEN if hidden else _value(value)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = _IN_URL.sub(rf"\1{HIDDEN}@", _ASSIGNED.sub(rf"\1{HIDDEN}", text))
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text):,} characters)"


def _rules(settings: Mapping[str, Any]) -> tuple[Table, ...]:
    """The table of the policy. What every rule leaves open is not told."""
    policy = settings.get("policy")
    rules = policy.get("rules") if isinstance(policy, Mapping) else None
    told = [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list) else []
    rows = []
    for rule in told:
        about = {k: v for k, v in rule.items() if k not in ("name", "action", "source") and v not in ("", [], None)}
        when = ", ".join(f"{key} {_value(value)}" for key, value in about.items())
        rows.append(
            tuple(
                Cell(str(text)) for text in (rule.get("name", ""), rule.get("action", ""), when, rule.get("source", ""))
            )
        )
    head = ("rule", "action", "for", "from")
    return (Table("Policy, the first rule that fits decides", head, tuple(rows)),) if rows else ()
