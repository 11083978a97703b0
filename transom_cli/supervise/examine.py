"""Reads the logs of an attempt for the first cause: the tail of one rank's log, or of the job's own output."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from transom_cli.agent.logs import tail_of
from transom_cli.core.events import Examined
from transom_cli.core.rootline import RootLine, clean, first_cause, log_order, root_line
from transom_cli.layout import AttemptDir, RunDir, parse_attempt

SETTLE = 2.0  # seconds for a log on a network file system to show its end
ALL = 64  # logs that are read at most


def candidates(
    run: RunDir, attempt: AttemptDir, rank: int | None, without: Collection[str] = frozenset()
) -> list[Path]:
    """The logs to read, best first: the rank that died first, then its fellows, then what the batch script printed.

    The last one is shared by all attempts of a job. without: names of rank logs that have been read already.
    """
    launches = [p for p in (attempt.path / "logs").glob("*") if p.name.isdecimal()]
    ranks: list[Path] = []
    if launches:
        launch = max(launches, key=lambda p: int(p.name))
        unread = [p for p in launch.glob("*.log") if p.name not in without]
        ranks = sorted(unread, key=lambda p: log_order(p.name, rank))
    job_id, _ = parse_attempt(attempt.name)
    return [*ranks[:ALL], run.job_log(job_id)]


def examine(
    key: str, run: RunDir, attempt: AttemptDir, rank: int | None, now: float, asked: Sequence[Mapping[str, object]] = ()
) -> Examined:
    """What `rootline.first_cause` makes of them.

    The batch script's output counts only when no rank has said anything: it may end with an earlier attempt's error.
    asked: what the nodes' own agents have read (see `agent.logs.read_cause`); only the other logs are read here.
    """
    deadline = time.monotonic() + SETTLE
    heard, read = _heard(asked)
    while True:
        said = list(heard)
        *ranks, batch = candidates(run, attempt, rank, read)
        for path in (*ranks, batch):
            text = tail_of(path) if path is not batch or not said else ""
            if text.strip():
                said.append((root_line(text), path.name))
        told = first_cause(said, rank)
        if told is not None:
            found, where = told
            return Examined(now, key, found.category, found.line, where)
        if time.monotonic() >= deadline:
            return Examined(now, key, "unknown", "", "no log")
        time.sleep(0.1)


def _heard(asked: Sequence[Mapping[str, object]]) -> tuple[list[tuple[RootLine, str]], set[str]]:
    """What the agents' answers tell, and the logs that were read for it; an answer that is none is left out."""
    said, read = [], set()
    for answer in asked:
        names, told = answer.get("names"), [answer.get(name) for name in ("category", "line", "where")]
        if isinstance(names, list):
            read |= {name for name in names if isinstance(name, str)}
        category, line, where = (x if isinstance(x, str) else "" for x in told)
        if category and where:
            said.append((RootLine(category, clean(line)), clean(where)))
    return said, read
