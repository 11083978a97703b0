"""From a rank's record to its row in the table, and the table to its file: what the agent and a lone rank share."""

from __future__ import annotations

import os
from pathlib import Path

from transom_cli.heartbeat.record import PHASES, Record, loss_told
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode

_LETTERS = {"R": "R", "S": "S", "I": "S", "D": "D", "T": "T", "t": "T", "Z": "Z", "X": "X", "x": "X"}
GONE = ("X", 0)


def process(pid: int) -> tuple[str, int]:
    """State letter of a process and its start time in clock ticks since boot, which tells it from a later namesake.

    ("X", 0) when there is none; ("?", 0) when /proc does not tell.
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return GONE
    except OSError:
        return "?", 0
    try:
        data = os.read(fd, 1024)
    except ProcessLookupError:
        return GONE
    except OSError:
        return "?", 0
    finally:
        os.close(fd)
    fields = data[data.rfind(b")") + 2 :].split()  # the name before it may hold spaces and brackets
    if len(fields) < 20:
        return "?", 0
    return _LETTERS.get(fields[0].decode("ascii", "replace"), "?"), int(fields[19])


def row(record: Record, now_ns: int, pid: int, proc: str) -> RankBeat:
    """`now_ns`: CLOCK_MONOTONIC of this node."""
    return RankBeat(
        rank=record.rank,
        launch=record.launch,
        step=record.step,
        count=record.count,
        age=max(0.0, (now_ns - record.changed) / 1e9),
        loss=loss_told(record.loss),
        phase=PHASES[record.phase],
        pid=pid,
        proc=proc,
        since_start=record.since_start,
    )


def publish(path: Path, table: NodeTable) -> None:
    """Replace the table by rename, so that a reader sees a whole one. Raises OSError.

    There is no fsync: the next table replaces this one within a second, and after a crash of the node its last one is
    worth nothing. An fsync a second from every node would be a load that the shared file system feels.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, encode(table))
    finally:
        os.close(fd)
    temporary.replace(path)
