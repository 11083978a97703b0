"""A rank that writes its own table: under an unmodified sbatch script nobody else is there to do it.

A daemon thread writes `<attempt>/nodes/<node>.rank<r>.beats` once a second. That table is the rank's sign of life and
not the node's: a stopped process stops its thread too. See `core.quiet`, which takes a node for silent only when all
of its tables are.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from transom_cli.heartbeat import places
from transom_cli.heartbeat.client import Opened, Writer
from transom_cli.heartbeat.reading import process, publish, row
from transom_cli.heartbeat.record import SIZE, Record, newest
from transom_cli.heartbeat.table import NodeTable
from transom_cli.layout import AttemptDir, RunDir

EVERY = 1.0  # seconds between two tables
PATIENCE = 2.0  # seconds that an exiting trainer waits for a write that hangs on a dead file system


def start(record: Record) -> Opened | None:
    """Start the thread. None when this is not a Slurm job or its run directory cannot be seen."""
    attempt = own_attempt()
    if attempt is None:
        return None
    attempt.nodes.mkdir(parents=True, exist_ok=True)
    memory = bytearray(SIZE)
    writer = Writer(memory, record)
    table = OwnTable(attempt, memory)
    threading.Thread(target=table.keep, name="transom-beats", daemon=True).start()

    def at_exit() -> None:
        writer.finish()
        table.close()

    return writer, at_exit


class OwnTable:
    """`memory` holds the rank's record, written by the trainer's thread."""

    def __init__(self, attempt: AttemptDir, memory: bytearray) -> None:
        self._attempt = attempt
        self._memory = memory
        self._node = places.node_name()
        self._seq = 0
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
        """The last table, which says that the process is gone."""
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
            publish(path, NodeTable(self._node, self._attempt.name, self._seq, beats, closed))
        except OSError:
            return  # a full or absent file system: the silence tells, and the next second tries again


def own_attempt() -> AttemptDir | None:
    """The folder of the attempt that this process belongs to."""
    told = os.environ.get(places.ATTEMPT_DIR)
    if told:
        return AttemptDir(Path(told))
    run, job = Path(os.environ[places.RUN_DIR]), os.environ.get("SLURM_JOB_ID")
    if not job or not run.is_dir():
        return None
    return RunDir(run).attempt(int(job), int(os.environ.get("SLURM_RESTART_COUNT") or 0))
