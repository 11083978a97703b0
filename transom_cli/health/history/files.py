"""The files of a user's node history: `~/.transom/nodes/`, or `nodes/` in $TRANSOM_STATE_DIR.

Every file has one writer: `<run id>.jsonl` that run's operator, `lift-<time>-<pid>.jsonl` and
`speed-<time>-<pid>.jsonl` one command. So no lock is needed, not even on a network file system. A file that was not
written for 90 days no longer counts, and the next writer removes it.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from transom_cli.files import json_lines, make_state_folder, publish_text, tail
from transom_cli.health.history.nodes import REMEMBERED
from transom_cli.health.history.records import Lift, Record, from_json, to_json

_MOST = 16 << 20  # bytes read of one file, from its end: years of a run's attempts
_VARIABLE = "TRANSOM_STATE_DIR"


def history_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's history. The sandbox sets another one for its runs."""
    state = environ.get(_VARIABLE)
    return (Path(state).absolute() if state else Path.home() / ".transom") / "nodes"


def read_history(folder: Path, now: float) -> list[Record]:
    """Return all readable records; damaged files and lines are skipped. Without a folder there is no history.

    Raises:
        OSError: the folder exists but cannot be read.
    """
    records: list[Record] = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        with contextlib.suppress(OSError):
            if _counts(path, now):
                found = (from_json(data) for data in json_lines(tail(path, _MOST)))
                records += [record for record in found if record is not None]
    return records


def _counts(path: Path, now: float) -> bool:
    """Return whether to read the file. The name of a writer's temporary file begins with a dot."""
    ours = path.suffix in (".jsonl", ".json") and not path.name.startswith(".")
    return ours and path.is_file() and path.stat().st_mtime > now - REMEMBERED


class HistoryFile:
    """A run's file, to which its operator appends."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._path = folder / f"{run_id}.jsonl"

    def add(self, records: Iterable[Record]) -> None:
        """Append records that are not in the file yet, and fsync. Raises OSError on failure."""
        lines = [json.dumps(to_json(r), sort_keys=True).encode() for r in records]
        known = set(self._read().splitlines())
        new = [line for line in dict.fromkeys(lines) if line not in known]
        if not new:
            return
        make_folder(self._folder)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            torn = b"" if self._read().endswith(b"\n") or not file.tell() else b"\n"
            rest = memoryview(torn + b"".join(line + b"\n" for line in new))
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""


def make_folder(folder: Path) -> None:
    """Create the folder, readable by its owner only, and remove files that no longer count."""
    make_state_folder(folder.parent)
    make_state_folder(folder)
    old = time.time() - REMEMBERED
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.suffix in (".jsonl", ".json", ".tmp") and path.stat().st_mtime < old:
                path.unlink()


def write_lift(folder: Path, lift: Lift) -> None:
    """Write a lift to a file of its own. Raises OSError on failure."""
    write_record(folder, "lift", (lift,))


def write_record(folder: Path, name: str, records: Iterable[Record]) -> None:
    """Write records to a file of their own. Raises OSError on failure."""
    make_folder(folder)
    path = folder / f"{name}-{time.time_ns()}-{os.getpid()}.jsonl"
    publish_text(path, "".join(json.dumps(to_json(one), sort_keys=True) + "\n" for one in records))
