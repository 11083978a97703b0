"""Hits as plain values: an agent tells those of its node's logs, whoever asked puts all nodes' together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from transom_cli.core.codec import BadRecord, build
from transom_cli.core.rootline import clean
from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.rule import Level, Rule

MOST = 64  # hits of one node; the causes go first
_LONGEST = 600  # characters of a line


def told(hits: Iterable[Hit]) -> list[dict[str, Any]]:
    """At most `MOST`, the nearest to a cause first."""
    ordered = sorted(hits, key=lambda h: (-h.level, h.record.at or 0.0, h.offset))
    return [_told(hit) for hit in ordered[:MOST]]


def heard(said: object, rules: Mapping[str, Rule]) -> tuple[Hit, ...]:
    """What is none, or of a rule that is not known here, is left out."""
    found = (_heard(one, rules) for one in said if isinstance(one, Mapping)) if isinstance(said, list) else ()
    return tuple(hit for hit in found if hit is not None)


def worth(hit: Hit) -> bool:
    """Whether it is to be told while the job still runs: what victims print is not."""
    return hit.level >= Level.CAUSE


def _told(hit: Hit) -> dict[str, Any]:
    record = asdict(hit.record)
    record.update(line=record["line"][:_LONGEST], text=record["text"][:_LONGEST])
    plain: dict[str, Any] = {"rule": hit.rule.name, "record": record, "where": dict(hit.where)}
    return {**plain, "file": hit.file, "lineno": hit.lineno, "offset": hit.offset, "more": hit.more,
            "printed": hit.printed}  # fmt: skip


def _heard(said: Mapping[str, Any], rules: Mapping[str, Rule]) -> Hit | None:
    rule, where = rules.get(str(said.get("rule"))), said.get("where")
    try:
        record = build(Record, said["record"])
        lineno, offset, more = (int(said[name]) for name in ("lineno", "offset", "more"))
    except (BadRecord, KeyError, TypeError, ValueError):
        return None
    if rule is None or not isinstance(where, Mapping):
        return None
    record = Record(**{**vars(record), "line": clean(record.line), "text": clean(record.text)})
    groups = {str(name): clean(str(value)) for name, value in where.items()}
    file = clean(str(said.get("file", "")))
    return Hit(rule, record, groups, file, lineno, offset, more, said.get("printed") is True)
