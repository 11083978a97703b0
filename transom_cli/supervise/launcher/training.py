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
from transom_cli.core.slurm_messages import slurm_is_away, task_exits
from transom_cli.slurm.guards import backoff
from transom_cli.supervise.attempt_files import ExitRecords

_ENDING = (signal.SIGTERM, signal.SIGINT)
LISTENING = 2.0  # seconds for srun's last words to be read, once it has ended


class TrainingStep:
    """`tasks` stand on `nodes` in blocks of equal size, as `--ntasks-per-node` puts them.

    An srun that could not ask for the step, since slurmctld gives no answer, is started again until it can: that is no
    fault of the launch, and nothing of it has begun.
    """

    def __init__(self, argv: list[str], env: dict[str, str], exits: Path, nodes: tuple[str, ...], tasks: int) -> None:
        self._exits = ExitRecords(exits)
        self._nodes = nodes
        self._tasks = tasks
        self._said: dict[int, RankExit] = {}
        self._argv, self._env = argv, env
        self._changing = threading.Lock()
        self._no_more = threading.Event()  # no further srun is started
        self._listened = threading.Event()  # to the last one, to its end
        self._ended_at: float | None = None  # when the present srun was first seen to have ended
        self._srun = self._start()
        self.waits = ""  # srun's own words, while slurmctld keeps it from starting
        threading.Thread(target=self._follow, name="srun-words", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self._env)

    def _follow(self) -> None:
        tries = 0
        try:
            while (away := self._listen(self._srun)) and self._srun.wait() != 0:
                self.waits, tries = away, tries + 1
                if self._no_more.wait(backoff(tries)):
                    return
                with self._changing:
                    if self._no_more.is_set():
                        return
                    self._srun, self._ended_at, self.waits = self._start(), None, ""
        finally:
            self._listened.set()

    def _listen(self, srun: subprocess.Popen[bytes]) -> str:
        """srun's own words: passed on as they are, and read for tasks whose wrapper's word may never come.

        Returns why it could not ask for a step, if Slurm's silence was why.
        """
        assert srun.stderr is not None
        away = ""
        for line in srun.stderr:
            with contextlib.suppress(OSError):  # a full disk: srun's words must still be drained, or it would stop
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            words = line.decode(errors="replace")
            away = away or slurm_is_away(words)
            for told in task_exits(words, time.time()):
                where = told.node or self._nodes[told.rank * len(self._nodes) // self._tasks]
                self._said.setdefault(told.rank, replace(told, node=where))
        return "" if self._said else away

    def exits(self) -> tuple[RankExit, ...]:
        """By rank (under torchrun: by node). A wrapper's own record counts before what srun says of its task."""
        known = {**self._said, **self._exits.read()}
        return tuple(known[n] for n in sorted(known))

    @property
    def code(self) -> int | None:
        """srun's exit code, once it has ended for good; its last words have been read then, if they come."""
        with self._changing:
            code = self._srun.poll()
            if code is None or self._listened.is_set():
                return code
            if self.waits:
                return None
            self._ended_at = self._ended_at or time.monotonic()
            return code if time.monotonic() - self._ended_at > LISTENING else None

    def signal(self, number: int) -> None:
        """srun hands it on to every task. One that ends them keeps a further srun from being started."""
        with self._changing:
            if number in _ENDING:
                self._no_more.set()
            if self._srun.poll() is None:
                self._srun.send_signal(signal.Signals(number))

    def wait(self, seconds: float) -> bool:
        """Whether srun ends within so many seconds. None is started again from now on."""
        self._no_more.set()
        with self._changing:
            srun = self._srun
        try:
            srun.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._no_more.set()
        with self._changing:
            self._srun.kill()
