"""End one launch on this node with nothing left of it, and say truthfully what would not go.

Run by the node's agent, which is neither parent nor relative of the ranks. The caller has ended the step, or sees to
it that it starts nothing any more. The order: word to the ranks that no flush will come, for which some would wait;
TERM to the ranks themselves, so that they may save; TERM to what they left behind, once they are gone; KILL to all that
is left; and last to the wrappers, which ignore TERM and are let to record how their rank ended. The looks repeat until
two in a row find nothing: a process may fork between two looks.
"""

from __future__ import annotations

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
    """killed: did not end by themselves in time. survivors: still there after that; () is a promise kept."""

    killed: tuple[Left, ...]
    survivors: tuple[Left, ...]


def end_launch(
    attempt_dir: str | os.PathLike[str],
    launch: int,
    node: str,
    grace: float,
    beats_dir: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ended:
    """Returns when nothing is left, or `grace` + KILL_WAIT seconds after the call with survivors. Safe to call again.

    node: as Slurm calls this node. grace: seconds between TERM and KILL; 0 kills without waiting. beats_dir: the
    node's, where ranks that keep through TERM (ckpt.saving.keeper) look for what to do.
    """
    if grace > 0 and beats_dir:
        with contextlib.suppress(OSError, ValueError):  # no such folder, no memory left: TERM and the grace will do
            end_now(beats_dir, launch)
    scene = _Scene(attempt_dir, launch, node)
    _ask(scene, grace, clock, sleep)
    return _kill(scene, clock, sleep)


class _Scene:
    """What is there, look by look. What was seen once is remembered: a dying process may no longer be recognisable."""

    def __init__(self, attempt_dir: str | os.PathLike[str], launch: int, node: str) -> None:
        self._where = (attempt_dir, launch, node)
        self._seen: dict[tuple[int, int], Member] = {}

    def look(self, *, all_of_it: bool = True) -> list[Member]:
        """With `all_of_it` False only what is known is looked at, a matter of microseconds, while any of it lives."""
        found = {} if not all_of_it and self._seen else {_ident(m): m for m in find(*self._where)}
        for ident, member in self._seen.items():
            now = procfs.read(member.pid) if ident not in found else None
            if now is not None and now.start == member.process.start:
                found[ident] = replace(member, process=now)
        for ident in found.keys() & self._seen.keys():
            if self._seen[ident].kind == RANK:  # also when the wrapper by which it was known has died
                found[ident] = replace(found[ident], kind=RANK)
        self._seen = found
        return list(found.values()) or ([] if all_of_it else self.look())


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
    """A stopped process would sleep through its TERM; resumed, that is the first thing it sees."""
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
