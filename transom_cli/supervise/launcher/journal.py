"""The launcher's journal, where the operator reads it, and its messages in the job's log.

A full disk does not end a training: entries that cannot be written are left out.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Protocol

from transom_cli.core.codec import plain
from transom_cli.files import open_private


class JournalWriter(Protocol):
    def __call__(self, kind: str, **fields: Any) -> None: ...


class LauncherJournal:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, launch: int, **fields: Any) -> None:
        record = {"type": kind, "wall": time.time(), "launch": launch}
        record.update((name, plain(value)) for name, value in fields.items())
        try:
            with open_private(self._path, "a", encoding="utf-8") as f:
                f.write(json.dumps(record) + "\n")
        except OSError as error:
            say(f"transom: cannot write {self._path}: {error}")


def say(words: str) -> None:
    with contextlib.suppress(OSError):
        print(words, flush=True)
