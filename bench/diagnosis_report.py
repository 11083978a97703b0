#!/usr/bin/env python
"""Score the log rules on a folder of labelled real logs.

    python bench/diagnosis_report.py [FOLDER]          FOLDER/labels.jsonl and the logs that it names

There are two figures. All rules. One source left out: the logs of each source (`group`) are diagnosed without the rules
that are the root of that source's logs only, so only with rules that other sources support. The accuracy on new logs
should be between the two. The rules were written with these logs known, so neither figure is measured on unseen logs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnosis_score import ASKED, Label, Told, accuracy, confusion, labels, misses, only_from

from transom_cli.diagnose.logs.diagnosis import action_of, diagnose_logs
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.errors import printable

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "logs" / "dev"


def tell(folder: Path, label: Label, book: Rulebook) -> Told:
    incidents = diagnose_logs([folder / label.file], book).incidents
    if not incidents:
        return Told()
    root = incidents[0].root
    return Told(incidents[0].category.value, action_of(incidents[0]).value, root.record.line, root.rule.name)


def left_out(folder: Path, wanted: Sequence[Label], told: dict[str, Told]) -> dict[str, Told]:
    """Each group's logs again, without the rules that only it supports."""
    rules = load()
    again = dict(told)
    for group, alone in only_from(wanted, told).items():
        book = Rulebook(rule for rule in rules if rule.name not in alone)
        again.update({label.file: tell(folder, label, book) for label in wanted if label.group == group})
    return again


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    folder: Path = parser.parse_args().folder
    try:
        wanted = labels((folder / "labels.jsonl").read_text(encoding="utf-8"))
        missing = [label.file for label in wanted if not (folder / label.file).exists()]
    except (OSError, ValueError, KeyError) as error:
        print(f"diagnosis-report: no labelled logs in {folder}: {error!r}", file=sys.stderr)
        print("Name a folder with labels.jsonl: make diagnosis-report LABELS=FOLDER", file=sys.stderr)
        return 2
    if missing:
        print(f"diagnosis-report: {folder} lacks {len(missing)} of its logs, first {missing[0]}", file=sys.stderr)
        return 2
    book = Rulebook(load())
    told = {label.file: tell(folder, label, book) for label in wanted}
    plain, without = accuracy(wanted, told), accuracy(wanted, left_out(folder, wanted, told))
    groups = len({label.group for label in wanted})
    print(f"{len(wanted)} logs of {groups} sources, {len(book.rules)} rules: {folder}\n")
    print(f"{'':20} {'all rules':>16} {'one source left out':>21}")
    for asked in ASKED:
        print(f"{asked:20} {_share(plain[asked]):>16} {_share(without[asked]):>21}")
    print("\n" + "\n".join(confusion(wanted, told)))
    lines = misses(wanted, told)
    print("\nmissed:" if lines else "\nnothing missed")
    for line in lines:
        print(printable(line))
    return 0


def _share(counted: tuple[int, int]) -> str:
    good, of = counted
    return f"{good}/{of} ({good / of:.0%})" if of else "-"


if __name__ == "__main__":
    sys.exit(main())
