"""The training step of one launch: srun with a wrapper for every task, and how the tasks ended."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from transom_cli.core.events import RankExit
from transom_cli.core.srunwords import task_exits
from transom_cli.supervise.exits import ExitRecords


class TrainingStep:
    """`tasks` stand on `nodes` in blocks of equal size, as `--ntasks-per-node` puts them."""

    def __init__(self, argv: list[str], env: dict[str, str], exits: Path, nodes: tuple[str, ...], tasks: int) -> None:
        self._exits = ExitRecords(exits)
        self._nodes = nodes
        self._tasks = tasks
        self._said: dict[int, RankExit] = {}
        self._srun = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        threading.Thread(target=self._listen, name="srun-words", daemon=True).start()

    def _listen(self) -> None:
        """srun's own words: passed on as they are, and read for tasks whose wrapper's word may never come."""
        assert self._srun.stderr is not None
        for line in self._srun.stderr:
            with contextlib.suppress(OSError):  # a full disk: srun's words must still be drained, or it would stop
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            for told in task_exits(line.decode(errors="replace"), time.time()):
                where = told.node or self._nodes[told.rank * len(self._nodes) // self._tasks]
                self._said.setdefault(told.rank, replace(told, node=where))

    def exits(self) -> tuple[RankExit, ...]:
        """By rank (under torchrun: by node). A wrapper's own record counts before what srun says of its task."""
        known = {**self._said, **self._exits.read()}
        return tuple(known[n] for n in sorted(known))

    @property
    def code(self) -> int | None:
        """srun's exit code, once it has ended."""
        return self._srun.poll()

    def signal(self, number: int) -> None:
        """srun hands it on to every task."""
        if self._srun.poll() is None:
            self._srun.send_signal(signal.Signals(number))

    def wait(self, seconds: float) -> bool:
        try:
            self._srun.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._srun.kill()
