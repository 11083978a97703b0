"""Which process is which rank, as lines anywhere in a log say. For files, which can be read again.

gpu2:4711:4799 [1] NCCL INFO ... rank 3 nranks 4 cudaDev 1 busId 1c000 ...   NCCL: host, process, device, PCI address
process 4711 spawned with command: [... '--local_rank=3' ...]                DeepSpeed
rank      : 3 (local_rank: 1) / exitcode  : 1 (pid: 4711)                    torchrun's box
[gpu2:04711] *** reported by process [29973,3]                               Open MPI
Rank 3 (PID 4711) | process rank 3 with PID 4711 | (Worker_TP3 pid=4711)     Composer, mpirun, vLLM
global_ranks=[2, 3] | world_size=4 | GLOBAL_RANK: 3, MEMBER: 4/4             torchrun's agent, many, Lightning

By these, a line that names a process, a device or a local rank has a rank: the kernel's OOM killer, an Xid, a signal.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from pathlib import Path

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.aftermath import open_log
from transom_cli.diagnose.logs.grammar import short_host
from transom_cli.diagnose.logs.lazy_re import lazy_re
from transom_cli.diagnose.logs.matches import Hit

_HEAD, _TAIL = 2 << 20, 512 << 10  # bytes that are read
_LARGEST = 1 << 20  # ranks
_LABELS = 4096  # that are read
_ON_A_NODE = 8  # ranks: more may be on several nodes
_NEAR = 256  # bytes of a line before what it says
# Each begins with a fixed text, so that a search is fast.
_LABEL = lazy_re(rb"([A-Za-z0-9][\w.-]{0,62}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] ")
_NCCL = lazy_re(rb" NCCL (?:INFO|WARN) ")
_INIT = lazy_re(rb" rank (\d{1,7}) nranks (\d{1,7})(?:[^\n]{0,60}? busId ([0-9a-fA-F]{1,12}))?")
_SPAWNED = lazy_re(rb"process (\d{1,10}) spawned with command: [^\n]{0,4000}?--local_rank=(\d{1,5})")
_ONE = lazy_re(rb"'--local_rank=0',[^\n]{1,8000}\] exits with return code")  # DeepSpeed names its last process
_BOX = lazy_re(
    rb"rank {1,8}: (\d{1,7}) \(local_rank: (\d{1,5})\)[^\n]{0,20}\n"
    rb"[^\n]{0,200}?exitcode +: -?\d{1,5} +\(pid: (\d{1,10})"
)
_ROOT_CAUSE = lazy_re(
    rb"Root Cause \(first observed failure\):[^\n]{0,60}\n[^\n]{0,60}\[0\]:[^\n]{0,20}\n"
    rb"[^\n]{0,60}time {1,8}: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)[^\n]{0,20}\n"
    rb"[^\n]{0,60}host {1,8}: ([\w.-]{1,80})[^\n]{0,20}\n[^\n]{0,60}rank {1,8}: (\d{1,7})"
)
_NUMBER = lazy_re(
    rb"\[(\d{1,4})\]:[^\n]{0,20}\n[^\n]{0,60}time {1,8}: [^\n]{0,80}\n[^\n]{0,200}\n[^\n]{0,60}rank {1,8}: \d"
)
_ENTRY = lazy_re(
    rb"time {1,8}: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)[^\n]{0,20}\n[^\n]{0,200}\n"
    rb"[^\n]{0,60}rank {1,8}: (\d{1,7}) [^\n]{0,60}\n[^\n]{0,60}exitcode {1,8}: (-?\d{1,3})\b"
)
_ALIKE = 3  # entries that say nothing if they are alike
_TOGETHER = timedelta(seconds=60)  # between the reports of one launch
_PIDS = tuple(lazy_re(one + rb"[ :=]{1,4}(\d{1,10})\b") for one in (b"pid", b"PID", b"Pid"))
_RANK_BEFORE = lazy_re(
    rb"(?:(?:[Rr]ank|RANK)[ #:=]{1,3}|_TP)(\d{1,7})(?:[,;]? \(?| with |_\w{1,12} | {1,3}Group {1,3}\d{1,3} {1,3})$"
)
_RANK_AFTER = lazy_re(rb",? (?:[^\n,]{0,20}, )?(?:[Rr]ank|RANK|RankID)[ :=]{1,2}(\d{1,7})\b")
_OPEN_MPI = lazy_re(rb"\*\*\* reported by process \[\d{1,12},(\d{1,7})\]")
_OPEN_MPI_LABEL = lazy_re(rb"\[([A-Za-z][\w.-]{0,62}):0*(\d{1,10})\] $")
_WORLDS = tuple(lazy_re(one + rb"['\"]?[ =:]{1,3}(\d{1,7})\b") for one in (b"world_size", b"world size", b"WORLD_SIZE"))
_MEMBERS = (
    lazy_re(rb"GLOBAL_RANK: \d{1,7}, MEMBER: \d{1,7}/(\d{1,7})"),
    lazy_re(rb"registered\. Starting with (\d{1,7}) processes"),
)
_RANKS = tuple(lazy_re(one + rb" ?(\d{1,7})\b") for one in (rb"\[rank", rb"\[Rank", rb"GLOBAL_RANK:"))
_GLOBAL = lazy_re(rb"global_ranks=\[(\d[\d, ]{0,4000})\]")
_LOCALS = lazy_re(rb"\[default(\d{1,5})\]:"), lazy_re(rb"local_rank: (\d{1,5}) \(pid")
_CHILDREN = tuple(lazy_re(one + rb" (\d{1,10})\b") for one in (b"Killing subprocess", b"Sending process"))
_NODES = tuple(lazy_re(one + rb"[ =:]{1,2}(\d{1,6})\b") for one in (b"nnodes", b"num_nodes", b"group_world_size"))
_CLOSED = lazy_re(rb"\[Service thread\] Connection closed by localRank (\d{1,5})\b")
_OWN_PID = lazy_re(
    r"\b[Kk]ill(?:ed)? process (\d{1,10})\b|\[(\d{1,10})\]: segfault|\bpid[:=] ?(\d{1,10})\b"
    r"|\[[A-Za-z][\w.-]{0,62}:0*(\d{1,10})(?::\d{1,4}:\d{1,10})?\] ?(?:\*\*\* |Caught signal |Signal: )"
)
_DEVICE = lazy_re(r"CUDA out of memory\. .{0,80}?\bGPU (\d{1,2})\b")  # as the process counts them


@dataclass
class Processes:
    """What a log says about its processes. ranks: those that it names. world: how many there are, 0 if unknown."""

    ranks: set[int] = field(default_factory=set)
    world: int = 0
    pids: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # by node and number
    buses: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # by node and PCI address
    devices: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # by NCCL's node and device: processes
    bases: set[int] = field(default_factory=set)  # the first rank of each node
    locals: int = 0  # the processes of one node
    children: int = 0  # those that a launcher on one node has ended or started
    nodes: int = 0
    alone: bool = False  # the launcher has started one process
    failed: list[tuple[datetime, Culprit]] = field(
        default_factory=list
    )  # who failed first, by each of torchrun's agents

    ends: set[tuple[bytes, bytes, bytes]] = field(default_factory=set)  # by torchrun's report: time, rank and exit code
    swept: bool = False  # torchrun has ended others
    cut: bool = False  # torchrun's last report ends before the root cause, which is the last entry, and its number 0

    @property
    def alike(self) -> bool:
        """Whether torchrun reports that ranks ended alike, in the same second: then the first that it saw is any."""
        kinds = {(at, code) for at, _, code in self.ends}
        return not self.swept and len(kinds) == 1 and len({rank for _, rank, _ in self.ends}) >= _ALIKE

    @property
    def known(self) -> frozenset[int]:
        return frozenset(self.ranks | set(range(self.world)))

    def first_failed(self) -> Culprit | None:
        """Return who failed first, if several agents of the last launch report who failed first on their nodes."""
        last = max((at for at, _ in self.failed), default=datetime.min)
        failed = [(at, who) for at, who in self.failed if last - at <= _TOGETHER]
        first = {who for at, who in failed if at == min(failed, key=itemgetter(0))[0]}
        return first.pop() if len(first) == 1 and len({who for _, who in failed}) > 1 else None

    def rank_of(self, hit: Hit, who: Culprit) -> int | None:
        """Return the rank of the process, device or local rank that a line names."""
        node = short_host(who.node)
        own = _OWN_PID.search(hit.record.line)
        pid = hit.record.pid or (next(filter(None, own.groups())) if own else "")
        for what, table in ((pid, self.pids), (who.device, self.buses)):
            found = _only(table, node, what)
            if found is not None:
                return found
        if hit.record.pid and self._counts_devices(node):
            return int(hit.record.device)
        if who.node or hit.record.pid:
            return None
        if hit.record.local is not None:
            return self.global_rank(hit.record.local)
        if who.device.isdigit() and (who.device != hit.culprit.device or len(self.known) > 1):
            return self.global_rank(int(who.device))
        if who == Culprit() and self.alone:
            return 0
        device = _DEVICE.search(hit.record.text)
        return self.global_rank(int(device[1])) if device and 0 < int(device[1]) < self.children else None

    def global_rank(self, local: int) -> int | None:
        """Return the rank of a process on a node: it is another number if there are several nodes."""
        if len(self.bases) == 1:
            return next(iter(self.bases)) + local
        places = {place for place, _ in self.devices}
        most = max(_ON_A_NODE, self.locals, self.children, local + 1)
        several = self.nodes > 1 or len(self.bases) > 1 or len(places) > 1 or self.world > most
        return None if several else local

    def _counts_devices(self, node: str) -> bool:
        """Whether the device of NCCL's label is the rank: one node, several devices, one process for each."""
        places = {place for place, _ in self.devices}
        alone = all(len(pids) == 1 for pids in self.devices.values())
        return places == {node} and alone and len(self.devices) > 1 and self.world in (0, len(self.devices))


