"""Reads the logs of an attempt for the first cause: the tail of one rank's log, or of the job's own output."""

from __future__ import annotations

import time
from pathlib import Path

from transom_cli.core.events import Examined
from transom_cli.core.rootline import RootLine, root_line
from transom_cli.layout import AttemptDir, RunDir

TAIL = 256 * 1024  # bytes of a log's end that are read
SETTLE = 2.0  # seconds for a log on a network file system to show its end


def tail_of(path: Path) -> str:
    try:
        with path.open("rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - TAIL))
            return f.read().decode("utf-8", "replace")
    except OSError:
        return ""


def candidates(run: RunDir, attempt: AttemptDir, rank: int | None) -> list[Path]:
    """The logs to read, best first: the rank that died first, then its fellows, then what the batch script printed."""
    launches = sorted((attempt.path / "logs").glob("*"), key=lambda p: p.name, reverse=True)[:1]
    ranks: list[Path] = []
    for launch in launches:
        if rank is not None:
            ranks.append(launch / f"rank-{rank}.log")
        ranks += [p for p in sorted(launch.glob("*.log")) if p not in ranks]
    job_id = attempt.name.partition(".")[0]
    return [*ranks[:64], run.path / f"slurm-{job_id}.log"]


def examine(key: str, run: RunDir, attempt: AttemptDir, rank: int | None, now: float) -> Examined:
    """The first log with an error of its own tells; else the first that says anything, a victim's words included."""
    deadline = time.monotonic() + SETTLE
    while True:
        said: list[tuple[RootLine, str]] = []
        for path in candidates(run, attempt, rank):
            text = tail_of(path)
            if text.strip():
                said.append((root_line(text), path.name))
        own = [x for x in said if x[0].category not in ("unknown", "peer")]
        if said:
            found, where = (own or said)[0]
            return Examined(now, key, found.category, found.line, where)
        if time.monotonic() >= deadline:
            return Examined(now, key, "unknown", "", "no log")
        time.sleep(0.1)
