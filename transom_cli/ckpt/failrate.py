"""How far apart this run's failures lie: what its run directory tells, beside what runs of its size are known for.

The default is that of Meta's RSC clusters (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", 2024, 150 million GPU hours): jobs of 8 GPUs were interrupted every 47.7 days, of 1,024 every 7.9
hours, both about once in 340 to 380 days of one GPU. Llama 3 did better (16,384 GPUs: every 3.1 hours, 2,100 days of
one), and a time that is too short only saves more often, within the overhead that saves may have.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from transom_cli.beats import places
from transom_cli.files import json_lines
from transom_cli.layout import AttemptDir, RunDir

RANK_DAYS = 340.0  # days of one rank to a failure, by default
LEAST, MOST = 300.0, 365 * 86400.0  # seconds between failures, whatever was seen


@dataclass(frozen=True)
class Attempt:
    """What one attempt tells: its launches, the seconds that it trained, and whether it has ended in a failure."""

    launches: int
    seconds: float
    failed: bool


@dataclass(frozen=True)
class Failures:
    """`size` ranks train together; `seen` failures in `watched` seconds of this run, up to the start of this launch."""

    size: int
    seen: int = 0
    watched: float = 0.0

    def mean(self, since: float) -> float:
        """Seconds between failures, `since` seconds of training later.

        The default counts as much as one failure of the run's own, on a scale of factors: a few close together soon
        outweigh it. A run without any is taken to go on without one for as long as it has so far, or the default.
        """
        default = min(max(RANK_DAYS * 86400.0 / max(self.size, 1), LEAST), MOST)
        watched = self.watched + since
        if not self.seen:
            return min(max(default, watched), MOST)
        own = min(max(watched / self.seen, LEAST), MOST)
        return exp((log(default) + self.seen * log(own)) / (1 + self.seen))


def known_failures(size: int) -> Failures:
    """Of the run that this process is of. Reads the launchers' journals; what cannot be read does not count."""
    run, here = os.environ.get(places.RUN_DIR), os.environ.get(places.ATTEMPT)
    if not run or not here:
        return Failures(size)
    try:
        attempts = sorted(RunDir(Path(run)).attempts.iterdir())
    except OSError:
        return Failures(size)
    return count(size, (_read(AttemptDir(path), time.time() if path.name == here else None) for path in attempts))


def count(size: int, attempts: Iterable[Attempt]) -> Failures:
    """Every launch but an attempt's last one ended in a failure."""
    seen, watched = 0, 0.0
    for attempt in attempts:
        seen += max(0, attempt.launches - 1) + (attempt.failed and attempt.launches > 0)
        watched += attempt.seconds
    return Failures(size, seen, watched)


def _read(attempt: AttemptDir, now: float | None) -> Attempt:
    """`now`: the time, for the attempt that is under way. One that left no outcome lost its launcher."""
    began = ended = 0.0
    launches, failed = 0, now is None
    for record in _records(attempt.launcher_journal):
        wall = record.get("wall")
        if isinstance(wall, (int, float)):
            ended = max(ended, wall)
        if record.get("type") == "launch":
            launches += 1
            began = began or ended
        elif record.get("type") == "outcome":
            failed = record.get("status") == "failed"
    with contextlib.suppress(OSError):  # without the file its last word must do
        ended = max(ended, attempt.launcher_alive.stat().st_mtime) if now is None else now
    return Attempt(launches, max(0.0, ended - began) if launches else 0.0, failed)


def _records(journal: Path) -> Iterator[dict[str, Any]]:
    try:
        data = journal.read_bytes()
    except OSError:
        return
    yield from json_lines(data)
