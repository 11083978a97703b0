"""What was told to whom, kept in the run directory, so that an operator that takes over does not tell it again.

`told/<epoch>.jsonl`: each operator writes a file of its own and reads them all.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from transom_cli.files import json_lines

log = logging.getLogger("transom.operator")

TOLD, GIVEN_UP, DROPPED = "told", "given up", "dropped"


class Ledger:
    """For the threads of all targets."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._path = folder / f"{epoch}.jsonl"
        self._lock = threading.Lock()  # of what is known: never held while a disk is waited for
        self._writing = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._sent: dict[str, tuple[float, ...]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        for record in _records(folder):
            target, keys, at = record.get("target"), record.get("keys"), record.get("at")
            if isinstance(target, str) and isinstance(keys, list) and isinstance(at, (int, float)):
                self._note(target, [str(k) for k in keys], str(record.get("how")), float(at))

    def known(self, target: str, key: str) -> bool:
        """Whether nothing more is to be done about it."""
        with self._lock:
            return (target, key) in self._known

    def sent(self, target: str) -> tuple[float, ...]:
        """When messages went out to it, the last 1,000."""
        with self._lock:
            return self._sent.get(target, ())

    def counts(self) -> dict[tuple[str, str], int]:
        """Messages (of what was dropped: news) by target and what became of them."""
        with self._lock:
            return dict(self._counts)

    def note(self, target: str, keys: Iterable[str], how: str, at: float) -> None:
        """Durable where the disk allows; else this operator knows it, and the next one may tell it again."""
        keys = list(keys)
        with self._lock:
            self._note(target, keys, how, at)
        record = {"at": round(at, 3), "target": target, "how": how, "keys": keys}
        try:
            with self._writing:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    file.write(json.dumps(record).encode() + b"\n")
                    os.fsync(file.fileno())
        except OSError as error:
            log.warning("cannot write down what was told: %s", error)

    def _note(self, target: str, keys: list[str], how: str, at: float) -> None:
        self._known.update((target, key) for key in keys)
        self._counts[target, how] = self._counts.get((target, how), 0) + (len(keys) if how == DROPPED else 1)
        if how == TOLD:
            self._sent[target] = (*self._sent.get(target, ()), at)[-1000:]


def _records(folder: Path) -> Iterable[dict[str, object]]:
    try:
        paths = sorted(folder.glob("*.jsonl"))
    except OSError:
        return
    for path in paths:
        try:
            yield from json_lines(path.read_bytes())
        except OSError as error:
            log.warning("cannot read what was told: %s", error)
