"""The history's files, of one user: `~/.transom/nodes/`, or `nodes/` in $TRANSOM_STATE_DIR.

Every file has one writer: `<run id>.jsonl` that run's operator, `lift-<time>-<pid>.json` one command. So no lock is
needed, on a network file system neither. A file that nobody has written to for 90 days tells nothing any more: whoever
writes next removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from transom_cli.files import json_lines, publish_text
from transom_cli.health.history.fold import REMEMBERED
from transom_cli.health.history.records import Lift, Record, from_json, to_json

_MOST = 16 << 20  # bytes read of one file, from its end: years of a run's attempts
_VARIABLE = "TRANSOM_STATE_DIR"


def history_dir(environ: Mapping[str, str]) -> Path:
    """Where the user's history lives. The sandbox gives its own runs a place of their own."""
    told = environ.get(_VARIABLE)
    return (Path(told).absolute() if told else Path.home() / ".transom") / "nodes"


def read_history(folder: Path, now: float) -> list[Record]:
    """All that can be read. A file or a line that is damaged is passed over; no folder is no history.

    OSError where there is a folder and it cannot be read.
    """
    records: list[Record] = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        with contextlib.suppress(OSError):
            if _counts(path, now):
                found = (from_json(data) for data in json_lines(_tail(path)))
                records += [record for record in found if record is not None]
    return records


def _counts(path: Path, now: float) -> bool:
    """A temporary file of somebody who writes begins with a dot."""
    ours = path.suffix in (".jsonl", ".json") and not path.name.startswith(".")
    return ours and path.is_file() and path.stat().st_mtime > now - REMEMBERED


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MOST))
        return file.read(_MOST)


class HistoryFile:
    """A run's own file, which its operator appends to."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._path = folder / f"{run_id}.jsonl"

    def add(self, records: Iterable[Record]) -> None:
        """Append those that are not there yet, and have them durable. OSError when it cannot."""
        lines = [json.dumps(to_json(r), sort_keys=True).encode() for r in records]
        known = set(self._read().splitlines())
        new = [line for line in dict.fromkeys(lines) if line not in known]
        if not new:
            return
        make_folder(self._folder)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            torn = b"" if self._read().endswith(b"\n") or not file.tell() else b"\n"
            left = memoryview(torn + b"".join(line + b"\n" for line in new))
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""


def make_folder(folder: Path) -> None:
    """Its owner's alone; and what has been forgotten is removed from it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = time.time() - REMEMBERED
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.suffix in (".jsonl", ".json", ".tmp") and path.stat().st_mtime < old:
                path.unlink()


def write_lift(folder: Path, lift: Lift) -> None:
    """OSError when it cannot."""
    make_folder(folder)
    path = folder / f"lift-{time.time_ns()}-{os.getpid()}.json"
    publish_text(path, json.dumps(to_json(lift), sort_keys=True) + "\n")