def processes(path: Path) -> Processes:
    """Read what a log says about its processes. A log that cannot be read says nothing."""
    said = Processes()
    for data in _parts(path):
        _read(data, said)
    return said


def first_closed(path: Path, hit: Hit) -> int | None:
    """Return the local rank whose connections NCCL's other ranks of the node report first as closed, below a line."""
    if not path.is_file():
        return None
    try:
        with open_log(path) as file:
            file.seek(hit.offset)
            found = _CLOSED.search(file.read(_TAIL))
    except (OSError, EOFError, zlib.error):
        return None
    return int(found[1]) if found else None


def _parts(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        return  # a pipe cannot be read again
    try:
        with open_log(path) as file:
            yield file.read(_HEAD)
            size = 0 if path.suffix == ".gz" else path.stat().st_size
            if size > _HEAD:
                file.seek(max(_HEAD, size - _TAIL))
                yield file.read(_TAIL)
    except (OSError, EOFError, zlib.error):
        return


def _read(data: bytes, said: Processes) -> None:
    ranks, locals_, children = _numbers(_RANKS, data), _numbers(_LOCALS, data), _numbers(_CHILDREN, data)
    said.ranks.update(rank for rank in ranks if rank < _LARGEST)
    said.locals = max([said.locals, *(local + 1 for local in locals_)])
    said.nodes = max([said.nodes, *_numbers(_NODES, data)])
    said.world = max([said.world, *_worlds(data), *_numbers(_MEMBERS, data)])
    _read_nccl(data, said)
    for rank, local, pid in _BOX.findall(data):
        _add(said, pid, rank)
        said.bases.add(int(rank) - int(local))
    numbers = _NUMBER.findall(data)
    said.cut = numbers[-1] != b"0" if numbers else said.cut
    said.ends.update(_ENTRY.findall(data))
    said.swept = said.swept or _CHILDREN[1].search(data) is not None
    for at, host, rank in _ROOT_CAUSE.findall(data):
        with suppress(ValueError):  # no time
            said.failed.append(
                (datetime.fromisoformat(at.decode().replace("_", "T")), Culprit(host.decode(), int(rank)))
            )
    said.bases.update(int(of.split(b",")[0]) for of in _GLOBAL.findall(data))
    for one in _PIDS:
        for found in islice(one.finditer(data), 4 * _LABELS):
            near = _RANK_BEFORE.search(data[max(0, found.start() - 40) : found.start()])
            near = near or _RANK_AFTER.match(data, found.end(), found.end() + 60)
            if near is not None:
                _add(said, found[1], near[1])
    for found in _OPEN_MPI.finditer(data):
        label = _OPEN_MPI_LABEL.search(data[max(0, found.start() - _NEAR) : found.start()])
        if label is not None:
            said.pids.setdefault((short_host(label[1].decode()), label[2].decode()), set()).add(int(found[1]))
    spawned = _SPAWNED.findall(data)
    said.children = max(said.children, len(set(children)), len(spawned))
    if said.nodes <= 1 and len({local for _, local in spawned}) == len(spawned):  # one launch on one node
        said.alone = [local for _, local in spawned] == [b"0"] and said.world < 2
        for pid, local in spawned:
            _add(said, pid, local)
    said.alone = said.alone or (said.nodes <= 1 and said.world < 2 and said.children < 2 and bool(_ONE.search(data)))


def _worlds(data: bytes) -> Iterator[int]:
    """Yield the sizes of the world, without those of a group or of one node."""
    for one in _WORLDS:
        for found in one.finditer(data):
            before = data[max(0, found.start() - 5) : found.start()]
            if int(found[1]) < _LARGEST and (before == b"dist_" or not (before[-1:].isalpha() or before[-1:] == b"_")):
                yield int(found[1])


def _labels(expression: re.Pattern[bytes], data: bytes) -> Iterator[tuple[str, str, str, re.Match[bytes]]]:
    """Yield the node, process and device of NCCL's label before each match in a line, and the match."""
    for found in islice(expression.finditer(data), _LABELS):
        start = data.rfind(b"\n", max(0, found.start() - _NEAR), found.start()) + 1
        label = _LABEL.search(data, max(start, found.start() - _NEAR), found.start() + 2)
        if label is not None:
            yield short_host(label[1].decode()), label[2].decode(), label[3].decode(), found


def _read_nccl(data: bytes, said: Processes) -> None:
    """Read NCCL's labels and its lines about communicators. Only the one of all ranks counts their numbers."""
    for node, pid, device, _ in _labels(_NCCL, data):
        said.devices.setdefault((node, device), set()).add(pid)
    lines = [(node, pid, device, int(of[1]), int(of[2]), of[3]) for node, pid, device, of in _labels(_INIT, data)]
    whole = max((of for *_, of, _ in lines), default=0)
    said.world = max(said.world, whole)
    places: dict[int, set[tuple[str, str]]] = {}  # by rank in the largest communicator
    for node, _, device, rank, of, _ in lines:
        if of == whole:
            places.setdefault(rank, set()).add((node, device))
    inside = {(node, pid) for node, pid, _, _, of, _ in lines if of == whole}
    if any((node, pid) not in inside for node, pid, *_ in lines) or any(len(of) > 1 for of in places.values()):
        return  # the largest communicators that the log shows do not contain all processes
    for node, pid, _, rank, of, bus in lines:
        if of == whole:
            said.pids.setdefault((node, pid), set()).add(rank)
            said.ranks.add(rank)
            if bus:
                n = int(bus, 16)
                address = f"{n >> 20:04x}:{n >> 12 & 255:02x}:{n >> 4 & 255:02x}.{n & 15}"
                said.buses.setdefault((node, address), set()).add(rank)


def _add(said: Processes, pid: bytes, rank: bytes) -> None:
    said.pids.setdefault(("", pid.decode()), set()).add(int(rank))


def _only(table: dict[tuple[str, str], set[int]], node: str, what: str) -> int | None:
    """Return the only rank for a process or a device of a node, or of any if the node is not known."""
    if not what:
        return None
    places = [place for place in table if place[1] == what and (not node or place[0] in ("", node))]
    ranks = set().union(*(table[place] for place in places))
    return next(iter(ranks)) if len(ranks) == 1 else None


def _numbers(expressions: Iterable[re.Pattern[bytes]], data: bytes) -> list[int]:
    return [int(number) for one in expressions for number in one.findall(data)]
