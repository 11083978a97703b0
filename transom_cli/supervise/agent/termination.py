"""End one launch on this node completely, and report the processes that could not be ended.

The node's agent does this; the ranks are not its children. The caller has ended the Slurm step, or makes sure that the
step starts no more processes. The order is:

1. Tell ranks that would wait for a final checkpoint that none will be ordered.
2. Send TERM to the ranks, so that they may save, and then to the processes that they leave behind.
3. Send KILL to everything that is still there.
4. Kill the wrappers last: they ignore TERM, and get time to record how their ranks ended.

This is repeated until two looks in a row find nothing, because a process may fork between two looks.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

from transom_cli.supervise.agent import procfs
from transom_cli.supervise.agent.final_checkpoint import end_now
from transom_cli.supervise.agent.processes import RANK, WRAPPER, Member, find

TURN = 0.1  # seconds between two looks
WHOLE = 5  # while ranks save, every how many turns the whole node is looked at: that costs milliseconds
KILL_WAIT = 5.0  # seconds for killed processes to be gone
RECORDS = 2.5  # seconds of these for the wrappers to record and leave by themselves


@dataclass(frozen=True)
class Left:
    pid: int
    kind: str  # wrapper, rank or child
    rank: int | None
    state: str  # as in proc(5): D is a call into the kernel that does not return
    comm: str


@dataclass(frozen=True)
class Ended:
    killed: tuple[Left, ...]  # processes that did not end in time by themselves
    survivors: tuple[Left, ...]  # processes that could not be killed


def end_launch(
    attempt_dir: str | os.PathLike[str],
    launch: int,
    node: str,
    grace: float,
    beats_dir: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ended:
    """Return when no process is left, or after `grace` + KILL_WAIT seconds, with the survivors. Safe to repeat.

    Args:
        node: As Slurm calls this node.
        grace: Seconds between TERM and KILL; 0 kills at once.
        beats_dir: The node's heartbeat directory, where ranks that survive TERM look for a final checkpoint.
    """
    if grace > 0 and beats_dir:
        with contextlib.suppress(OSError, ValueError):  # no such folder, no memory left: TERM and the grace will do
            end_now(beats_dir, launch)
    scene = _Scene(attempt_dir, launch, node)
    _ask(scene, grace, clock, sleep)
    return _kill(scene, clock, sleep)


def kill_ranks(
    attempt_dir: str | os.PathLike[str],
    launch: int,
    node: str,
    ranks: Iterable[int],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ended:
    """Kill all processes of these ranks on this node, and leave the others alone. Safe to repeat."""
    return _kill(_Scene(attempt_dir, launch, node, frozenset(ranks)), clock, sleep)


class _Scene:
    """The launch's processes, or those of some ranks. Known ones are remembered: a dying process may not be
    recognisable any more."""

    def __init__(
        self, attempt_dir: str | os.PathLike[str], launch: int, node: str, ranks: frozenset[int] | None = None
    ) -> None:
        self._where, self._ranks = (attempt_dir, launch, node), ranks
        self._seen: dict[tuple[int, int], Member] = {}

    def look(self, *, all_of_it: bool = True) -> list[Member]:
        """Look for processes. all_of_it=False: only at known ones while any of them lives (microseconds)."""
        found = {} if not all_of_it and self._seen else {_ident(m): m for m in self._find()}
        for ident, member in self._seen.items():
            now = procfs.read(member.pid) if ident not in found else None
            if now is not None and now.start == member.process.start:
                found[ident] = replace(member, process=now)
        for ident in found.keys() & self._seen.keys():
            if self._seen[ident].kind == RANK:  # also when the wrapper by which it was known has died
                found[ident] = replace(found[ident], kind=RANK)
        self._seen = found
        return list(found.values()) or ([] if all_of_it else self.look())

    def _find(self) -> list[Member]:
        members, ranks = find(*self._where), self._ranks
        if ranks is None:
            return members
        of_ranks = [m for m in members if m.kind != WRAPPER and m.rank in ranks]
        parents = {m.process.ppid for m in of_ranks}  # a wrapper's own number is that of its task in a step
        return [*(m for m in members if m.kind == WRAPPER and m.pid in parents), *of_ranks]


def _ask(scene: _Scene, grace: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    until = clock() + grace
    asked: set[tuple[int, int]] = set()
    for turn in count():
        left = scene.look(all_of_it=turn % WHOLE == 0)
        if not left:
            return
        ranks = [m for m in left if m.kind == RANK]
        for member in ranks or [m for m in left if m.kind != WRAPPER]:
            if _ident(member) not in asked:
                procfs.send(member.process, signal.SIGTERM)
                asked.add(_ident(member))
        _let_go_on(m for m in left if m.kind == WRAPPER or _ident(m) in asked)
        remaining = until - clock()
        if remaining <= 0:
            return
        sleep(min(TURN, remaining))


def _let_go_on(members: Iterable[Member]) -> None:
    """Resume stopped processes, which would not react to TERM. After SIGCONT they receive it first."""
    for member in members:
        if member.process.state == "T":
            procfs.send(member.process, signal.SIGCONT)


def _kill(scene: _Scene, clock: Callable[[], float], sleep: Callable[[float], None]) -> Ended:
    killed: dict[tuple[int, int], Left] = {}
    started = clock()
    quiet = 0
    while True:
        left = scene.look()
        quiet = 0 if left else quiet + 1
        if quiet == 2:
            return Ended(tuple(killed.values()), ())
        waited = clock() - started
        if left and waited >= KILL_WAIT:
            return Ended(tuple(killed.values()), tuple(map(_described, left)))
        wrappers_too = waited >= RECORDS
        for member in left:
            if (member.kind != WRAPPER or wrappers_too) and procfs.send(member.process, signal.SIGKILL):
                killed.setdefault(_ident(member), _described(member))
        _let_go_on(m for m in left if m.kind == WRAPPER)
        sleep(TURN)


def _ident(member: Member) -> tuple[int, int]:
    return member.pid, member.process.start


def _described(member: Member) -> Left:
    process = member.process
    return Left(process.pid, member.kind, member.rank, process.state, process.comm)
