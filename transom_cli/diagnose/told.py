"""What all sources together make of a failure, and as one versioned JSON document. Pure.

Logs tell causes, dumps of a hang (stacks, flight recorder) tell who the others waited for. So a hang that logs show is
given its culprits by the dumps; beside another cause a hang is its consequence; without any log the dumps alone tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.diagnose.clue import Action, Category, Clue, Culprit, Root

SCHEMA = 1
_SURER = 0.1  # of confidence, where two sources agree


@dataclass(frozen=True)
class Told:
    """One incident. rule: of the log's line, "" without one. scope: node, job or user. root: None without logs."""

    category: Category
    action: Action
    scope: str
    confidence: float
    rule: str = ""
    root: Root | None = None
    culprits: tuple[Culprit, ...] = ()
    consequences: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def together(logs: Sequence[Told], hangs: Sequence[Clue]) -> tuple[Told, ...]:
    """The deciding incident first. hangs: what dumps tell."""
    best = max(hangs, key=lambda clue: (bool(clue.culprits), clue.confidence), default=None)
    if best is None:
        return tuple(logs)
    seen = tuple(f"{clue.source}: {line}" for clue in hangs for line in clue.evidence)
    if not logs:
        return (_of_dumps(best, seen),)
    first = logs[0]
    if first.category is not Category.NCCL_HANG:
        return (replace(first, evidence=(*first.evidence, *seen)), *logs[1:])
    agree = best.culprits and {c.rank for c in first.culprits} == {c.rank for c in best.culprits}
    confidence = min(0.99, max(first.confidence, best.confidence) + _SURER * bool(agree))
    culprits = best.culprits or first.culprits
    told = replace(first, culprits=culprits, confidence=round(confidence, 2), evidence=(*first.evidence, *seen))
    return (told, *logs[1:])


def _of_dumps(best: Clue, seen: tuple[str, ...]) -> Told:
    action = Action.STOP if best.category is Category.USER_CODE else Action.REQUEUE
    scope = "user" if action is Action.STOP else "job"
    return Told(best.category, action, scope, best.confidence, "", best.root, best.culprits, best.consequences, seen)


def document(told: Sequence[Told], files: int, unread: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """No incidents for healthy logs. files: that were read. unread: those that could not be, and why."""
    return {
        "schema": SCHEMA,
        "incidents": [_as_json(one) for one in told],
        "files": files,
        "unread": [{"file": name, "why": why} for name, why in unread],
    }


def _as_json(told: Told) -> dict[str, Any]:
    root = told.root
    return {
        "category": told.category.value,
        "action": told.action.value,
        "scope": told.scope,
        "confidence": told.confidence,
        "rule": told.rule or None,
        "root_line": root.line if root else None,
        "root_file": root.file if root else None,
        "root_lineno": root.lineno if root else None,
        "culprits": [{"node": c.node or None, "rank": c.rank, "device": c.device or None} for c in told.culprits],
        "consequences": list(told.consequences),
        "evidence": list(told.evidence),
    }
