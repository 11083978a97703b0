"""Combine the clues of all sources into one diagnosis, and write it as a versioned JSON document. Pure.

Logs show causes. Dumps of a hang (stacks, flight recorder) show which rank the others waited for. If the logs show a
hang, the dumps name its culprits. If the logs show another cause, the hang is a consequence. If they show none, the
dumps decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.diagnose.clue import Action, Category, Clue, Culprit, Root

SCHEMA = 1
_SURER = 0.1  # added to the confidence when two sources agree


@dataclass(frozen=True)
class DiagnosedFailure:
    """One incident. rule: the log rule that matched, or "". scope: node, job or user. root: None without logs."""

    category: Category
    action: Action
    scope: str
    confidence: float
    rule: str = ""
    root: Root | None = None
    culprits: tuple[Culprit, ...] = ()
    consequences: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def combine(logs: Sequence[DiagnosedFailure], hangs: Sequence[Clue]) -> tuple[DiagnosedFailure, ...]:
    """Combine what the logs and the dumps of a hang say. The deciding incident comes first."""
    best = max(hangs, key=lambda clue: (bool(clue.culprits), clue.confidence), default=None)
    if best is None:
        return tuple(logs)
    seen = tuple(f"{clue.source}: {line}" for clue in hangs for line in clue.evidence)
    if not logs or logs[0].category is Category.UNKNOWN:
        return (_of_dumps(best, seen), *logs)
    first = logs[0]
    if first.category is not Category.NCCL_HANG:
        return (replace(first, evidence=(*first.evidence, *seen)), *logs[1:])
    agree = best.culprits and {c.rank for c in first.culprits} == {c.rank for c in best.culprits}
    confidence = min(0.99, max(first.confidence, best.confidence) + _SURER * bool(agree))
    culprits = best.culprits or first.culprits
    joined = replace(first, culprits=culprits, confidence=round(confidence, 2), evidence=(*first.evidence, *seen))
    return (joined, *logs[1:])


def _of_dumps(best: Clue, seen: tuple[str, ...]) -> DiagnosedFailure:
    action = Action.STOP if best.category is Category.USER_CODE else Action.REQUEUE
    scope = "user" if action is Action.STOP else "job"
    return DiagnosedFailure(
        best.category, action, scope, best.confidence, "", best.root, best.culprits, best.consequences, seen
    )


def document(
    failures: Sequence[DiagnosedFailure], files: int, unread: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the JSON document: no incidents for healthy logs.

    Args:
        files: how many files were read.
        unread: files that could not be read, and why.
    """
    return {
        "schema": SCHEMA,
        "incidents": [_as_json(one) for one in failures],
        "files": files,
        "unread": [{"file": name, "why": why} for name, why in unread],
    }


def _as_json(failure: DiagnosedFailure) -> dict[str, Any]:
    root = failure.root
    return {
        "category": failure.category.value,
        "action": failure.action.value,
        "scope": failure.scope,
        "confidence": failure.confidence,
        "rule": failure.rule or None,
        "root_line": root.line if root else None,
        "root_file": root.file if root else None,
        "root_lineno": root.lineno if root else None,
        "culprits": [{"node": c.node or None, "rank": c.rank, "device": c.device or None} for c in failure.culprits],
        "consequences": list(failure.consequences),
        "evidence": list(failure.evidence),
    }
