"""Kill a training that keeps every step in memory, over and over, and see how many steps each kill costs.

    python tests/ckpt/ckpt_memory_kill_driver.py DIRECTORY SEED KILLS [RANKS]

The state at step n is n everywhere, so a torn or mixed snapshot shows. Torch is imported once; each trainer is a fork,
restores what the kill before it left, checks every value of it, and trains on until it is killed: from outside at a
random instant, by itself within a save, together with its daemon, or after its daemon alone was killed. With several
RANKS of one node, all of them or one. Prints a line a kill and a table; exits with 0 when every restore was right.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ckpt_memory_holders import die, end_holder, holder_pid

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.names import parse_step
from transom_cli.ckpt.save.staging import Stager
from transom_cli.rpc.local import Client

torch.set_num_threads(1)  # threads do not survive a fork
WIDTH = 1 << 17  # three tensors of 512 KiB
PERSIST = 20  # every so many snapshots one is made durable
LONGEST = 60.0  # seconds for a trainer to come up, or to go on: only what is broken takes that long
TRAINER, WITHIN, HOLDER, BOTH = "trainer, at any instant", "trainer, within a save", "daemon, then trainer", "both"
STAGES = [(name, after) for name in ("take", "hold", "commit", "persist") for after in (False, True)]
MID_COPY = ("copy", False)


class Board:
    """What a rank tells the driver, in memory that both have: it stands when the rank is killed."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.clear()

    def clear(self) -> None:
        self.found, self.returned = -1, -1

    @property
    def found(self) -> int:
        """The step that was restored and checked; -1 until then."""
        return self._cells[0]

    @found.setter
    def found(self, step: int) -> None:
        self._cells[0] = step

    @property
    def returned(self) -> int:
        """The last step whose save() has returned."""
        return self._cells[1]

    @returned.setter
    def returned(self, step: int) -> None:
        self._cells[1] = step


@dataclass(frozen=True)
class Kill:
    what: str
    stage: tuple[str, bool] | None  # where the trainer is to kill itself: before a question, or after its answer
    count: int  # the how-manieth time it comes there
    rank: int | None  # which rank; None: all


class PerRank:
    """Kept per rank: the step and the rank."""

    def __init__(self, rank: int) -> None:
        self.rank, self.n = rank, 0

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n, "rank": self.rank}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state["rank"] == self.rank, f"rank {self.rank} was given what rank {state['rank']} had"
        self.n = state["n"]


def train(directory: Path, board: Board, kill: Kill, rank: int, ranks: int, meeting: Path) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    held: dict[str, Any] = {"n": -1, "own": PerRank(rank)}
    held |= {name: torch.full((WIDTH,), -1, dtype=torch.int32) for name in "abc"}
    checkpointer = Checkpointer(held, directory, every=1, persist=PERSIST)
    start = checkpointer.restore() or 0
    if start:
        assert (held["n"], held["own"].n) == (start, start), (start, held["n"], held["own"].n)
        for name in "abc":
            assert bool((held[name] == start).all()), f"{name} is not that of step {start}"
    board.found = start
    if kill.stage is not None and kill.rank in (None, rank):
        die_at(kill.stage, kill.count)
    for step in range(start + 1, start + 1_000_000):
        held["n"] = held["own"].n = step
        for name in "abc":
            held[name].fill_(step)
        if ranks > 1:
            dist.barrier()  # as the gradients of a step: no rank is ahead of a dead one by more than that step
        checkpointer.save(step)
        board.returned = step


