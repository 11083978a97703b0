"""Reads the files of an attempt's nodes: heartbeat tables, findings, GPU readings.

A thousand nodes have thousands of small files on a file system that may be slow to open each. So there is one listing
per look, and unchanged files are not opened again. The tables come from the launcher's one file of all of them, as long
as it is current; else from the nodes' own files.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from transom_cli.errors import printable
from transom_cli.files import read_json, tail
from transom_cli.health.gpu import status
from transom_cli.health.gpu.status import NodeGpus
from transom_cli.heartbeat.table import BadTable, NodeTable, decode
from transom_cli.layout import AttemptDir
from transom_cli.supervise.heartbeat_monitor import AggregateFile
from transom_cli.view.node_state import Found, NodeSight
from transom_cli.view.text import span

LIST_EVERY = 5.0  # seconds between two listings, for a reader with a budget
NCCL = 120.0  # seconds for which a reading of NCCL's RAS counts; the agents ask every 30 s, or every 80 s
TAIL = 64 << 10  # bytes of a node's findings that are read
CURRENT = (
    7.0  # seconds by which a node's own table may be newer than the file of all tables, which is written every 5 s
)
SAMPLE = 8  # nodes whose own tables are compared with it
_VERDICTS = (b'"suspect"', b'"fail"')  # findings without any of them need no parsing


@dataclass(frozen=True)
class _Read:
    """The files of one node. written, gpus_written: modification times."""

    table: NodeTable | None
    written: float
    found: tuple[Found, ...]
    gpus: NodeGpus | None
    gpus_written: float


class NodeReader:
    """Reads the nodes of an attempt repeatedly.

    Args:
        budget: Approximate seconds for a look. Tables that it leaves out come first in the next look, and keep their
            last values until then.
    """

    def __init__(self, budget: float = float("inf")) -> None:
        self._budget = budget
        self._attempt = ""
        self._begin()

    def _begin(self) -> None:
        self._listed, self._beside, self._with_gpus = float("-inf"), frozenset[str](), frozenset[str]()
        self._with_nccl: tuple[str, ...] = ()
        self._nodes: list[str] = []
        self._turn = 0
        self._sights: dict[str, NodeSight] = {}
        self._sizes: dict[str, int] = {}  # of the findings files
        self._gpus: dict[str, tuple[NodeGpus, float]] = {}  # readings, modification time
        self._newest: float | None = None
        self._file: AggregateFile | None = None
        self._together: dict[str, tuple[NodeTable, float]] = {}  # from the file of all tables, and when each came

    def read(self, attempt: AttemptDir) -> tuple[dict[str, NodeSight], float | None]:
        """Return what is known of each node, and the modification time of the newest table."""
        now = time.monotonic()
        if attempt.name != self._attempt:
            self._attempt = attempt.name
            self._begin()
        if self._budget == float("inf") or now - self._listed >= LIST_EVERY:
            self._list(attempt, now)
        read = self._read_some(attempt, now + self._budget)
        seen = [one.written for one in read.values() if one.written]
        self._newest = max([*seen, *([self._newest] if self._newest is not None else [])], default=None)
        for node, one in read.items():
            before = self._sights.get(node, NodeSight())
            if one.table is None:
                if one.found or node in self._sights or node in self._beside:
                    self._sights[node] = replace(before, found=one.found)
            else:
                newest = self._newest or one.written
                behind, gpus_behind = max(0.0, newest - one.written), max(0.0, newest - one.gpus_written)
                self._sights[node] = NodeSight(one.table, behind, one.found, one.gpus, gpus_behind)
        return dict(self._sights), self._newest

    def nccl(self, attempt: AttemptDir, launch: int) -> tuple[str, ...]:
        """Return which ranks of this launch the others wait for, by the newest of the nodes' readings of NCCL's RAS."""
        files = [(_mtime(f"{attempt.nodes}/{name}"), name) for name in self._with_nccl]
        if not files or (self._newest or 0.0) - max(files)[0] > NCCL:
            return ()
        said = read_json(attempt.nodes / max(files)[1])
        if said.get("launch") != launch or not isinstance(found := said.get("behind"), list):
            return ()
        known = [(one.get("words"), one.get("seconds")) for one in found if isinstance(one, dict)]
        return tuple(
            f"{printable(words)}, for {span(seconds)}"
            for words, seconds in known
            if isinstance(words, str) and isinstance(seconds, float) and 0.0 < seconds < float("inf")
        )

    def _list(self, attempt: AttemptDir, now: float) -> None:
        names = _names(str(attempt.nodes))
        self._listed = now
        self._beside = frozenset(name[:-6] for name in names if name.endswith(".jsonl"))
        self._with_gpus = frozenset(name[:-5] for name in names if name.endswith(".gpus"))
        self._with_nccl = tuple(name for name in names if name.endswith(".nccl"))
        self._nodes = sorted({*self._beside, *(name[:-6] for name in names if name.endswith(".beats"))})

    def _read_some(self, attempt: AttemptDir, deadline: float) -> dict[str, _Read]:
        """Read the nodes whose turn it is; in the first look, all."""
        read: dict[str, _Read] = {}
        folder = str(attempt.nodes)
        current = self._file_is_current(attempt, folder)
        start, whole = self._turn % len(self._nodes) if self._nodes else 0, not self._sights
        for n, node in enumerate((*self._nodes[start:], *self._nodes[:start])):
            if n and not whole and time.monotonic() > deadline:
                break
            self._turn = start + n + 1
            has = self._together.get(node)
            if has is None or not current:
                own = _table(f"{folder}/{node}.beats")
                has = own if has is None or (own is not None and own[0].seq >= has[0].seq) else has
            table, written = has if has is not None and has[0].attempt == attempt.name else (None, 0.0)
            gpus, gpus_written = self._shown(folder, node)
            read[node] = _Read(table, written, self._found(folder, node), gpus, gpus_written)
        return read

    def _file_is_current(self, attempt: AttemptDir, folder: str) -> bool:
        """Read the launcher's file of all tables; False if the nodes' own files are newer.

        They are when the launcher is silent, and when the agents have written their last ones.
        """
        self._file = self._file or AggregateFile(attempt.heartbeats)
        heard = self._file.read()
        if heard is not None:
            self._together = {one.table.node: (one.table, self._file.written - one.age) for one in heard}
            self._nodes = sorted({*self._nodes, *self._together})
        own = (_mtime(f"{folder}/{node}.beats") for node in self._nodes[:: max(1, len(self._nodes) // SAMPLE)])
        return not attempt.outcome.exists() and max(own, default=0.0) - self._file.written <= CURRENT

    def _shown(self, folder: str, node: str) -> tuple[NodeGpus | None, float]:
        """Read the GPU readings if the file has changed."""
        known = self._gpus.get(node)
        if node not in self._with_gpus:
            return None, 0.0
        path = f"{folder}/{node}.gpus"
        try:
            if known is None or os.stat(path).st_mtime != known[1]:  # noqa: PTH116
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                    known = self._gpus[node] = status.decode(file.read().decode()), os.fstat(file.fileno()).st_mtime
        except (OSError, ValueError):  # removed, damaged, or of another version
            pass
        return known or (None, 0.0)

    def _found(self, folder: str, node: str) -> tuple[Found, ...]:
        if node not in self._beside:
            return ()
        path = f"{folder}/{node}.jsonl"
        known = self._sights[node].found if node in self._sights else ()
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except OSError:
            return known
        if self._sizes.get(node) == size:
            return known
        self._sizes[node] = size
        return _findings(path)


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    except OSError:
        return []


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except OSError:
        return 0.0


def _table(path: str) -> tuple[NodeTable, float] | None:
    """Return a table and its modification time; None if it was removed or is being replaced."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return decode(file.read()), os.fstat(file.fileno()).st_mtime
    except (OSError, BadTable):
        return None


def _findings(path: str) -> tuple[Found, ...]:
    try:
        data = tail(path, TAIL)
    except OSError:
        return ()
    return tuple(_records(data)) if any(verdict in data for verdict in _VERDICTS) else ()


def _records(data: bytes) -> Iterator[Found]:
    for text in data.splitlines():
        try:
            record = json.loads(text)
            yield Found(str(record["kind"]), str(record["verdict"]), str(record["words"]), int(record["launch"]))
        except (ValueError, KeyError, TypeError):
            continue  # incomplete, or of another version
