"""Meet the other members of a group, then all-reduce with all of them, or send back and forth with one.

Errors name the step in which they happened and the members that did not arrive. Every wait ends at the request's
deadline; where a library offers no timeout, the process's own alarm ends it (`rank`).
"""

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

from transom_cli.core.log_lines import clean
from transom_cli.health.probe.cpu_wait import Waiting
from transom_cli.health.probe.messages import DONE, Device, Group, Link, Linked, Sent
from transom_cli.health.probe.rendezvous import OwnStore, RemoteStore, Store, members_of, source_address


class Late(RuntimeError):
    """The deadline has passed."""


class TorchStore(dist.Store):
    """A rendezvous store for torch's backends. end: deadline of every wait, by the monotonic clock."""

    def __init__(self, store: Store, prefix: str, end: float) -> None:
        super().__init__()
        self._store, self._prefix, self._end = store, prefix, end

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._values([key])[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._values(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return None not in self._store.get([f"{self._prefix}/{key}" for key in keys], 0.0)

    def _values(self, keys: list[str], timeout: timedelta | None = None) -> list[bytes]:
        remaining = max(self._end - time.monotonic(), 0.0)
        wait = remaining if timeout is None else min(remaining, timeout.total_seconds())
        values = self._store.get([f"{self._prefix}/{key}" for key in keys], wait)
        if None in values:
            raise Late(f"no member wrote {', '.join(keys)} in {wait:.1f} s")
        return [value for value in values if value is not None]


FIRST = 1 << 16  # bytes of the first transfer; each later one is four times as long, up to the requested size
ABORT = 2.0  # seconds that NCCL may take to abort a group
FREE = 0.2  # seconds that gloo may take to free one; an answer may be a second late

T = TypeVar("T")


class Absent(RuntimeError):
    """Some members did not arrive in time."""

    def __init__(self, absent: tuple[Device, ...]) -> None:
        super().__init__("did not arrive: " + ", ".join(f"{node}/{index}" for node, index in absent))
        self.absent = absent


@dataclass(frozen=True)
class Me:
    """This process. store: its own."""

    node: str
    index: int
    device: torch.device
    store: OwnStore


def link(request: Link, me: Me) -> Linked:
    """Run the request with our group. Raises nothing for a faulty network or peer; ends soon after the deadline."""
    group = next((g for g in request.groups if me.node in g.nodes and me.index < g.devices), None)
    idle = Linked(me.node, me.index, request.id, request.phase)
    if group is None:
        return idle
    peer = next(node for node in group.nodes if node != me.node) if group.rails else ""
    meeting = _Meeting(request, me, group, replace(idle, peer=peer))
    try:
        meeting.hold()
    except Absent as error:
        meeting.result = replace(meeting.result, absent=error.absent, error=str(error))
    except (RuntimeError, OSError, ValueError) as error:  # what torch raises derives from RuntimeError
        text = clean(" ".join(str(error).split())) or type(error).__name__
        meeting.result = replace(meeting.result, error=text)
    finally:
        meeting.leave()
    return meeting.result


class _Meeting:
    """One group, from rendezvous to end. `result` is the answer as far as it is known."""

    def __init__(self, request: Link, me: Me, group: Group, result: Linked) -> None:
        self.result = result
        self._request, self._me, self._group = request, me, group
        self._members = members_of(group, me.index)
        self._rank = self._members.index((me.node, me.index))
        self._end = time.monotonic() + request.deadline
        rail = f"/{me.index}" if group.rails else ""
        self._prefix = f"{request.id}/{group.name}{rail}"
        self._store: Store = me.store
        self._seen_from: list[str] = []
        self._backend: Any = None

    def hold(self) -> None:
        self._store = self._step("reaching the rendezvous store", lambda: self._in_thread(self._open))
        self._step("meeting", self._meet)
        self._backend = self._step("connecting", lambda: self._in_thread(self._connect))
        if self._group.rails:
            self._pair(1 - self._rank)
        else:
            self._step("all-reduce", self._all_reduce)
        self.result = replace(self.result, step=DONE)

    def leave(self) -> None:
        """Free the group. NCCL may hang here, and gloo waits for operations in progress: a thread does it, which delays
        the answer by at most `ABORT` or `FREE`."""
        if isinstance(self._store, RemoteStore):
            self._store.close()
        if self._backend is None:
            return
        held, cuda = [self._backend], self._me.device.type == "cuda"
        self._backend = None

        def free() -> None:
            backend = held.pop()  # the last reference: it is freed here
            if cuda:
                backend.abort()

        thread = threading.Thread(target=free, daemon=True)
        thread.start()
        thread.join(ABORT if cuda else FREE)

    def _step(self, name: str, do: Callable[[], T]) -> T:
        self.result = replace(self.result, step=name)
        return do()

    def _in_thread(self, do: Callable[[], T]) -> T:
        """Run a call that has its own retries (gloo tries a lost connection four times) in a thread, which is left
        behind at the deadline."""
        done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((do(), None))
            except BaseException as error:
                done.put((None, error))

        threading.Thread(target=run, daemon=True).start()
        try:
            result, error = done.get(timeout=self._remaining().total_seconds())
        except queue.Empty:
            raise Late(f"not finished in {self._request.deadline:g} s") from None
        if error is not None:
            raise error
        return cast(T, result)

    def _remaining(self) -> timedelta:
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise Late(f"not finished in {self._request.deadline:g} s")
        return timedelta(seconds=remaining)

    def _open(self) -> Store:
        if (self._group.nodes[0], self._group.port) == (self._me.node, self._me.store.port):
            return self._me.store
        group = self._group
        return RemoteStore(group.host, group.port, group.password, self._remaining().total_seconds() / 2)

    def _meet(self) -> None:
        """Wait for all members, for at most half of the time, so that those present can report who is absent."""
        self._store.set(self._here(self._rank), self._store.seen_from.encode())
        keys = [self._here(rank) for rank in range(len(self._members))]
        came = self._store.get(keys, self._remaining().total_seconds() / 2)
        absent = tuple(member for member, value in zip(self._members, came, strict=True) if value is None)
        if absent:
            raise Absent(absent)
        self._seen_from = [(value or b"").decode() for value in came]

    def _here(self, rank: int) -> str:
        """Return the key under which a member announces itself, with its own address as the store's host sees it."""
        return f"{self._prefix}/here/{rank}"

    def _connect(self) -> Any:
        size = len(self._members)
        store = TorchStore(self._store, self._prefix, self._end)
        if self._me.device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timedelta(seconds=self._request.deadline + 60)  # after ours; NCCL's ends the process
            return dist.ProcessGroupNCCL(store, self._rank, size, nccl)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = self._remaining()
        options._devices = [gloo.create_device(hostname=self._own_address())]
        return gloo(store, self._rank, size, options)

    def _own_address(self) -> str:
        """Return our address for the others. The store's own host may see itself by its loopback, so it uses the route
        to the first member elsewhere."""
        first = self._group.nodes[0]
        if self._me.node != first:
            return self._store.seen_from
        away = (rank for rank, (node, _) in enumerate(self._members) if node != first)
        return source_address(self._seen_from[next(away, 0)])

    def _done(self, work: Any) -> None:
        """Wait for an operation. gloo waits itself; NCCL would only make the stream wait, so it is polled."""
        if self._me.device.type != "cuda":
            work.wait(self._remaining())
            return
        while not work.is_completed():
            self._remaining()
            time.sleep(0)
        work.wait()

    def _all_reduce(self) -> None:
        """All-reduce integers, whose sum does not depend on the order of additions. Once to warm up, twice timed."""
        ranks, count = len(self._members), max(self._request.bytes // 4, 1)
        steps = torch.arange(count, dtype=torch.float32, device=self._me.device) % 7 + 1
        weights = [rank % 64 + 1 for rank in range(ranks)]
        best = float("inf")
        for _ in range(3):
            numbers = steps * weights[self._rank]
            start = time.perf_counter()
            self._done(self._backend.allreduce([numbers]))
            best = min(best, time.perf_counter() - start)
            if not torch.equal(numbers, steps * sum(weights)):
                self.result = replace(self.result, garbled=True, error="the sum is wrong")
                return
        rate = 2 * (ranks - 1) / ranks * 4 * count / best
        self.result = replace(self.result, seconds=best, rate=rate)

    def _pair(self, peer: int) -> None:
        size = max(self._request.bytes, FIRST)
        payload = torch.arange(size, device=self._me.device).to(torch.uint8)
        name = self.result.peer
        for leader in (0, 1):
            if leader == self._rank:
                self._step(f"sending to {name}", lambda: self._lead(peer, payload))
            else:
                self._step(f"receiving from {name}", lambda: self._follow(peer, payload))

    def _lead(self, peer: int, payload: Tensor) -> None:
        """Time round trips and transfers. The best of the longest transfers counts: a busy host only slows them."""
        waiting, trips = Waiting(), []
        for _ in range(max(self._request.trips, 1)):
            start = time.perf_counter()
            self._send(peer, self._number(0))
            self._receive(peer, self._number(0))
            trips.append(time.perf_counter() - start)
        size, best = FIRST, 0.0
        end = time.perf_counter() + self._request.seconds
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
                size, best = min(size * 4, len(payload)), 0.0  # a throttle may let a short burst pass
        self._send(peer, self._number(0))
        self.result = replace(self.result, sent=Sent(self.result.peer, min(trips) / 2, best, waiting.share()))

    def _follow(self, peer: int, payload: Tensor) -> None:
        waiting, number = Waiting(), self._number(0)
        for _ in range(max(self._request.trips, 1)):
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
        self.result = replace(self.result, garbled=garbled, starved=waiting.share())

    def _number(self, value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int64, device=self._me.device)

    def _send(self, peer: int, what: Tensor) -> None:
        self._done(self._backend.send([what], peer, 0))

    def _receive(self, peer: int, what: Tensor) -> None:
        self._done(self._backend.recv([what], peer, 0))
