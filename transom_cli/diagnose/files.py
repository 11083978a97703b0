"""Diagnose from files alone: known failures in logs, dumps of a hang, and new lines if no rule matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom_cli.diagnose.clue import Category, Clue
from transom_cli.diagnose.combine import combine, document
from transom_cli.diagnose.logs.diagnosis import diagnose_logs, from_incident
from transom_cli.diagnose.logs.frames import trainer_frame
from transom_cli.diagnose.logs.rulebook import Rulebook

if TYPE_CHECKING:
    from transom_cli.diagnose.unknown.templates import Templates

SURE = 0.5  # least confidence of a clue from dumps; dumps of a healthy run look a little like a hang
SHOWN = 5  # kinds of new lines


_DUMP = re.compile(
    rb"\s*[\x80{]|.*(?:[Tt]hread (?:0x|\d)|NCCL version )", re.DOTALL
)  # loading the readers takes longer


def diagnose(
    paths: Sequence[Path], book: Rulebook, known: Callable[[], Templates] | None = None, *, supervised: bool = False
) -> dict[str, Any]:
    """Return the document of `combine.document`, plus "unrecognised": new lines of a failure that no rule explains.

    Args:
        known: returns templates of the lines that healthy runs print.
        supervised: they are logs of a supervised run.
    """
    logs = diagnose_logs(paths, book, supervised=supervised)
    found = combine([from_incident(one) for one in logs.incidents], _hangs(paths))
    said = document(found, len(logs.files), logs.unread)
    for one in said["incidents"]:
        one["source"] = trainer_frame(Path(one["root_file"]), one["root_lineno"]) or None if one["root_file"] else None
    said["unrecognised"] = []
    if found and found[0].category is Category.UNKNOWN:
        from transom_cli.diagnose.unknown.store import NONE, new_lines

        files = [path for path in map(Path, logs.files) if path.is_file()]
        new = new_lines(files, known() if known is not None else NONE)
        said["unrecognised"] = [one.words for one in new[:SHOWN]]
    return said


def _hangs(paths: Sequence[Path]) -> list[Clue]:
    """Return what dumps among the paths show. A pipe is read once, as a log."""
    folders = [path for path in paths if path.is_dir()]
    files = [path for path in paths if path.is_file() and _DUMP.match(_head(path))]
    if not folders and not files:
        return []
    from transom_cli.diagnose.hangs.reader import is_dump, read_hang

    dumps = [one for folder in folders for one in _of_incidents(folder) or [folder]] + [*filter(is_dump, files)]
    return [clue for path in dumps for clue in read_hang(path) if clue.confidence >= SURE]


def _of_incidents(folder: Path) -> list[Path]:
    """Return the folder of the newest evidence, if there is a run's in this one: each incident has its own."""
    return sorted(folder.rglob("evidence/*/"), key=lambda one: one.stat().st_mtime)[-1:]


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8192)
    except OSError:
        return b""
