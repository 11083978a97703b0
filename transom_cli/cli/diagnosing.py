"""What `transom diagnose` and `transom rules` do, and how they print it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transom_cli.errors import UsageError, printable


def run_diagnose(paths: tuple[Path, ...], rules: tuple[Path, ...], *, as_json: bool) -> bool:
    """Whether there is an incident. UsageError where nothing could be read at all."""
    from transom_cli.diagnose.logs import rulefiles
    from transom_cli.diagnose.logs.diagnosis import diagnose_logs
    from transom_cli.diagnose.logs.document import document
    from transom_cli.diagnose.logs.rulebook import Rulebook
    from transom_cli.ui.diagnose import lines

    told = diagnose_logs(paths, Rulebook(rulefiles.load(rules)))
    if not told.files:
        why = "; ".join(f"{name}: {reason}" for name, reason in told.unread) or "no text files are in there"
        raise UsageError("No log could be read", why, "Name log files, or a folder of them.")
    found = document(told.incidents, len(told.files), told.unread)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(printable(line) for line in lines(found)))
    for name, reason in () if as_json else told.unread:
        print(f"not read: {printable(name)}: {reason}", file=sys.stderr)
    return bool(told.incidents)


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
    print(f"{len(rules)} rules, {lines_tried} lines tried: {len(wrong) or 'none'} wrong")
    return 1 if wrong else 0
