"""A committed snapshot is protected: the nodes of each group compute parity of one another's shares, and hold it.

Who holds a row pulls the chunks that go into it, one after the other, and folds each in as it comes. The daemon of rank
0's node sees to it that all do. Nodes that do not answer, or whose bytes cannot be had, are left out: the others form
groups without them, and it is said. The step that was protected before is given up only when a newer one is on all
nodes, or when it is durable: a missing node may have died, and then only the older step is complete.
"""

import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import xxhash

from transom_cli.ckpt.failures import one_line
from transom_cli.ckpt.manifest import shares
from transom_cli.ckpt.snapshot.coder import coefficient, fold
from transom_cli.ckpt.snapshot.peers import Membership, Peers
from transom_cli.ckpt.snapshot.protection import NONE, Protection, Segment, Stripe, code, cut, groups, parse, stripes
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.throttle import Throttle

Files = tuple[tuple[str, int], ...]  # name and bytes of a node's shares, in the order in which they are cut


@dataclass(frozen=True)
class Group:
    """Nodes that protect one another, with what each of them held."""

    step: int
    protection: Protection
    nodes: tuple[str, ...]
    files: Mapping[str, Files] = field(hash=False)

    @property
    def columns(self) -> int:
        return code(len(self.nodes), self.protection)[0]

    def stripes(self) -> tuple[Stripe, ...]:
        return stripes(self.nodes, self.protection)

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.step, "protection": str(self.protection), "nodes": list(self.nodes),
            "files": {node: [list(row) for row in rows] for node, rows in self.files.items()},        }  # fmt: skip


def read_group(record: Any) -> Group:
    """Raises ValueError and its kind for what is none."""
    files = {str(n): tuple((str(name), int(size)) for name, size in rows) for n, rows in record["files"].items()}
    nodes = tuple(str(node) for node in record["nodes"])
    if set(files) != set(nodes) or any(size < 0 for rows in files.values() for _, size in rows):
        raise ValueError("a group whose files are not its nodes'")
    return Group(int(record["step"]), parse(str(record["protection"])), nodes, files)


@dataclass(frozen=True)
class Row:
    """One parity row of one stripe. `sums`: xxh3_128 by column of the chunk that went in, "" where it is empty."""

    group: Group
    stripe: int
    row: int
    sums: tuple[str, ...]
    sum: str
    memory: mmap.mmap = field(hash=False, compare=False, repr=False)
    size: int

    def as_json(self) -> dict[str, Any]:
        about = {"group": self.group.as_json(), "stripe": self.stripe, "row": self.row}
        return {**about, "sums": list(self.sums), "sum": self.sum, "size": self.size}


