"""Meet the others of a group at its board, then add up with all of them, or send to and fro with the one.

What went wrong is told with the step it happened in, and with the name of whoever did not come. Every wait ends with
the ask's deadline; what a library does not let one bound, the process's own alarm does (`rank`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from transom_cli.core.rootline import clean
from transom_cli.health.probe.board import Board, OwnBoard, TheirBoard
from transom_cli.health.probe.board_store import BoardStore, Late
from transom_cli.health.probe.peers import Member, members_of, source_address
from transom_cli.health.probe.shapes import DONE, Group, Link, Linked, Sent
from transom_cli.health.probe.starving import Waiting

FIRST = 1 << 16  # bytes of the first transfer; each following one is four times as long, up to what is asked
ABORT = 2.0  # seconds that NCCL may take to give a group up
FREE = 0.2  # seconds for gloo; an answer has a second to be late

T = TypeVar("T")


class Absent(RuntimeError):
    """The meeting's time was over and some had not come."""

    def __init__(self, absent: tuple[Member, ...]) -> None:
        super().__init__("did not come: " + ", ".join(f"{node}/{index}" for node, index in absent))
        self.absent = absent


@dataclass(frozen=True)
class Me:
    """board: the one that this process keeps."""

    node: str
    index: int
    device: torch.device
    board: OwnBoard


def link(ask: Link, me: Me) -> Linked:
    """Never raises for what a network or a peer may do. It takes the ask's deadline at most, and a little."""
    group = next((g for g in ask.groups if me.node in g.nodes and me.index < g.devices), None)
    idle = Linked(me.node, me.index, ask.id, ask.phase)
    if group is None:
        return idle
    peer = next(node for node in group.nodes if node != me.node) if group.rails else ""
    meeting = _Meeting(ask, me, group, replace(idle, peer=peer))
    try:
        meeting.hold()
    except Absent as error:
        meeting.told = replace(meeting.told, absent=error.absent, error=str(error))
    except (RuntimeError, OSError, ValueError) as error:  # what torch raises derives from RuntimeError
        words = clean(" ".join(str(error).split())) or type(error).__name__
        meeting.told = replace(meeting.told, error=words)
    finally:
        meeting.leave()
    return meeting.told


