"""What `transom diagnose` and `transom rules` do, and how they print it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import UsageError, printable
from transom_cli.plural import several

if TYPE_CHECKING:
    from transom_cli.diagnose.unknown.templates import Templates

LEARNT = 10  # drafts


def run_diagnose(paths: tuple[Path, ...], rules: tuple[Path, ...], healthy: tuple[Path, ...], *, as_json: bool) -> bool:
    """Whether there is an incident. UsageError where nothing could be read at all."""
    from transom_cli.diagnose.logs import rulefiles
    from transom_cli.diagnose.logs.rulebook import Rulebook
    from transom_cli.diagnose.whole import diagnose
    from transom_cli.ui.diagnose import lines

    found = diagnose(paths, Rulebook(rulefiles.load(rules)), _known(paths, healthy))
    if not found["files"]:
        why = "; ".join(f"{one['file']}: {one['why']}" for one in found["unread"]) or "no text files are in there"
        raise UsageError("No log could be read", why, "Name log files, or a folder of them.")
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(printable(line) for line in lines(found)))
        for one in found["unread"]:
            print(f"not read: {printable(one['file'])}: {one['why']}", file=sys.stderr)
    return bool(found["incidents"])


def _known(paths: tuple[Path, ...], healthy: tuple[Path, ...]) -> Templates:
    """What is printed where all is well: the logs that are named, and what runs of ours have kept before this one."""
    from transom_cli.diagnose.logs.diagnosis import logs_in
    from transom_cli.diagnose.unknown.reading import all_of
    from transom_cli.supervise.pastlogs import of_past_runs, run_of

    known = all_of(logs_in(healthy))
    run = run_of(paths[0]) if paths else None
    return known.merge(of_past_runs(run)) if run is not None else known


def run_learn(paths: tuple[Path, ...], healthy: tuple[Path, ...]) -> None:
    """Drafts of rules, for a file of the site's own."""
    from transom_cli.diagnose.logs.diagnosis import logs_in
    from transom_cli.diagnose.unknown.draft import draft
    from transom_cli.diagnose.unknown.reading import new_in

    found = new_in(logs_in(paths), _known(paths, healthy))
    if not found:
        raise UsageError("Nothing near the end of these logs is new", hint="Then no rule can tell it apart.")
    print("\n".join(draft(new) for new in found[:LEARNT]))


def run_list(places: tuple[Path, ...], *, as_json: bool) -> None:
    from transom_cli.core.codec import plain
    from transom_cli.diagnose.logs import rulefiles

    rules = rulefiles.load(places)
    if as_json:
        print(json.dumps({"schema": 1, "rules": [plain(rule) for rule in rules]}, indent=1))
        return
    for rule in rules:
        category = rule.category.value if rule.category else "benign"
        print(f"{rule.name:24} {category:20} {rule.level.name.lower():10} {rule.action.value:26} {rule.source}")


def run_check(places: tuple[Path, ...]) -> int:
    """Rules of a site stand beside ours: theirs must not take our lines, nor ours theirs."""
    from transom_cli.diagnose.logs import rulefiles

    rules = rulefiles.load(places)
    wrong = rulefiles.check(rules)
    for line in wrong:
        print(printable(line))
    lines_tried = sum(len(rule.examples) + len(rule.look_alikes) for rule in rules)
    print(f"{several(len(rules), 'rule')}, {several(lines_tried, 'line')} tried: {len(wrong) or 'none'} wrong")
    return 1 if wrong else 0
