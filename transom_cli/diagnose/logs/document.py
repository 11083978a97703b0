"""What a diagnosis of logs looks like as one versioned JSON document, and in words. Pure."""

from __future__ import annotations

from typing import Any

from transom_cli.diagnose.clue import Clue, Root
from transom_cli.diagnose.logs.cause import Incident, consequences

SCHEMA = 1
LOGS = "logs"


def document(incidents: tuple[Incident, ...], files: int, unread: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    """The deciding incident first; none for healthy logs. files: that were read."""
    return {
        "schema": SCHEMA,
        "incidents": [incident_as_json(incident) for incident in incidents],
        "files": files,
        "unread": [{"file": name, "why": why} for name, why in unread],
    }


def incident_as_json(incident: Incident) -> dict[str, Any]:
    root = incident.root
    return {
        "category": incident.category.value,
        "action": root.rule.action.value,
        "scope": root.rule.scope.value,
        "confidence": incident.confidence,
        "rule": root.rule.name,
        "root_line": root.record.line.strip(),
        "root_file": root.file,
        "root_lineno": root.lineno,
        "culprits": [{"node": c.node or None, "rank": c.rank, "device": c.device or None} for c in incident.culprits],
        "consequences": list(consequences(incident)),
        "evidence": list(evidence(incident)),
    }


def evidence(incident: Incident) -> tuple[str, ...]:
    """Sentences for a person, the telling one first."""
    root = incident.root
    told = [f"{root.file}:{root.lineno} is known as {root.rule.name} ({incident.category.value})", *incident.why]
    if root.more:
        told.append(f"the same was printed {root.more} times more")
    same = {h.record.rank for h in incident.others if h.rule.name == root.rule.name and h.record.rank is not None}
    if same - {root.record.rank}:
        told.append(f"{len(same | {root.record.rank})} ranks say the same; this one was first")
    if not incident.culprits:
        told.append("which rank or node is to blame is not determinable from these logs")
    if root.rule.note:
        told.append(root.rule.note)
    return tuple(told)


def clue(incident: Incident) -> Clue:
    """For whoever puts several sources together."""
    root = incident.root
    return Clue(
        source=LOGS,
        category=incident.category,
        confidence=incident.confidence,
        evidence=evidence(incident),
        culprits=incident.culprits,
        at=root.record.at,
        root=Root(root.record.line.strip(), root.file, root.lineno),
        consequences=consequences(incident),
    )
