"""Diagnose from files alone: known failures in logs, dumps of a hang, and new lines if no rule matches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.combine import combine, document
from transom_cli.diagnose.hangs.reader import is_dump, read_hang
from transom_cli.diagnose.logs.diagnosis import diagnose_logs, from_incident
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.unknown.store import NONE, new_lines
from transom_cli.diagnose.unknown.templates import Templates

SURE = 0.5  # least confidence of a clue from dumps; dumps of a healthy run look a little like a hang
SHOWN = 5  # kinds of new lines


def diagnose(paths: Sequence[Path], book: Rulebook, known: Templates = NONE) -> dict[str, Any]:
    """Return the document of `combine.document`, plus "unrecognised": new lines of a failure that no rule explains.

    Args:
        known: templates of the lines that healthy runs print.
    """
    dumps = [path for path in paths if path.is_dir() or (path.is_file() and is_dump(path))]  # a pipe is read once
    logs = diagnose_logs(paths, book)
    hangs = [clue for path in dumps for clue in read_hang(path) if clue.confidence >= SURE]
    found = combine([from_incident(one) for one in logs.incidents], hangs)
    said = document(found, len(logs.files), logs.unread)
    unknown = bool(found) and found[0].category is Category.UNKNOWN
    files = [path for path in map(Path, logs.files) if path.is_file()]
    new = new_lines(files, known) if unknown else ()
    said["unrecognised"] = [one.words for one in new[:SHOWN]]
    return said