class _Meeting:
    """One group, from its board to its end. `told` is the answer as far as it is known."""

    def __init__(self, ask: Link, me: Me, group: Group, told: Linked) -> None:
        self.told = told
        self._ask, self._me, self._group = ask, me, group
        self._members = members_of(group, me.index)
        self._rank = self._members.index((me.node, me.index))
        self._end = time.monotonic() + ask.deadline
        rail = f"/{me.index}" if group.rails else ""
        self._prefix = f"{ask.id}/{group.name}{rail}"
        self._board: Board = me.board
        self._seen_from: list[str] = []
        self._backend: Any = None

    def hold(self) -> None:
        self._board = self._step("finding the board", lambda: self._aside(self._open))
        self._step("meeting", self._meet)
        self._backend = self._step("connecting", lambda: self._aside(self._connect))
        if self._group.rails:
            self._pair(1 - self._rank)
        else:
            self._step("adding up", self._add_up)
        self.told = replace(self.told, step=DONE)

    def leave(self) -> None:
        """Give the group up. NCCL may hang in this, and gloo waits for the end of what it has begun, seconds after the
        deadline: that keeps a thread of this process, and the answer no longer than `ABORT` or `FREE`."""
        if isinstance(self._board, TheirBoard):
            self._board.close()
        if self._backend is None:
            return
        held, cuda = [self._backend], self._me.device.type == "cuda"
        self._backend = None

        def give_up() -> None:
            backend = held.pop()  # the last reference: it is freed here
            if cuda:
                backend.abort()

        giving_up = threading.Thread(target=give_up, daemon=True)
        giving_up.start()
        giving_up.join(ABORT if cuda else FREE)

    def _step(self, name: str, do: Callable[[], T]) -> T:
        self.told = replace(self.told, step=name)
        return do()

    def _aside(self, do: Callable[[], T]) -> T:
        """What takes its own time to give up (gloo tries a lost connection four times) does so in a thread of its own,
        which is left behind when the deadline comes."""
        done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((do(), None))
            except BaseException as error:
                done.put((None, error))

        threading.Thread(target=run, daemon=True).start()
        try:
            result, error = done.get(timeout=self._left().total_seconds())
        except queue.Empty:
            raise Late(f"not done within {self._ask.deadline:g} s") from None
        if error is not None:
            raise error
        return cast(T, result)

    def _left(self) -> timedelta:
        left = self._end - time.monotonic()
        if left <= 0:
            raise Late(f"not done within {self._ask.deadline:g} s")
        return timedelta(seconds=left)

    def _open(self) -> Board:
        if (self._group.nodes[0], self._group.port) == (self._me.node, self._me.board.port):
            return self._me.board
        return TheirBoard(self._group.host, self._group.port, self._left().total_seconds() / 2)

    def _meet(self) -> None:
        """Half of the time at most, so that those who came can still tell who did not."""
        self._board.set(self._here(self._rank), self._board.seen_from.encode())
        keys = [self._here(rank) for rank in range(len(self._members))]
        came = self._board.get(keys, self._left().total_seconds() / 2)
        absent = tuple(member for member, value in zip(self._members, came, strict=True) if value is None)
        if absent:
            raise Absent(absent)
        self._seen_from = [(value or b"").decode() for value in came]

    def _here(self, rank: int) -> str:
        """Under which a member says that it has come, and from which address it sees the board's host."""
        return f"{self._prefix}/here/{rank}"

    def _connect(self) -> Any:
        size = len(self._members)
        store = BoardStore(self._board, self._prefix, self._end)
        if self._me.device.type == "cuda":
            wanted = dist.ProcessGroupNCCL.Options()
            wanted._timeout = timedelta(seconds=self._ask.deadline + 60)  # ours come first; NCCL's ends the process
            return dist.ProcessGroupNCCL(store, self._rank, size, wanted)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = self._left()
        options._devices = [gloo.create_device(hostname=self._own_address())]
        return gloo(store, self._rank, size, options)

    def _own_address(self) -> str:
        """From which the others are reached. The board's own host may see itself by its loopback: it asks for the way
        to the first member elsewhere."""
        first = self._group.nodes[0]
        if self._me.node != first:
            return self._board.seen_from
        away = (rank for rank, (node, _) in enumerate(self._members) if node != first)
        return source_address(self._seen_from[next(away, 0)])

    def _done(self, work: Any) -> None:
        """gloo waits by itself; NCCL's wait would be the stream's, so it is asked until it is done."""
        if self._me.device.type != "cuda":
            work.wait(self._left())
            return
        while not work.is_completed():
            self._left()
            time.sleep(0)
        work.wait()

    def _add_up(self) -> None:
        """All-reduce of whole numbers, whose sum any order of additions gets right. Once to warm up, twice timed."""
        ranks, count = len(self._members), max(self._ask.bytes // 4, 1)
        steps = torch.arange(count, dtype=torch.float32, device=self._me.device) % 7 + 1
        weights = [rank % 64 + 1 for rank in range(ranks)]
        best = float("inf")
        for _ in range(3):
            numbers = steps * weights[self._rank]
            start = time.perf_counter()
            self._done(self._backend.allreduce([numbers]))
            best = min(best, time.perf_counter() - start)
            if not torch.equal(numbers, steps * sum(weights)):
                self.told = replace(self.told, garbled=True, error="the sum over all is wrong")
                return
        rate = 2 * (ranks - 1) / ranks * 4 * count / best
        self.told = replace(self.told, seconds=best, rate=rate)

    def _pair(self, peer: int) -> None:
        size = max(self._ask.bytes, FIRST)
        payload = torch.arange(size, device=self._me.device).to(torch.uint8)
        name = self.told.peer
        for leader in (0, 1):
            if leader == self._rank:
                self._step(f"sending to {name}", lambda: self._lead(peer, payload))
            else:
                self._step(f"receiving from {name}", lambda: self._follow(peer, payload))

    def _lead(self, peer: int, payload: Tensor) -> None:
        """The best counts of the longest transfers that there was time for: what else a host does only slows them."""
        waiting, trips = Waiting(), []
        for _ in range(max(self._ask.trips, 1)):
            start = time.perf_counter()
            self._send(peer, self._number(0))
            self._receive(peer, self._number(0))
            trips.append(time.perf_counter() - start)
        size, best = FIRST, 0.0
        end = time.perf_counter() + self._ask.seconds
        while True:
            start = time.perf_counter()
            self._send(peer, self._number(size))
            self._send(peer, payload[:size])
            self._receive(peer, self._number(0))
            now = time.perf_counter()
            best = max(best, size / (now - start))
            if now > end:
                break
            if size < len(payload):
                size, best = min(size * 4, len(payload)), 0.0  # a burst that a throttle lets through tells nothing
        self._send(peer, self._number(0))
        self.told = replace(self.told, sent=Sent(self.told.peer, min(trips) / 2, best, waiting.share()))

    def _follow(self, peer: int, payload: Tensor) -> None:
        waiting, number = Waiting(), self._number(0)
        for _ in range(max(self._ask.trips, 1)):
            self._receive(peer, number)
            self._send(peer, number)
        came = torch.zeros_like(payload)
        longest = 0
        while True:
            self._receive(peer, number)
            size = int(number.item())
            if size == 0:
                break
            self._receive(peer, came[:size])
            self._send(peer, number)
            longest = max(longest, size)
        garbled = not torch.equal(came[:longest], payload[:longest])
        self.told = replace(self.told, garbled=garbled, starved=waiting.share())

    def _number(self, value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int64, device=self._me.device)

    def _send(self, peer: int, what: Tensor) -> None:
        self._done(self._backend.send([what], peer, 0))

    def _receive(self, peer: int, what: Tensor) -> None:
        self._done(self._backend.recv([what], peer, 0))