class Parity:
    """A node's rows, of the newest protected step and of the one that is being protected. Thread-safe.

    The memory of dropped rows becomes that of the next ones: a first touch costs ten times a copy. What these do not
    take is freed.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, tuple[str, ...], int, int], Row] = {}
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []

    def memory(self, size: int) -> mmap.mmap:
        """Return memory for a new row, mostly touched before. Its content is undefined. Raises OSError."""
        with self._lock:
            for found in self._spare:
                if size <= len(found) <= 2 * size + mmap.PAGESIZE:
                    self._spare.remove(found)
                    return found
        return mmap.mmap(-1, max(size, mmap.PAGESIZE))

    def put(self, rows: Iterable[Row]) -> None:
        """In place of what is held of that step for other groups: that was of a round in which nodes were gone."""
        with self._lock:
            for row in rows:
                self._drop(lambda r, new=row.group: r.group.step == new.step and r.group.nodes != new.nodes)
                self._drop(lambda r, new=row: _key(r) == _key(new))
                self._rows[_key(row)] = row
            self._spare.clear()

    def rows(self, step: int) -> list[Row]:
        with self._lock:
            return [row for row in self._rows.values() if row.group.step == step]

    @contextmanager
    def reading(self, step: int, nodes: tuple[str, ...], stripe: int, row: int) -> Iterator[memoryview]:
        """Raises KeyError. A row that is dropped meanwhile may be written over: the reader knows its checksum."""
        with self._lock:
            found = self._rows[step, nodes, stripe, row]
        yield memoryview(found.memory)[: found.size]

    def only(self, *steps: int | None) -> None:
        """Drop the rows of all other steps."""
        with self._lock:
            self._drop(lambda row: row.group.step not in steps)

    def drop_through(self, step: int) -> None:
        """Drop the rows of that step and older ones."""
        with self._lock:
            self._drop(lambda row: row.group.step <= step)

    def rewind(self, step: int | None) -> None:
        with self._lock:
            self._drop(lambda row: step is None or row.group.step > step)

    @property
    def size(self) -> int:
        """Bytes held."""
        with self._lock:
            return sum(row.size for row in self._rows.values())

    def _drop(self, which: Any) -> None:
        for key in [key for key, row in self._rows.items() if which(row)]:
            self._spare.append(self._rows.pop(key).memory)


def _key(row: Row) -> tuple[int, tuple[str, ...], int, int]:
    return row.group.step, row.group.nodes, row.stripe, row.row


RESERVED = "being protected"
PIECE = 4 << 20  # bytes pulled by one question
WAIT = 30.0  # seconds for a node's own ranks to have committed the step
ROUND = 1800.0  # seconds for all parity of a step
ROUNDS = 4  # in which nodes may turn out to be gone, before the step is given up


class Protector:
    def __init__(self, store: Store, members: Membership, parity: Parity, say: Callable[[str], None]) -> None:
        self._store, self._members, self._parity, self._say = store, members, parity, say
        self._protection, self._domains = NONE, dict[str, str]()
        self._throttle: Throttle | None = None
        self._lock = threading.Lock()
        self._waiting: int | None = None
        self._running = False
        self._left_out: frozenset[str] = frozenset()

    def choose(self, protection: Protection, domains: Mapping[str, str], rate: float | None) -> None:
        """As the newest launch has it. `rate`: bytes a second that this node pulls, at most."""
        self._protection, self._domains = protection, dict(domains)
        self._throttle = None if rate is None else Throttle(rate)

    def begin(self, step: int) -> None:
        """By the daemon of rank 0's node. Returns at once. While one is under way the newest waits, and no other."""
        with self._lock:
            passed_over, self._waiting = self._waiting, step
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="protect", daemon=True).start()
        if passed_over is not None:
            self._release(passed_over)

    @property
    def busy(self) -> bool:
        return self._running

    def _run(self) -> None:
        while True:
            with self._lock:
                step, self._waiting = self._waiting, None
                if step is None:
                    self._running = False
                    return
            try:
                self._protect(step)
            except Exception as error:  # training continues, with the protection that it had
                self._say(f"step {step} is not protected: {one_line(error)}")
            self._release(step)

    def _release(self, step: int) -> None:
        self._members.current.call_all("release", 5.0, step=step, why=RESERVED)

    def _protect(self, step: int) -> None:
        peers = self._members.current
        record = self._store.records.get(step)
        if record is None:
            raise ValueError("its record is not here")
        sums = {entry.name: entry for entry in shares(record.read)}
        held = peers.call_all("held", WAIT, step=step)
        files: dict[str, Files] = {}
        for node, answer in held.items():
            mine = sorted(n for n, total in answer.get("held", []) if n in sums and sums[n].xxh3_128 == total)
            if mine or "error" in answer:
                files[node] = tuple((name, sums[name].size) for name in mine)
        absent = {node for node, answer in held.items() if "error" in answer}
        for _ in range(ROUNDS):
            failed = self._round(peers, step, {node: files[node] for node in sorted(set(files) - absent)})
            absent |= failed
            if not failed:
                break
        else:
            raise OSError(f"{', '.join(sorted(absent))} could not be reached, one after the other")
        missing = frozenset(absent)
        if missing != self._left_out:
            self._left_out = missing
            self._say(
                f"step {step} is protected, except for data on {', '.join(sorted(missing))}: no daemon answers there"
                if missing
                else f"step {step} is protected on all nodes again"
            )
        peers.call_all("partly" if missing else "settled", 5.0, step=step, left_out=sorted(missing))

    def _round(self, peers: Peers, step: int, files: dict[str, Files]) -> set[str]:
        """All groups at once. Returns the nodes that did not do their part, and those whose bytes could not be had."""
        failed: set[str] = set()
        lock = threading.Lock()

        def one(group: Group, node: str) -> None:
            answer = peers.call_all("protect", ROUND, [node], step=group.step, group=group.as_json())[node]
            with lock:
                failed.update([node] if "error" in answer else answer.get("lost", []))

        threads = []
        for nodes in groups(list(files), self._protection, self._domains):
            group = Group(step, self._protection, nodes, {node: files[node] for node in nodes})
            if group.columns:
                threads += [threading.Thread(target=one, args=(group, node), daemon=True) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    # This node's own part

    def compute(self, group: Group) -> list[str]:
        """Make the rows that this node is to hold. Returns the nodes whose bytes could not be had; none then."""
        peers = self._members.current
        durable = self._store.on_disk
        if durable is not None:  # after the loss of a node it is restored from disk: its rows' memory is the new ones'
            self._parity.drop_through(min(durable, group.step - 1))
        made: list[Row] = []
        for number, stripe in enumerate(group.stripes()):
            for row, node in enumerate(stripe.parity):
                if node != peers.own:
                    continue
                chunks = [
                    (owner, cut(group.files[owner], group.columns, chunk))
                    for owner, chunk in zip(stripe.data, stripe.chunks, strict=True)
                ]
                found, lost = self._row(peers, group, number, row, chunks)
                if found is None:
                    return [lost]
                made.append(found)
        self._parity.put(made)
        return []

    def _row(
        self, peers: Peers, group: Group, number: int, row: int,
        chunks: list[tuple[str, tuple[Segment, ...]]],
    ) -> tuple[Row | None, str]:  # fmt: skip
        lengths = [sum(segment.length for segment in segments) for _, segments in chunks]
        size = max(lengths, default=0)
        memory = self._parity.memory(size)
        view = memoryview(memory)[:size]
        if size:
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0, size)
        piece = memoryview(bytearray(min(PIECE, max(1, size))))
        sums = []
        for column, (owner, segments) in enumerate(chunks):
            factor, at, hasher = coefficient(row, column, group.columns), 0, xxhash.xxh3_128()
            try:
                for data in self._pull(peers, owner, group.step, segments, piece):
                    hasher.update(data)
                    fold(view[at : at + len(data)], data, factor)
                    at += len(data)
            except RpcError as error:
                self._say(f"step {group.step}: a chunk of {owner} could not be had: {error.what}")
                return None, owner
            sums.append(hasher.hexdigest() if segments else "")
        return Row(group, number, row, tuple(sums), xxhash.xxh3_128_hexdigest(view), memory, size), ""

    def _pull(self, peers: Peers, node: str, step: int, segments: tuple[Segment, ...], piece: memoryview) -> Any:
        for segment in segments:
            for start in range(segment.start, segment.start + segment.length, len(piece)):
                data = piece[: min(len(piece), segment.start + segment.length - start)]
                if self._throttle is not None and node != peers.own:
                    time.sleep(self._throttle.take(len(data)))
                about = {"step": step, "file": segment.file, "start": start, "size": len(data)}
                peers.call(node, "read", WAIT, data, **about)
                yield data


def domain(environ: Mapping[str, str]) -> str:
    """What fails together with this node, by Slurm's topology: its switches, without the node itself."""
    return environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]
