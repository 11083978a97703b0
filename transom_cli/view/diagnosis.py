"""Results of `transom diagnose` as text. Pure."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transom_cli.core.category import category_name
from transom_cli.plural import several

WIDTH = 100
_ACTIONS = {
    "none": "no action needed",
    "requeue": "restart the job",
    "stop": "do not restart it unchanged, it would fail again",
    "isolate_node_and_requeue": "exclude that node, and restart the job",
}


def diagnosis_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a document of `diagnose.combine`: the verdict first, then why."""
    incidents = document["incidents"]
    if not incidents:
        yield f"No known failure in {several(document['files'], 'file')}."
        return
    first, *others = incidents
    yield from _incident(first, document["unrecognised"])
    for other in others:
        yield ""
        yield f"Also: {category_name(other['category'])} ({other['root_file']}:{other['root_lineno']})"
        yield from _log_line(other["root_line"])


def _incident(incident: Mapping[str, Any], new: Sequence[str]) -> Iterator[str]:
    category, action = category_name(incident["category"]), _ACTIONS[incident["action"]]
    yield f"{category}: {action}  (confidence {incident['confidence']:.0%})"
    yield ""
    if incident["root_line"] is not None:
        yield f"  {incident['root_file']}:{incident['root_lineno']}"
        yield from _log_line(incident["root_line"])
        yield ""
    if source := incident.get("source"):
        yield from _labelled("your code", source)
    for number, line in enumerate(new):
        yield from _labelled("" if number else "new", line)
    culprits = [_culprit(one) for one in incident["culprits"]]
    nobody = "the program" if incident["scope"] == "user" else "unknown"
    yield f"  culprit       {', '.join(culprits) if culprits else nobody}"
    evidence = incident["evidence"][1 if incident["root_line"] is not None else 0 :]
    for name, texts in (("because", evidence), ("consequences", incident["consequences"])):
        for number, text in enumerate(texts):
            yield from _labelled("" if number else name, text)


def _labelled(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:13} ", subsequent_indent=" " * 16, max_lines=3)


def _culprit(culprit: Mapping[str, Any]) -> str:
    rank = f"rank {culprit['rank']}" if culprit["rank"] is not None else ""
    device = f"device {culprit['device']}" if culprit["device"] else ""
    return ", ".join(part for part in (rank, device, culprit["node"] or "") if part)


def _log_line(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, initial_indent="    ", subsequent_indent="      ", max_lines=4) or ["    "]
