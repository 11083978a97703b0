"""The training step of one launch: srun with a wrapper for every task, and how the tasks ended."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transom_cli.core.events import RankExit
from transom_cli.core.slurm_messages import slurm_is_away, task_exits
from transom_cli.slurm.guards import backoff
from transom_cli.supervise.attempt_files import ExitRecords

_ENDING = (signal.SIGTERM, signal.SIGINT)
LISTENING = 2.0  # seconds to read srun's last output after it has ended


class TrainingStep:
    """One srun. `tasks` are placed on `nodes` in blocks of equal size, as with `--ntasks-per-node`.

    If srun cannot request the step since slurmctld does not answer, it is restarted until it can: the launch has not
    failed, since nothing of it has begun.

    waits: its tasks wait until `go`.
    """

    def __init__(
        self, argv: list[str], env: dict[str, str], exits: Path, nodes: tuple[str, ...], tasks: int, *,
        waits: bool = False,
    ) -> None:  # fmt: skip
        self._exits = ExitRecords(exits)
        self._nodes = nodes
        self._tasks = tasks
        self._said: dict[int, RankExit] = {}
        self.argv, self._env = argv, env
        self._input = subprocess.PIPE if waits else subprocess.DEVNULL
        self._changing = threading.Lock()
        self._no_more = threading.Event()  # start no further srun
        if waits:
            self._no_more.set()
        self._listened = threading.Event()  # all output of the last srun was read
        self._ended_at: float | None = None  # when the present srun was first seen to have ended
        self._srun = self._start()
        self.waits = ""  # srun's own message, while slurmctld keeps it from starting
        threading.Thread(target=self._follow, name="srun-words", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.argv, stdin=self._input, stderr=subprocess.PIPE, env=self._env)

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
        """Forward srun's output, and parse it for tasks whose wrapper may never write a record.

        Returns:
            The message by which srun could not request a step, if slurmctld did not answer; else "".
        """
        assert srun.stderr is not None
        away = ""
        for line in srun.stderr:
            with contextlib.suppress(OSError):  # a full disk: read on, or srun would block
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            words = line.decode(errors="replace")
            away = away or slurm_is_away(words)
            for end in task_exits(words, time.time()):
                where = end.node or self._nodes[end.rank * len(self._nodes) // self._tasks]
                self._said.setdefault(end.rank, replace(end, node=where, error=0.0))
        return "" if self._said else away

    def go(self, variables: Mapping[str, str]) -> bool:
        """Let the tasks begin, with these variables. False if srun has ended."""
        assert self._srun.stdin is not None
        try:
            self._srun.stdin.write(json.dumps(variables).encode() + b"\n")
            self._srun.stdin.close()
        except OSError:
            return False
        return True

    def leave(self) -> None:
        """End the tasks that wait."""
        if self._srun.stdin is not None:
            with contextlib.suppress(OSError):
                self._srun.stdin.close()

    def exits(self) -> tuple[RankExit, ...]:
        """Exits by rank (under torchrun: by node). A wrapper's own record takes precedence over srun's message."""
        known = {**self._said, **self._exits.read()}
        return tuple(known[n] for n in sorted(known))

    @property
    def code(self) -> int | None:
        """srun's exit code, once it has ended for good and its output was read."""
        with self._changing:
            code = self._srun.poll()
            if code is None or self._listened.is_set():
                return code
            if self.waits:
                return None
            self._ended_at = self._ended_at or time.monotonic()
            return code if time.monotonic() - self._ended_at > LISTENING else None

    def signal(self, number: int) -> None:
        """Send a signal, which srun forwards to every task. After one that ends them, no further srun is started."""
        with self._changing:
            if number in _ENDING:
                self._no_more.set()
            if self._srun.poll() is None:
                self._srun.send_signal(signal.Signals(number))

    def wait(self, seconds: float) -> bool:
        """Wait for srun to end, and start no further one. False on timeout."""
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
