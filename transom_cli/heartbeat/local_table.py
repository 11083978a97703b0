"""From ranks' records to rows of a heartbeat table, and the table to its file; and a rank that writes its own table.

Under an unmodified sbatch script there is no agent, so a daemon thread of each rank writes
`<attempt>/nodes/<node>.rank<r>.beats` once a second. That table is a sign of life of the rank, not of the node: a
stopped process stops its thread too. `core.stall` takes a node for silent only if all of its tables are.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from transom_cli.files import make_private
from transom_cli.heartbeat import paths
from transom_cli.heartbeat.record import PHASES, SIZE, Record, decode_loss, newest
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.heartbeat.writer import Opened, Writer
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.modes import open_to_group

EVERY = 1.0  # seconds between two tables
PATIENCE = 2.0  # seconds that an exiting trainer waits for a write to a dead file system


def start(record: Record) -> Opened | None:
    """Start the thread. None if this is no Slurm job, or its run directory is not visible."""
    attempt = own_attempt()
    if attempt is None:
        return None
    make_private(attempt.nodes)
    memory = bytearray(SIZE)
    writer = Writer(memory, record)
    table = LocalTable(attempt, memory)
    threading.Thread(target=table.keep, name="transom-beats", daemon=True).start()

    def at_exit() -> None:
        writer.finish()
        table.close()

    return writer, at_exit


class LocalTable:
    """`memory` holds the rank's record, written by the trainer's thread."""

    def __init__(self, attempt: AttemptDir, memory: bytearray) -> None:
        self._attempt = attempt
        self._memory = memory
        self._node = paths.node_name()
        self._seq = 0
        self._said = False  # that the table cannot be written
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def keep(self) -> None:
        while True:
            with self._lock:
                if self._closing.is_set():
                    return
                self._write(process(os.getpid())[0])
            if self._closing.wait(EVERY):
                return

    def close(self) -> None:
        """Write the last table, which says that the process is gone."""
        self._closing.set()
        if self._lock.acquire(timeout=PATIENCE):
            self._write("X", closed=True)

    def _write(self, proc: str, closed: bool = False) -> None:
        record = newest(bytes(self._memory))
        if record is None:
            return
        self._seq += 1
        beats = (row(record, time.monotonic_ns(), record.pid, proc),)
        path = self._attempt.nodes / f"{self._node}.rank{record.rank}.beats"
        try:
            publish(path, encode(NodeTable(self._node, self._attempt.name, self._seq, beats, closed)))
        except OSError as error:  # a full or missing file system: try again in a second
            if not self._said:
                self._said = True
                paths.say_blind(error)


def own_attempt() -> AttemptDir | None:
    """The directory of the attempt that this process belongs to; None outside a Slurm job."""
    attempt_dir = os.environ.get(paths.ATTEMPT_DIR)
    if attempt_dir:
        return AttemptDir(Path(attempt_dir))
    run, job = Path(os.environ[paths.RUN_DIR]), os.environ.get("SLURM_JOB_ID")
    if not job or not run.is_dir():
        return None
    return RunDir(run).attempt(int(job), int(os.environ.get("SLURM_RESTART_COUNT") or 0))


_LETTERS = {"R": "R", "S": "S", "I": "S", "D": "D", "T": "T", "t": "T", "Z": "Z", "X": "X", "x": "X"}
GONE = ("X", 0)


def process(pid: int) -> tuple[str, int]:
    """Return a process's state letter and its start time (clock ticks since boot), which tells reused PIDs apart.

    ("X", 0) if there is none; ("?", 0) if /proc cannot be read.
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
    """Make a row of the table. now_ns: CLOCK_MONOTONIC of this node."""
    return RankBeat(
        rank=record.rank,
        launch=record.launch,
        step=record.step,
        count=record.count,
        age=max(0.0, (now_ns - record.changed) / 1e9),
        loss=decode_loss(record.loss),
        phase=PHASES[record.phase],
        pid=pid,
        proc=proc,
        since_start=record.since_start,
    )


def publish(path: Path, data: bytes) -> None:
    """Replace a table by rename, so that a reader sees a whole one. Raises OSError. Four calls to the file system.

    No fsync: the next table replaces this one soon, and after a crash of the node its last one is worthless.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        open_to_group(fd, path)
        if os.write(fd, data) != len(data):
            raise OSError(f"short write to {temporary}")
    finally:
        os.close(fd)
    temporary.replace(path)
