"""Score log diagnoses against labels: accuracy, confusions, and rules with a single source. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BENIGN = "benign"
ASKED = ("category", "action", "root line", "benign logs quiet")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ENOUGH = 40  # characters: less of a line is in too many others to be the same line


@dataclass(frozen=True)
class Label:
    """file: its name in the folder. category: `benign` for a healthy log. root_line: "" where none is asked for."""

    file: str
    category: str
    action: str
    root_line: str
    group: str


@dataclass(frozen=True)
class Told:
    """What the deciding incident says; of a log that is told as healthy: benign, none, and nothing."""

    category: str = BENIGN
    action: str = "none"
    line: str = ""
    rule: str = ""


def labels(text: str) -> tuple[Label, ...]:
    """Of labels.jsonl: one object a line. ValueError where it is none, KeyError where a field is missing."""
    told = [json.loads(line) for line in text.splitlines() if line.strip()]
    return tuple(Label(d["file"], d["category"], d["action"], d["root_line"] or "", d["group"]) for d in told)


def same_line(wanted: str, told: str) -> bool:
    """Either within the other: one may be cut, or have a progress bar before it; colours do not count."""
    wanted, told = _plain(wanted), _plain(told)
    if not wanted or not told:
        return wanted == told
    return wanted in told or (told in wanted and len(told) >= min(len(wanted), _ENOUGH))


def right(label: Label, told: Told) -> dict[str, bool]:
    """What of `ASKED` is asked of this log, and whether it was told."""
    answers = {"category": told.category == label.category, "action": told.action == label.action}
    if label.category == BENIGN:
        answers["benign logs quiet"] = told.category == BENIGN
    elif label.root_line:
        answers["root line"] = same_line(label.root_line, told.line)
    return answers


def accuracy(wanted: Sequence[Label], told: Mapping[str, Told]) -> dict[str, tuple[int, int]]:
    """By what was asked: how often right, of how many."""
    good, all_of = Counter[str](), Counter[str]()
    for label in wanted:
        for asked, is_right in right(label, told[label.file]).items():
            good[asked] += is_right
            all_of[asked] += 1
    return {asked: (good[asked], all_of[asked]) for asked in ASKED}


def only_from(wanted: Sequence[Label], told: Mapping[str, Told]) -> dict[str, frozenset[str]]:
    """By group: the rules that are the root of logs of that group and of no other, its only evidence."""
    groups: dict[str, set[str]] = {}
    for label in wanted:
        if told[label.file].rule:
            groups.setdefault(told[label.file].rule, set()).add(label.group)
    alone = {group: {rule for rule, of in groups.items() if of == {group}} for group in {one.group for one in wanted}}
    return {group: frozenset(rules) for group, rules in alone.items() if rules}


def confusion(wanted: Sequence[Label], told: Mapping[str, Told]) -> list[str]:
    """A line for each category that was wanted: how many, and as what they were told where that is another."""
    counts = Counter((label.category, told[label.file].category) for label in wanted)
    lines = [f"{'wanted':20} {'right':>9}   told instead"]
    for category in sorted({label.category for label in wanted}):
        row = {other: n for (one, other), n in counts.items() if one == category}
        others = ", ".join(f"{other} {n}" for other, n in sorted(row.items()) if other != category)
        lines.append(f"{category:20} {row.get(category, 0):4}/{sum(row.values()):<4}   {others}".rstrip())
    return lines


def misses(wanted: Iterable[Label], told: Mapping[str, Told]) -> list[str]:
    lines = []
    for label in wanted:
        wrong = [asked for asked, is_right in right(label, told[label.file]).items() if not is_right]
        if wrong:
            got = told[label.file]
            lines.append(f"{label.file} ({label.group}): {', '.join(wrong)}")
            lines.append(f"  wanted {label.category}, {label.action}: {_plain(label.root_line)[:160]}")
            lines.append(f"  told   {got.category}, {got.action} ({got.rule or 'no rule'}): {_plain(got.line)[:160]}")
    return lines


def _plain(line: str) -> str:
    return _COLOUR.sub("", line).strip()
