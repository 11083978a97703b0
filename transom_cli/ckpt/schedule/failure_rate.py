"""How often this run fails: from its run directory, combined with a default for runs of its size.

The default is that of Meta's RSC clusters (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", 2024, 150 million GPU hours): jobs of 8 GPUs were interrupted every 47.7 days, of 1,024 every 7.9
hours, both about once in 340 to 380 days of one GPU. Llama 3 did better (16,384 GPUs: every 3.1 hours, 2,100 days of
one). A time that is too short only saves more often, within the overhead that saves may have.
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

from transom_cli.files import json_lines
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir, RunDir

RANK_DAYS = 340.0  # days of one rank to a failure, by default
LEAST, MOST = 300.0, 365 * 86400.0  # bounds of the estimate, in seconds between failures


@dataclass(frozen=True)
class Attempt:
    """One attempt: its launches, the seconds that it trained, whether it ended in a failure, and how often a launch
    moved to other nodes."""

    launches: int
    seconds: float
    failed: bool
    moved: int = 0


@dataclass(frozen=True)
class Failures:
    """`size` ranks had `seen` failures in `watched` seconds of this run, up to the start of this launch.

    lost: failures that lost the nodes' memory: the attempt ended, or a node was replaced.
    """

    size: int
    seen: int = 0
    watched: float = 0.0
    lost: int = 0

    def mean(self, since: float) -> float:
        """Seconds between failures, after `since` more seconds of training.

        The default weighs as much as one failure of the run, on a logarithmic scale: a few failures soon outweigh it. A
        run without failures is expected to run without one for as long as it has so far, or the default.
        """
        return self._between(self.seen, since)

    def mean_lost(self, since: float) -> float:
        """Seconds between failures that memory does not survive. The default, machine failures, is the same."""
        return self._between(self.lost, since)

    def _between(self, seen: int, since: float) -> float:
        default = min(max(RANK_DAYS * 86400.0 / max(self.size, 1), LEAST), MOST)
        watched = self.watched + since
        if not seen:
            return min(max(default, watched), MOST)
        own = min(max(watched / seen, LEAST), MOST)
        return exp((log(default) + seen * log(own)) / (1 + seen))


def known_failures(size: int) -> Failures:
    """The failures of this process's run, from the launchers' journals. Unreadable journals do not count."""
    run, here = os.environ.get(paths.RUN_DIR), os.environ.get(paths.ATTEMPT)
    if not run or not here:
        return Failures(size)
    try:
        attempts = sorted(RunDir(Path(run)).attempts.iterdir())
    except OSError:
        return Failures(size)
    return count(size, (_read(AttemptDir(path), time.time() if path.name == here else None) for path in attempts))


def count(size: int, attempts: Iterable[Attempt]) -> Failures:
    """Count failures: every launch except an attempt's last one ended in one."""
    seen, watched, lost = 0, 0.0, 0
    for attempt in attempts:
        ended = attempt.failed and attempt.launches > 0
        seen += max(0, attempt.launches - 1) + ended
        lost += attempt.moved + ended
        watched += attempt.seconds
    return Failures(size, seen, watched, lost)


def _read(attempt: AttemptDir, now: float | None) -> Attempt:
    """Read an attempt. now: the time, for the running attempt. One without an outcome lost its launcher."""
    began = ended = 0.0
    launches, failed, moved, nodes = 0, now is None, 0, None
    for record in _records(attempt.launcher_journal):
        wall = record.get("wall")
        if isinstance(wall, (int, float)):
            ended = max(ended, wall)
        if record.get("type") == "launch":
            moved += launches > 0 and record.get("nodes") != nodes
            launches, nodes = launches + 1, record.get("nodes")
            began = began or ended
        elif record.get("type") == "outcome":
            failed = record.get("status") == "failed"
    with contextlib.suppress(OSError):  # without the file, use its last record
        ended = max(ended, attempt.launcher_alive.stat().st_mtime) if now is None else now
    return Attempt(launches, max(0.0, ended - began) if launches else 0.0, failed, moved)


def _records(journal: Path) -> Iterator[dict[str, Any]]:
    try:
        data = journal.read_bytes()
    except OSError:
        return
    yield from json_lines(data)
