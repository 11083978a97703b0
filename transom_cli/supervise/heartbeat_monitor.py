"""Reads an attempt's beat tables and judges their silence. Used by launcher and operator, each on its clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from transom_cli.core import stall
from transom_cli.core.events import Stall
from transom_cli.heartbeat.table import BadTable, NodeTable, decode

OVERDUE = 3.0  # an agent writes once a second
SHARE = 0.06  # of a core: reading two thousand tables takes a while
LEAST, LONGEST = 0.25, 1.5  # seconds between two rounds
OPERATIONS = 1000.0  # a second that the file server is asked for, as long as LONGEST allows it
A_TABLE = 3  # operations: open, read, close
LARGEST = 1 << 16  # bytes of a table: some fifty a rank; of more than 128 KiB the allocation alone takes 12 us
_SUFFIX = ".beats"


class HeartbeatMonitor:
    def __init__(self, nodes: Path, limits: stall.StallLimits) -> None:
        self._nodes = nodes
        self._limits = limits
        self._stall_state = stall.start()
        self._found: Stall | None = None
        self._renewed: dict[str, float] = {}  # node -> when its table was last seen to be new
        self._alone: dict[str, float] = {}  # node -> since when its table is late, while another's is not
        self._folder = f"{nodes}{os.sep}"  # a `Path` takes as long to be made as its file to be read
        self._due = float("-inf")  # when the next round may begin
        self.tables: dict[str, NodeTable] = {}

    def expect(self, nodes: Iterable[str]) -> None:
        """Nodes of the attempt: one of them that never sends a table is found silent too."""
        self._stall_state = stall.expect(self._stall_state, nodes)

    def resumed(self, now: float) -> None:
        """Everything was stopped up to now (by Slurm, say): listen with fresh patience."""
        self._stall_state = stall.resumed(self._stall_state, now)
        self._renewed = dict.fromkeys(self._renewed, now)
        self._alone, self._found, self._due = {}, None, float("-inf")

    def look(self, now: float) -> tuple[stall.StallFinding, ...]:
        if now < self._due <= now + LONGEST:  # a clock that was set back keeps nobody from looking
            return ()
        began = time.thread_time()
        self._read(now)
        late = set(self.overdue(now))
        some = late if len(late) < len(self._renewed) else set()  # all at once: it is the file system, or we ourselves
        self._alone = {node: self._alone.get(node, now) for node in some}
        self._stall_state, findings = stall.watch(self._stall_state, self.tables, now, self._limits)
        for found in findings:
            if isinstance(found, Stall):
                self._found = found
        rest = max(LEAST, (time.thread_time() - began) / SHARE, A_TABLE * len(self.tables) / OPERATIONS)
        self._due = now + min(LONGEST, rest, max(LEAST, stall.due(self._stall_state, self._limits)))
        return findings

    def _read(self, now: float) -> None:
        for name in self._listed():
            key = name.removesuffix(_SUFFIX)
            try:
                table = decode(_bytes(f"{self._folder}{name}"))
            except (OSError, BadTable):
                continue  # gone, or caught while it was replaced on a file system without atomic rename
            if key not in self.tables or self.tables[key].seq != table.seq:
                self._renewed[table.node] = now
            self.tables[key] = table

    @property
    def found(self) -> Stall | None:
        """The present stall, if there is one."""
        return self._found if self._stall_state.stalled else None

    def blind(self, now: float) -> bool:
        """Whether all ranks that are quiet are on nodes that cannot be seen: it may be their agents that are."""
        overdue = set(self.overdue(now))
        return bool(self._stall_state.stalled) and overdue.issuperset(self.nodes_of(self._stall_state.stalled))

    @property
    def launch(self) -> int:
        """The launch that the tables and findings are about; -1: none yet."""
        return self._stall_state.launch[1] if self._stall_state.launch is not None else -1

    def step(self, launch: int) -> int:
        """The last step that every rank of this launch has done; -1: none, or the tables are still about another."""
        return self._stall_state.step if self.launch == launch else -1

    def since_start(self, launch: int) -> bool:
        """Whether that step counts from the start of the processes."""
        return self.launch == launch and self._stall_state.since_start

    @property
    def step_time(self) -> float:
        """Median seconds of a step; 0 as long as too few were seen."""
        return self._stall_state.times.median if self._stall_state.times.known else 0.0

    @property
    def unusual(self) -> float:
        """Seconds without a step that are unusual if there is other evidence against a rank; 0: not known yet."""
        limits, times = self._limits, self._stall_state.times
        return times.tight(limits.factor, limits.floor, limits.ceiling) if times.known else 0.0

    def nodes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Where these ranks of the present launch are."""
        where = {r.rank: t.node for t in self.tables.values() for r in t.ranks if r.launch == self.launch}
        return tuple(dict.fromkeys(where[r] for r in ranks if r in where))

    def gone(self, launch: int, world_size: int) -> bool:
        """Whether the process of every rank of this launch has ended."""
        ranks = {r.rank: r for t in self.tables.values() for r in t.ranks if r.launch == launch}
        return 0 < world_size <= len(ranks) and all(r.proc == "X" or r.phase == "done" for r in ranks.values())

    def overdue(self, now: float) -> tuple[str, ...]:
        """Nodes whose own table is late: what is on them cannot be seen any more."""
        return tuple(sorted(node for node, at in self._renewed.items() if now - at > OVERDUE))

    @property
    def seen(self) -> dict[str, NodeTable]:
        """The tables without those that are late while others come: what is on those nodes is not known."""
        return {key: table for key, table in self.tables.items() if table.node not in self._alone}

    def alone(self, now: float) -> tuple[tuple[str, float], ...]:
        """Nodes whose table is late, and for how many seconds it has been, while another's came all the time."""
        return tuple((node, now - since) for node, since in sorted(self._alone.items()))

    def _listed(self) -> list[str]:
        try:
            with os.scandir(self._nodes) as entries:
                return sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
        except OSError:
            return []


def _bytes(path: str) -> bytes:
    """Without a file object: thousands of them a second are a third of what reading the tables takes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, LARGEST)
    finally:
        os.close(fd)
