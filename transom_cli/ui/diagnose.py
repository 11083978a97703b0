"""What a person sees of a diagnosis: the verdict first, then why. Pure: values in, lines out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from transom_cli.plural import several

WIDTH = 100
_ACTIONS = {
    "none": "nothing is to be done",
    "requeue": "start it again",
    "stop": "do not start it again as it is: it would fail again",
    "isolate_node_and_requeue": "keep the job off that node, and start it again",
}


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Of a document as `diagnose.told` makes it."""
    incidents = document["incidents"]
    count = document["files"]
    read = several(count, "file")
    if not incidents:
        yield f"No failure is known in {read}."
        return
    first, *others = incidents
    yield from _incident(first)
    for number, line in enumerate(document["unrecognised"]):
        yield from _beside("" if number else "new", line)
    for other in others:
        yield ""
        yield f"Also: {other['category']} ({other['root_file']}:{other['root_lineno']})"
        yield from _wrapped(other["root_line"])


def _incident(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"{told['category']}: {_ACTIONS[told['action']]}  (confidence {told['confidence']:.0%})"
    yield ""
    if told["root_line"] is not None:
        yield f"  {told['root_file']}:{told['root_lineno']}"
        yield from _wrapped(told["root_line"])
        yield ""
    who = [_who(culprit) for culprit in told["culprits"]]
    yield f"  blame         {', '.join(who) if who else 'not determinable'}"
    why = told["evidence"][1 if told["root_line"] is not None else 0 :]
    for name, what in (("because", why), ("consequences", told["consequences"])):
        for number, text in enumerate(what):
            yield from _beside("" if number else name, text)


def _beside(name: str, text: str) -> list[str]:
    start, further = f"  {name:13} ", " " * 16
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=further, max_lines=3)


def _who(culprit: Mapping[str, Any]) -> str:
    rank = f"rank {culprit['rank']}" if culprit["rank"] is not None else ""
    device = f"device {culprit['device']}" if culprit["device"] else ""
    return ", ".join(part for part in (rank, device, culprit["node"] or "") if part)


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, initial_indent="    ", subsequent_indent="      ", max_lines=4) or ["    "]
