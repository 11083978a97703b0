"""How the stories of `chaos.py --recovery` ended: from the rows of its log to a table. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

WAYS = ("re-entered", "stuck one replaced alone", "all ranks relaunched", "no trouble seen", "not recovered")
_WHY = ("all ranks are ended: ", "the survivors are ended too: ")


@dataclass(frozen=True)
class Ending:
    """way: one of `WAYS`. seconds: from the first fault to the first new step. why: all ranks were relaunched."""

    story: str
    way: str
    seconds: float | None = None
    why: str = ""


def endings(row: dict[str, Any]) -> Iterator[Ending]:
    """How each story of a run ended."""
    made = [one for one in row["seen"]["made"] if one["story"]]
    stories = [list(group) for _, group in groupby(made, lambda one: one["story"])]
    begins = [story[0]["at"] for story in stories]
    for story, until in zip(stories, [*begins[1:], float("inf")], strict=True):
        said = [one for one in row["seen"]["said"] if story[0]["at"] <= one["at"] < until]
        yield _ending(story[0]["story"], story[0]["at"], said)


def _ending(story: str, began: float, said: list[dict[str, Any]]) -> Ending:
    words = [one["words"] for one in said if one["what"] == "reentry"]
    why = next((text.removeprefix(start) for text in reversed(words) for start in _WHY if text.startswith(start)), "")
    recovered = [one for one in said if one["what"] == "recovered"]
    if not recovered:
        return Ending(story, "not recovered" if any(one["what"] == "seen" for one in said) else "no trouble seen")
    last = recovered[-1]
    alone = any(" to replace in launch " in text for text in words)
    stayed = last["words"].startswith("recovered in ")
    way = "all ranks relaunched" if not stayed else "stuck one replaced alone" if alone else "re-entered"
    return Ending(story, way, round(last["at"] - began, 1), "" if stayed else why)


def table(rows: Iterable[dict[str, Any]]) -> str:
    found: dict[str, list[Ending]] = defaultdict(list)
    for row in rows:
        for one in endings(row) if "seen" in row else ():
            found[one.story].append(one)
    lines = [f"| story | n | {' | '.join(WAYS)} | seconds, median (range) |", "|---" * (len(WAYS) + 3) + "|"]
    for story, ends in sorted(found.items()):
        ways, took = Counter(one.way for one in ends), [one.seconds for one in ends if one.seconds is not None]
        span = f"{statistics.median(took):.1f} ({min(took):.1f} to {max(took):.1f})" if took else "-"
        lines.append(f"| {story} | {len(ends)} | {' | '.join(str(ways[way]) for way in WAYS)} | {span} |")
    reasons = Counter(one.why for ends in found.values() for one in ends if one.way == "all ranks relaunched")
    return "\n".join([*lines, "", *(f"relaunched {n} times: {why or 'no reason given'}" for why, n in reasons.items())])
