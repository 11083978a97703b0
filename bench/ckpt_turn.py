"""One turn of one method in bench/ckpt.py: ranks that save until they are killed, and ranks that restart and load.

Processes that survive the killed ranks remain descendants of the bench (ckpt_below), and end with the turn.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ckpt_below import end_all, memory_below
from ckpt_methods import companion, leftovers
from ckpt_plan import Case
from ckpt_worker import Order
from harness import BenchError, wait_for

from transom_cli.inherited import TUNABLES, with_streaming_copies

WORKER = Path(__file__).with_name("ckpt_worker.py")
_QUIET = 2.0  # s without a change in the files: nothing outlives the trainer that still writes
_LOOK = 0.05  # s between two looks at the memory


@dataclass(frozen=True)
class Options:
    """What holds for all turns. `timeout`: for each half of a turn; seconds."""

    folder: Path
    peers: str
    saves: int
    step_s: float
    timeout: float


@dataclass
class Turn:
    """What came of it. Seconds and bytes; `why`: it did not get to its end; `made`: seconds to make the method."""

    method: str
    case: Case
    saves: list[dict[str, Any]]
    loads: list[dict[str, Any]]
    memory: dict[str, int]
    survived: dict[str, Any]
    why: str = ""
    made: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def take(method: str, case: Case, options: Options, number: int) -> Turn:
    """Measure one method. Its failure is reported in `why`, not raised."""
    folder = options.folder / f"{number}-{method}"
    files, job = folder / "files", f"{options.folder.name}-{number}"
    files.mkdir(parents=True)
    turn = Turn(method, case, [], [], {}, {})
    pids: list[int] = []
    try:
        words = companion(method, options.peers, job)
        beside = _start(words, folder / "companion.log") if words else None
        for phase in ("save", "load"):
            half = _Half(turn, phase, folder, job, options)
            pids += half.pids
            half.watch()
            if beside is not None and beside.poll() is not None:
                turn.why = f"its companion ended: {_last_line(folder / 'companion.log')}"
            if turn.why:
                break
            if phase == "save":
                _quiet(files, options.timeout)
    except BenchError as error:
        turn.why = turn.why or str(error)
    finally:
        end_all()
        for path in leftovers(job, pids, files):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return turn


class _Half:
    """The ranks of a phase, from their start to their end."""

    def __init__(self, turn: Turn, phase: str, folder: Path, job: str, options: Options) -> None:
        self._turn, self._phase, self._folder, self._options = turn, phase, folder, options
        self._peak, self._over = 0, threading.Event()
        self._watcher = threading.Thread(target=self._sample)
        case = turn.case
        reading, writing = os.pipe()
        threads = max(1, len(os.sched_getaffinity(0)) // case.ranks)
        self._ranks = []
        for rank in range(case.ranks):
            order = Order(
                phase, turn.method, case.size, case.ranks, case.sharded, rank, str(folder / "files"),
                str(folder / f"store-{phase}"), job, options.peers, options.saves, options.step_s, threads, writing,
            )  # fmt: skip
            log = folder / f"{phase}-{rank}.log"
            self._ranks.append(_start([json.dumps(asdict(order))], log, writing, _env(rank, case.ranks, threads)))
        os.close(writing)
        self._events = os.fdopen(reading)
        self.pids = [rank.pid for rank in self._ranks]

    def watch(self) -> None:
        """Hear what the ranks tell until their part is over; sets the turn's `why` when they do not get there."""
        late = threading.Timer(self._options.timeout, self._kill)
        late.start()
        end = ""
        try:
            for line in self._events:
                event = json.loads(line)
                end = event.pop("event")
                if end == "failed":
                    self._turn.why = event["why"]
                if end in ("failed", "killed", "over"):
                    break
                self._note(end, event)
            if end == "killed":
                self._turn.survived["newest"] = event["step"]
                wait_for(lambda: all(r.poll() is not None for r in self._ranks), self._options.timeout, "the last save")
                if any(rank.returncode != -signal.SIGKILL for rank in self._ranks):
                    self._turn.why = f"the trainer did not get through its last save: {self._last_words()}"
            elif end not in ("failed", "over"):
                self._turn.why = f"a rank ended: {self._last_words()}"
            if not late.is_alive():
                self._turn.why = f"not over after {self._options.timeout:.0f} s ({self._phase}): {self._last_words()}"
        finally:
            late.cancel()
            self._stop_watching()
            self._kill()
            self._events.close()

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        turn = self._turn
        if kind == "made":
            turn.made = event["seconds"]
        elif kind == "save":
            turn.saves.append(event)
        elif kind == "load":
            turn.loads.append(event)
        elif kind == "survived":
            turn.survived.update(event)
        elif kind == "memory":
            turn.memory["before"] = memory_below()
            self._answer()
        elif kind == "watch":
            self._watcher.start()
            self._answer()
        elif kind == "watched":
            self._stop_watching()
            turn.memory["peak"] = self._peak
            turn.memory["after"] = memory_below()
            self._answer()

    def _answer(self) -> None:
        stdin = self._ranks[0].stdin
        if stdin is not None:
            stdin.write(b"\n")
            stdin.flush()

    def _stop_watching(self) -> None:
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _sample(self) -> None:
        while not self._over.wait(_LOOK):
            self._peak = max(self._peak, memory_below())

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def _last_words(self) -> str:
        return _last_line(self._folder / f"{self._phase}-0.log")


def _env(rank: int, ranks: int, threads: int) -> dict[str, str]:
    """As torchrun under transom gives it, on one node. OMP_NUM_THREADS: torch's threads, in the method's own
    processes too."""
    mine = ("SLURM_", "TRANSOM_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
    numbers = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1, "NODE_RANK": 0, "NODE_NUM": 1, "OMP_NUM_THREADS": threads,
    }  # fmt: skip
    return {
        **env,
        **{name: str(value) for name, value in numbers.items()},
        "MASTER_ADDR": "127.0.0.1",
        TUNABLES: with_streaming_copies(env),
    }


def _start(
    words: list[str], log: Path, events: int | None = None, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, str(WORKER), *words],
            stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, pass_fds=() if events is None else (events,),
        )  # fmt: skip


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing in its log"


def _quiet(files: Path, timeout_s: float) -> None:
    """Wait until the files no longer change: processes that survive the trainer have then written what they can."""
    last, since, deadline = _looks(files), time.monotonic(), time.monotonic() + timeout_s
    while time.monotonic() - since < _QUIET and time.monotonic() < deadline:
        time.sleep(0.1)
        if (now := _looks(files)) != last:
            last, since = now, time.monotonic()


def _looks(files: Path) -> list[tuple[str, int, int]]:
    return sorted(_stats(files))


def _stats(files: Path) -> Iterator[tuple[str, int, int]]:
    for path in files.rglob("*"):
        try:
            found = path.stat()
        except OSError:  # gone meanwhile
            continue
        yield str(path), found.st_size, found.st_mtime_ns
