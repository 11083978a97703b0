"""A diagnosis from files alone: logs by their rules, dumps of a hang, and what is new where no rule knows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.hangs.reading import is_dump, read_hang
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.logs.telling import told
from transom_cli.diagnose.told import document, together
from transom_cli.diagnose.unknown.reading import NONE, new_in
from transom_cli.diagnose.unknown.templates import Templates

SURE = 0.5  # of a clue from dumps: those of a run that is well look a little like a hang
SHOWN = 5  # kinds of lines that are new


def diagnose(paths: Sequence[Path], book: Rulebook, known: Templates = NONE) -> dict[str, Any]:
    """The document of `told.document`, with "unrecognised": of a failure that no rule explains. known: what runs print
    that are well."""
    dumps = [path for path in paths if path.is_dir() or (path.is_file() and is_dump(path))]  # a pipe is read once
    logs = diagnose_logs(paths, book)
    hangs = [clue for path in dumps for clue in read_hang(path) if clue.confidence >= SURE]
    found = together([told(one) for one in logs.incidents], hangs)
    said = document(found, len(logs.files), logs.unread)
    unknown = bool(found) and found[0].category is Category.UNKNOWN
    files = [path for path in map(Path, logs.files) if path.is_file()]
    new = new_in(files, known) if unknown else ()
    said["unrecognised"] = [one.words for one in new[:SHOWN]]
    return said