def die_at(stage: tuple[str, bool], count: int) -> None:
    """Kill this very process when it gets there for the `count`-th time."""
    left = [count]

    def reached() -> bool:
        left[0] -= 1
        return left[0] < 0

    if stage == MID_COPY:
        copy = Stager._copy

        def half(self: Stager, arena: Any, sources: list[Any]) -> None:
            if reached():
                copy(self, arena, sources[: len(sources) // 2])
                die()
            copy(self, arena, sources)

        Stager._copy = half  # type: ignore[method-assign]
        return
    name, after = stage
    real = Client.call

    def call(self: Client, asked: str, *more: Any, **about: Any) -> Any:
        here = asked == name and reached()
        if here and not after:
            die()
        answer = real(self, asked, *more, **about)
        if here:
            die()
        return answer

    Client.call = call  # type: ignore[method-assign]


def main() -> int:
    directory, luck, kills = Path(sys.argv[1]), random.Random(sys.argv[2]), int(sys.argv[3])
    ranks = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    boards = [Board() for _ in range(ranks)]
    table: dict[str, Counter[int]] = {}
    least = most = 0  # the oldest step that the next restore may find, and how far the training had come
    last = Kill("", None, 0, None)
    wrong = 0
    for restart in range(kills + 1):
        os.environ["TRANSOM_ATTEMPT"] = f"7.{restart}"
        kill = choose(luck, ranks)
        pids = launch(directory, boards, kill, directory.parent / f"meeting-{restart}")
        if not wait_for(lambda: all(board.found >= 0 for board in boards), pids):
            print(f"{restart}: no restore after a kill of {last.what} ({last.stage})")
            slay(pids)
            wrong += 1
            break
        found = {board.found for board in boards}
        if restart:
            lost = most - min(found)
            table.setdefault(last.what, Counter())[lost] += 1
            right = len(found) == 1 and least <= min(found) <= most + ranks  # what counts may not have returned yet
            wrong += not right
            verdict = "" if right else f" WRONG: {least} at least"
            print(f"{restart}: {last.what} {last.stage or ''}: at {most}, restored {found}, lost {lost}{verdict}")
        if restart == kills:
            slay(pids)
            break
        least, most = strike(directory, boards, pids, kill, luck)
        last = kill
    end_holder(directory)
    print("\nsteps lost by kind of kill:")
    for what, counts in sorted(table.items()):
        print(
            f"  {what:26} {sum(counts.values()):4} kills  " + ", ".join(f"{n}: {c}" for n, c in sorted(counts.items()))
        )
    return 1 if wrong else 0


def choose(luck: random.Random, ranks: int) -> Kill:
    what = luck.choices((TRAINER, WITHIN, HOLDER, BOTH), (8, 8, 2, 2))[0]
    rank = luck.choice([None, *range(ranks)]) if ranks > 1 and what in (TRAINER, WITHIN) else None
    stage = luck.choice([*STAGES, MID_COPY]) if what == WITHIN else None
    if stage is not None and stage[0] == "persist":  # rank 0 alone asks for that, at times
        return Kill(what, stage, luck.randrange(2), 0 if ranks > 1 else None)
    return Kill(what, stage, luck.randrange(1, 30), rank)


def strike(directory: Path, boards: list[Board], pids: list[int], kill: Kill, luck: random.Random) -> tuple[int, int]:
    """Do it. Returns the oldest step that must come back, and the newest whose save() has returned on all ranks."""
    if kill.stage is not None:
        for_all = kill.rank is None
        if not wait_for(lambda: all(ended(pid) for pid in pids) if for_all else ended(pids[kill.rank or 0]), []):
            raise SystemExit(f"it never came to {kill.stage}")
    else:
        time.sleep(luck.uniform(0.0, 0.3))
    if kill.what == HOLDER:
        os.kill(holder_pid(directory), signal.SIGKILL)
        beyond = (
            max(max(board.found, board.returned) for board in boards) + 3
        )  # saves by which all ranks have told the new one
        if not wait_for(lambda: min(board.returned for board in boards) >= beyond, pids):
            raise SystemExit("the training did not go on without its daemon")
        time.sleep(luck.uniform(0.0, 0.1))
    if kill.what == BOTH:
        os.kill(holder_pid(directory), signal.SIGKILL)
    if kill.rank is not None and kill.stage is None:
        os.kill(pids[kill.rank], signal.SIGKILL)
        time.sleep(luck.uniform(0.0, 0.05))  # the other ranks go on for a while
    slay(pids)
    most = max(0, min(max(board.found, board.returned) for board in boards))
    if kill.what == BOTH:
        return max([0, *filter(None, (parse_step(path.name) for path in directory.iterdir()))]), most
    return max(0, most - 1), most


def launch(directory: Path, boards: list[Board], kill: Kill, meeting: Path) -> list[int]:
    for board in boards:
        board.clear()
    return [forked(directory, board, kill, rank, len(boards), meeting) for rank, board in enumerate(boards)]


def forked(*args: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            train(*args)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def wait_for(claim: Any, alive: list[int]) -> bool:
    """Whether it comes true while these processes live."""
    deadline = time.monotonic() + LONGEST
    while not claim():
        if time.monotonic() > deadline or any(ended(pid) for pid in alive):
            return bool(claim())
        time.sleep(0.002)
    return True


def slay(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
