"""The training step of one launch: srun with a wrapper for every task, and how the tasks ended."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import transom_cli
from transom_cli.core.events import RankExit
from transom_cli.core.slurm_messages import slurm_is_away, task_exits
from transom_cli.heartbeat.paths import FROM_SCRATCH
from transom_cli.slurm.guards import backoff
from transom_cli.supervise.attempt_files import ExitRecords

_ABORTS = re.compile("srun: (?:forcing job termination|Job step aborted)")
_ENDING = (signal.SIGTERM, signal.SIGINT)
WRAPPER = Path(transom_cli.__file__).resolve().parent / "supervise" / "agent" / "rank_wrapper.py"
LISTENING = 2.0  # seconds to read srun's last output after it has ended


@dataclass(frozen=True)
class StepPlan:
    """One srun. `tasks` are placed on `nodes` in blocks of equal size, as with `--ntasks-per-node`."""

    argv: list[str]
    env: dict[str, str]
    nodes: tuple[str, ...]
    tasks: int
    ranks: tuple[int, ...] = ()  # of these tasks in the launch; (): the same numbers
    standby: bool = False  # the tasks wait until `go`


class TrainingSteps:
    """The steps of a launch that has several, with the interface of one step."""

    def __init__(self, steps: list[TrainingStep], *, patient: bool = False) -> None:
        """patient: the launch is over only when all steps are: some ranks of a step may have been replaced."""
        self.steps, self._patient = steps, patient

    @classmethod
    def entered_again(
        cls, former: TrainingStep | TrainingSteps, lost: tuple[int, ...], exits: Path, more: list[TrainingStep]
    ) -> TrainingSteps:
        """The steps of a launch in which ranks of `former` stay, and those in `more` replace the lost ones."""
        kept, records = [step for step in former.steps if step.code is None], ExitRecords(exits)
        for step in kept:
            step.enter_again(lost, records)
        return cls([*more, *kept], patient=True)

    @property
    def argv(self) -> list[str]:
        return self.steps[0].argv

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of all steps; some may have been replaced since."""
        return tuple(dict.fromkeys(node for step in self.steps for node in step.nodes))

    def exits(self) -> tuple[RankExit, ...]:
        read: dict[ExitRecords, dict[int, RankExit]] = {}
        known = {x.rank: x for step in self.steps for x in step.exits(read)}
        return tuple(known[n] for n in sorted(known))

    @property
    def waits(self) -> str:
        return next((step.waits for step in self.steps if step.waits), "")

    @property
    def from_scratch(self) -> bool:
        """As of one step: that of the ranks that the launch has started."""
        return self.steps[0].from_scratch

    @property
    def code(self) -> int | None:
        """That of the first step that has failed; 0 if all have ended well."""
        codes = [step.code for step in self.steps]
        if self._patient and None in codes:
            return None
        return next((code for code in codes if code), None if None in codes else 0)

    def signal(self, number: int) -> None:
        for step in self.steps:
            step.signal(number)

    def aborted(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        return any(step.aborted(max(0.0, until - time.monotonic())) for step in self.steps)

    def hold(self) -> None:
        for step in self.steps:
            step.hold()

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        ended = [step.wait(max(0.0, until - time.monotonic())) for step in self.steps]
        return all(ended)

    def kill(self) -> None:
        for step in self.steps:
            step.kill()


class TrainingStep:
    """One srun.

    If srun cannot request the step since slurmctld does not answer, it is restarted until it can: the launch has not
    failed, since nothing of it has begun.
    """

    def __init__(self, plan: StepPlan, exits: Path) -> None:
        self._exits = [ExitRecords(exits)]  # of the launch that the ranks are in, and of the one before
        self._folder = exits  # of the launch in which they started
        self._lost: set[int] = set()  # ranks that other steps have replaced
        self._begun: frozenset[int] = frozenset()  # ranks that standbys became, if not all
        self._plan = plan
        self._said: dict[int, RankExit] = {}
        self._changing = threading.Lock()
        self._no_more = threading.Event()  # start no further srun
        if plan.standby:
            self._no_more.set()
        self._aborted = threading.Event()  # srun says that it ends the step
        self._listened = threading.Event()  # all output of the last srun was read
        self._ended_at: float | None = None  # when the present srun was first seen to have ended
        self._srun = self._start()
        self.waits = ""  # srun's own message, while slurmctld keeps it from starting
        threading.Thread(target=self._follow, name="srun-words", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        plan = self._plan
        taken = subprocess.PIPE if plan.standby else subprocess.DEVNULL
        return subprocess.Popen(plan.argv, stdin=taken, stderr=subprocess.PIPE, env=plan.env)

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
            if _ABORTS.search(words):
                self._aborted.set()
            away = away or slurm_is_away(words)
            for end in task_exits(words, time.time()):
                plan = self._plan
                where = end.node or plan.nodes[end.rank * len(plan.nodes) // plan.tasks]
                rank = plan.ranks[end.rank] if plan.ranks else end.rank
                self._said.setdefault(rank, replace(end, rank=rank, node=where, error=0.0))
        return "" if self._said else away

    def go(self, variables: Mapping[str, str], ranks: tuple[int, ...]) -> bool:
        """Let the tasks begin as these ranks, with these variables; others of them end. False if srun has ended."""
        assert self._srun.stdin is not None
        if len(ranks) == self._plan.tasks:  # those of a spare had no ranks before
            self._plan = replace(self._plan, ranks=ranks)
        else:
            self._begun = frozenset(ranks)
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

    def exits(self, read: dict[ExitRecords, dict[int, RankExit]] | None = None) -> tuple[RankExit, ...]:
        """Exits by rank (under torchrun: by node). A wrapper's own record takes precedence over srun's message.

        read: what was read for other steps just now.
        """
        known = {rank: end for rank, end in self._said.items() if not self._begun or rank in self._begun}
        read = {} if read is None else read
        for records in self._exits:
            if records not in read:
                read[records] = records.read()
            known |= read[records]
        return tuple(known[n] for n in sorted(known) if n not in self._lost)

    @property
    def from_scratch(self) -> bool:
        """Whether a rank says that its standby was of no use."""
        return self._plan.standby and any(self._folder.glob(f"{FROM_SCRATCH}*"))

    @property
    def steps(self) -> list[TrainingStep]:
        return [self]

    def enter_again(self, lost: tuple[int, ...], exits: ExitRecords) -> None:
        """From now on the ranks but `lost` are in a launch with these exits. One may have ended before."""
        self._lost |= set(lost)
        self._exits = [self._exits[-1], exits]

    @property
    def argv(self) -> list[str]:
        return self._plan.argv

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._plan.nodes

    @property
    def tasks(self) -> int:
        return self._plan.tasks

    @property
    def code(self) -> int | None:
        """srun's exit code, once it has ended for good and its output was read."""
        with self._changing:
            code = self._srun.poll()
            if code and (self._lost or self._all_recorded()):
                code = 0  # that of a rank that was replaced, or of a node that carries none; others have a record
            if code is None or self._listened.is_set():
                return code
            if self.waits:
                return None
            self._ended_at = self._ended_at or time.monotonic()
            return code if time.monotonic() - self._ended_at > LISTENING else None

    def _all_recorded(self) -> bool:
        """Whether all ranks of standbys that were not all used have ended, and left a record."""
        with contextlib.suppress(OSError):
            return bool(self._begun) and self._begun <= {x.rank for x in self.exits()}
        return False

    def signal(self, number: int) -> None:
        """Send a signal, which srun forwards to every task. After one that ends them, no further srun is started."""
        with self._changing:
            if number in _ENDING:
                self._no_more.set()
            if self._srun.poll() is None:
                self._srun.send_signal(signal.Signals(number))

    def aborted(self, seconds: float) -> bool:
        """Wait until srun says that it ends the step, as it does if Slurm signals the job. False on timeout."""
        return self._aborted.wait(seconds)

    def hold(self) -> None:
        """Start no further srun."""
        self._no_more.set()

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
