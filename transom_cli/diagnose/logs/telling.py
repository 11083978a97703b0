"""What an incident in logs tells: as sentences, and as values that other sources can be added to. Pure."""

from __future__ import annotations

from transom_cli.diagnose.clue import Root
from transom_cli.diagnose.logs.cause import Incident, consequences
from transom_cli.diagnose.told import Told
from transom_cli.plural import times


def told(incident: Incident) -> Told:
    root = incident.root
    return Told(
        category=incident.category,
        action=root.rule.action,
        scope=root.rule.scope.value,
        confidence=incident.confidence,
        rule=root.rule.name,
        root=Root(root.record.line.strip(), root.file, root.lineno),
        culprits=incident.culprits,
        consequences=consequences(incident),
        evidence=evidence(incident),
    )


def evidence(incident: Incident) -> tuple[str, ...]:
    """Sentences for a person, the telling one first."""
    root = incident.root
    said = [f"{root.file}:{root.lineno} is known as {root.rule.name} ({incident.category.value})", *incident.why]
    if root.more:
        said.append(f"the same was printed {times(root.more)} more")
    same = {h.record.rank for h in incident.others if h.rule.name == root.rule.name and h.record.rank is not None}
    if same - {root.record.rank}:
        said.append(f"{len(same | {root.record.rank})} ranks say the same; this one was first")
    if not incident.culprits:
        said.append("which rank or node is to blame is not determinable from these logs")
    if root.rule.note:
        said.append(root.rule.note)
    return tuple(said)
