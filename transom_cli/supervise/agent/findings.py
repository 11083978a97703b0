"""The agent's findings about its node, in `nodes/<node>.jsonl`: one JSON object per line, appended by the agent alone.

    {"schema": 1, "wall": ..., "kind": ..., "verdict": ..., "words": ..., "rank": ..., "launch": ...}

kind: "log:" and a category of `diagnose.clue`, or "host:" and a check of `health.host_watch`. verdict: as in
`health.finding`. rank: null for the node itself. skipped: how many findings before this one were not written.
"""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from transom_cli.health.finding import Reported, Verdict
from transom_cli.modes import open_to_group

AGAIN = 600.0  # seconds before a finding that differs only in its numbers is written again
A_MINUTE = 60  # records per minute at most
LIMIT = 1 << 20  # bytes of the file; its last record says that it is full
_KNOWN = 1024  # findings remembered in order not to repeat them
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
LOG, HOST = "log:", "host:"


class Findings:
    """Bounded in size and rate, whatever ranks print. A restarted agent continues where the former one ended."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._known: dict[tuple[object, ...], float] = {}
        self._minute, self._in_minute, self._skipped = float("-inf"), 0, 0
        self._full = self._cut = False  # cut: its writer was killed within the last line
        self.reported: dict[str, Reported] = {}  # by check of the host, what was reported last
        self._restore()

    def report(
        self, kind: str, verdict: Verdict, words: str, rank: int | None, launch: int, *, always: bool = False
    ) -> None:
        """Write a finding, unless it was written lately. `always`: a state has changed. Raises OSError."""
        now = self._clock()
        key = _key(kind, verdict, words, rank, launch)
        if self._full or (not always and now - self._known.get(key, float("-inf")) < AGAIN):
            return
        if now - self._minute >= 60.0:
            self._minute, self._in_minute = now, 0
        if self._in_minute >= A_MINUTE:
            self._skipped += 1
            return
        record: dict[str, object] = {"schema": 1, "wall": time.time(), "kind": kind, "verdict": verdict.value}
        record.update(words=words, rank=rank, launch=launch)
        if self._skipped:
            record["skipped"] = self._skipped
        self._append(record)
        self._in_minute, self._skipped = self._in_minute + 1, 0
        self._remember(key, now)

    def skip(self, count: int) -> None:
        """Note that so many findings were dropped; the next record says so."""
        self._skipped += count

    def _remember(self, key: tuple[object, ...], now: float) -> None:
        self._known.pop(key, None)
        self._known[key] = now
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def _append(self, record: dict[str, object]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        try:
            open_to_group(descriptor, self._path)
            if os.fstat(descriptor).st_size >= LIMIT:
                self._full = True
                record = {"schema": 1, "wall": time.time(), "kind": "full", "verdict": Verdict.UNKNOWN.value}
                record.update(words=f"no more findings: {LIMIT >> 20} MiB are written", rank=None, launch=-1)
            os.write(descriptor, b"\n" * self._cut + json.dumps(record).encode() + b"\n")
            self._cut = False
        finally:
            os.close(descriptor)

    def _restore(self) -> None:
        """Read what a former agent has written. Skip unreadable lines, such as the last one of a crash."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        self._cut = bool(data) and not data.endswith(b"\n")
        now = self._clock()
        for line in data.splitlines():
            try:
                found = json.loads(line)
                kind, verdict = str(found["kind"]), Verdict(found["verdict"])
                key = _key(kind, verdict, str(found["words"]), found["rank"], found["launch"])
                self._remember(key, now)
            except (ValueError, KeyError, TypeError):
                continue
            self._full = self._full or kind == "full"
            if kind.startswith(HOST):
                self.reported[kind.removeprefix(HOST)] = Reported(verdict)


def _key(kind: str, verdict: Verdict, words: str, rank: object, launch: object) -> tuple[object, ...]:
    return kind, verdict, _NUMBERS.sub("#", words), rank, launch
