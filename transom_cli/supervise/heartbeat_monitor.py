"""Reads an attempt's heartbeat tables and judges their silence. Launcher and operator use it, each with its own clock.

The launcher gets the tables over its connections to the agents, and reads a node's file if its connection yields none.
The operator reads the launcher's file of all tables (`heartbeat.aggregate`). Meanwhile, the agents rarely write their
own files. If the launcher falls silent, they write them once a second, and the operator reads those.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from transom_cli.core import stall
from transom_cli.core.events import Stall
from transom_cli.heartbeat.aggregate import Heard, Part, decode_all
from transom_cli.heartbeat.table import BadTable, NodeTable, decode
from transom_cli.supervise.attempt_files import read_once

OVERDUE = 3.0  # an agent makes a table once a second
SHARE = 0.06  # of a core: reading two thousand tables takes a while
LEAST, LONGEST = 0.25, 1.5  # seconds between two rounds
OPERATIONS = 1000.0  # a second that the file server is asked for, as long as LONGEST allows it
A_TABLE = 3  # operations: open, read, close
LARGEST = 1 << 16  # bytes of a table: some fifty a rank; of more than 128 KiB the allocation alone takes 12 us
FOLLOWED = 7.0  # seconds: the launcher publishes every 5 s
SIGNED = 4.5  # seconds: the launcher gives a sign of life every second, which may show three seconds late
TOGETHER = 0.5  # seconds between two looks at the file of all tables
_SUFFIX = ".beats"
_DEAD, _SLOW = "TXZ", ("checkpoint", "restore")


class Stream(Protocol):
    """Tables from the agents themselves (`launcher.heartbeat_stream`)."""

    nodes: tuple[str, ...]

    def take(self) -> tuple[dict[str, bytes], frozenset[str]]: ...


class AggregateFile:
    """The launcher's file of all tables."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._known: tuple[int, int, int] | None = None
        self._number = -1
        self.written = 0.0  # its modification time

    def read(self) -> tuple[Heard, ...] | None:
        """Return the tables if they are new since the last call. Three calls to the file system otherwise.

        It is opened each time, since a network file system revalidates a file when it is opened.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            about = os.fstat(fd)
            known = about.st_ino, about.st_mtime_ns, about.st_size
            if known == self._known:
                return None
            number, found = decode_all(os.read(fd, about.st_size + 1))
            self._known, self.written = known, about.st_mtime
            before, self._number = self._number, number
            return found if number != before else None
        except (OSError, BadTable):
            return None  # replaced while it was read, on a file system without atomic rename
        finally:
            os.close(fd)


class HeartbeatMonitor:
    """nodes: The folder of the nodes' own files. aggregate: The launcher's file, for the operator."""

    def __init__(self, nodes: Path, limits: stall.StallLimits, aggregate: Path | None = None) -> None:
        self._nodes = nodes
        self._limits = limits
        self._stream: Stream | None = None
        self._aggregate = AggregateFile(aggregate) if aggregate is not None else None
        self._looked_together = float("-inf")
        self._followed: float | None = None  # when the file of all tables was last new, while it is followed
        self._stall_state = stall.start()
        self._found: Stall | None = None
        self._renewed: dict[str, float] = {}  # node -> when its table was last seen to be new
        self._alone: dict[str, float] = {}  # node -> since when its table is late, while another's is not
        self._folder = f"{nodes}{os.sep}"  # a `Path` takes as long to be made as its file to be read
        self._due = float("-inf")  # when the next round may begin
        self.tables: dict[str, NodeTable] = {}
        self._raw: dict[str, bytes] = {}
        self._conditions: dict[str, tuple[list[object], list[bool]]] = {}
        self._in_file: dict[str, int] = {}  # the number of the table in each node's own file, while those are read
        self._undated: dict[str, NodeTable] = {}  # new in this round, and older than it by an unknown time
        self.news = self.trouble = False  # a table differs in more than steps; in more than a phase

    def expect(self, nodes: Iterable[str]) -> None:
        """Set the nodes of the attempt: a node that never sends a table is found silent too."""
        self._stall_state = stall.expect(self._stall_state, nodes)

    def attach(self, stream: Stream) -> None:
        """Take tables from the agents' connections from now on."""
        self._stream = stream

    def resumed(self, now: float) -> None:
        """Restart all time limits: everything was stopped up to now, by Slurm for example."""
        self._stall_state = stall.resumed(self._stall_state, now)
        self._renewed = dict.fromkeys(self._renewed, now)
        self._alone, self._found, self._due = {}, None, float("-inf")

    def look(self, now: float, signed: float = float("-inf")) -> tuple[stall.StallFinding, ...]:
        """Read and judge. signed: when the launcher last gave a sign of life; for a follower of its file."""
        if self._aggregate is not None and (found := self._follow(now, signed)) is not None:
            return found
        if now < self._due <= now + LONGEST:  # a clock that was set back keeps nobody from looking
            return ()
        began = time.thread_time()
        files = self._read(now)
        findings = self._judge(now, self._dated(now))
        rest = max(LEAST, (time.thread_time() - began) / SHARE, A_TABLE * files / OPERATIONS)
        self._due = now + min(LONGEST, rest, max(LEAST, stall.due(self._stall_state, self._limits)))
        return findings

    def _judge(self, now: float, heard: stall.HeardBefore) -> tuple[stall.StallFinding, ...]:
        late = set(self.overdue(now))
        some = late if len(late) < len(self._renewed) else set()  # all at once: it is the file system, or we ourselves
        self._alone = {node: self._alone.get(node, now) for node in some}
        self._stall_state, findings = stall.watch(self._stall_state, self.tables, now, self._limits, heard)
        for found in findings:
            if isinstance(found, Stall):
                self._found = found
        return findings

    # --- the launcher's file of all tables ---

    def _follow(self, now: float, signed: float) -> tuple[stall.StallFinding, ...] | None:
        """Judge by the launcher's file when it is new; None if it cannot be relied on.

        Between two publications nothing differs, or the launcher would have published at once: nothing is judged.
        """
        assert self._aggregate is not None
        if 0.0 <= now - self._looked_together < TOGETHER:
            return () if self._followed is not None else None
        self._looked_together = now
        heard = self._aggregate.read()
        alive = now - signed <= SIGNED
        if heard is not None and alive:
            self._followed = now
            return self._judge(now, self._hear(heard, now))
        if self._followed is not None and alive and now - self._followed <= FOLLOWED:
            self._stall_state = stall.listened(self._stall_state, now, self._limits)
            return ()
        if self._followed is not None:
            self._trust(now, max(self._followed, min(now, signed)))
            self._followed = None
        return None

    def _hear(self, heard: Iterable[Heard], now: float) -> stall.HeardBefore:
        ages: dict[str, float] = {}
        still: dict[int, float] = {}
        for table, age, ranks in heard:
            self.tables[table.node] = table
            self._renewed[table.node] = now - age
            ages[table.node] = age
            still.update((beat.rank, seconds) for beat, seconds in zip(table.ranks, ranks, strict=False))
        return stall.HeardBefore(ages, still)

    def _trust(self, now: float, at: float) -> None:
        """Trust the launcher: until its last sign of life, it saw no late tables but those published as late."""
        assert self._followed is not None
        good = [node for node, renewed in self._renewed.items() if self._followed - renewed <= OVERDUE]
        self._renewed.update((node, max(at, self._renewed[node])) for node in good)
        self._stall_state = stall.vouched(stall.listened(self._stall_state, now, self._limits), now - at, good)
        self._in_file.clear()

    # --- tables one by one ---

    def _read(self, now: float) -> int:
        """Take new tables. Return how many files were read."""
        fetched: frozenset[str] = frozenset()
        if self._stream is not None:
            tables, fetched = self._stream.take()
            for node, data in tables.items():
                self._take(node, data, now, from_file=False)
        files = 0
        for name in self._names(fetched):
            try:
                self._take(name.removesuffix(_SUFFIX), read_once(f"{self._folder}{name}", LARGEST), now, from_file=True)
            except OSError:
                continue  # gone
            files += 1
        return files

    def _take(self, key: str, data: bytes, now: float, *, from_file: bool) -> None:
        try:
            table = decode(data)
        except BadTable:
            return  # caught while it was replaced on a file system without atomic rename
        before = self.tables.get(key)
        renewed = now
        if from_file:  # a file may be older than what came over the connection, until it changes
            first = key not in self._in_file
            changed = self._in_file.get(key, table.seq) != table.seq
            self._in_file[key] = table.seq
            if before is not None and not changed and table.seq <= before.seq:
                return
            if before is not None and first:  # nobody knows when it was written: no sign of life from now
                renewed = self._renewed.get(table.node, now)
                self._undated[key] = table
        elif table.node != key:
            return  # an agent speaks for its own node
        else:
            self._in_file.pop(key, None)
        if before is None or before.seq != table.seq:
            self._renewed[table.node] = renewed
        self.tables[key], self._raw[key] = table, data
        known, (condition, phases) = self._conditions.get(key), _condition(table)
        self._conditions[key] = condition, phases
        if known is None or known[0] != condition:
            self.news = self.trouble = True
        elif known[1] != phases:
            self.news = True

    def _dated(self, now: float) -> stall.HeardBefore:
        """Date an undated table: its content counts from the node's last sign of life."""
        undated, self._undated = self._undated, {}
        ages = {key: now - self._renewed[table.node] for key, table in undated.items()}
        return stall.HeardBefore(ages, {beat.rank: ages[key] for key, table in undated.items() for beat in table.ranks})

    def _names(self, fetched: frozenset[str]) -> Iterable[str]:
        """Return the files to read: of nodes whose tables do not arrive by connection."""
        if not fetched or self._stream is None:
            return self._listed()
        return (f"{node}{_SUFFIX}" for node in self._stream.nodes if node not in fetched)

    def parts(self, now: float) -> Iterator[Part]:
        """The tables for the file of all tables."""
        clock, pulses = self._stall_state.clock, self._stall_state.pulses
        for key, data in self._raw.items():
            table = self.tables[key]
            moved = ((pulses[r.rank].moved if r.rank in pulses else clock) for r in table.ranks)
            yield Part(data, max(0.0, now - self._renewed[table.node]), tuple(max(0.0, clock - at) for at in moved))

    def forget_news(self) -> None:
        """Note that all differences are published."""
        self.news = self.trouble = False

    @property
    def found(self) -> Stall | None:
        """The present stall, or None."""
        return self._found if self._stall_state.stalled else None

    def blind(self, now: float) -> bool:
        """Return whether all silent ranks are on nodes that cannot be seen, so that their agents may be the cause."""
        overdue = set(self.overdue(now))
        return bool(self._stall_state.stalled) and overdue.issuperset(self.nodes_of(self._stall_state.stalled))

    @property
    def launch(self) -> int:
        """The launch that the tables and findings are about; -1 if none yet."""
        return self._stall_state.launch[1] if self._stall_state.launch is not None else -1

    def step(self, launch: int) -> int:
        """Return the last step that every rank of this launch has done; -1 if none, or if the tables are of another."""
        return self._stall_state.step if self.launch == launch else -1

    def since_start(self, launch: int) -> bool:
        """Return whether that step counts from the start of the processes."""
        return self.launch == launch and self._stall_state.since_start

    @property
    def step_time(self) -> float:
        """Median seconds of a step; 0 until enough were seen."""
        return self._stall_state.times.median if self._stall_state.times.known else 0.0

    @property
    def unusual(self) -> float:
        """Seconds without a step that are unusual if there is other evidence against a rank; 0 if not known yet."""
        limits, times = self._limits, self._stall_state.times
        return times.tight(limits.factor, limits.floor, limits.ceiling) if times.known else 0.0

    def nodes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Return the nodes of these ranks of the present launch."""
        where = {r.rank: t.node for t in self.tables.values() for r in t.ranks if r.launch == self.launch}
        return tuple(dict.fromkeys(where[r] for r in ranks if r in where))

    def gone(self, launch: int, world_size: int) -> bool:
        """Return whether the process of every rank of this launch has ended."""
        ranks = {r.rank: r for t in self.tables.values() for r in t.ranks if r.launch == launch}
        return 0 < world_size <= len(ranks) and all(r.proc == "X" or r.phase == "done" for r in ranks.values())

    def overdue(self, now: float) -> tuple[str, ...]:
        """Return nodes whose own table is late, so that nothing on them can be seen."""
        now = now if self._followed is None else self._followed  # later news would have been published
        return tuple(sorted(node for node, at in self._renewed.items() if now - at > OVERDUE))

    @property
    def seen(self) -> dict[str, NodeTable]:
        """The tables without those that are late while others arrive: the state of those nodes is unknown."""
        return {key: table for key, table in self.tables.items() if table.node not in self._alone}

    def alone(self, now: float) -> tuple[tuple[str, float], ...]:
        """Return nodes whose table is late while another's arrived all the time, and for how many seconds."""
        return tuple((node, now - since) for node, since in sorted(self._alone.items()))

    def _listed(self) -> list[str]:
        try:
            with os.scandir(self._nodes) as entries:
                return sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
        except OSError:
            return []


def _condition(table: NodeTable) -> tuple[list[object], list[bool]]:
    """Return what the operator and the screens should know at once, and which ranks save or restore."""
    about: list[object] = [table.attempt, table.closed, table.alarms]
    for r in table.ranks:
        about.append((r.rank, r.launch, r.pid, r.count > 0, r.phase == "done", r.proc in _DEAD and r.proc))
    return about, [r.phase in _SLOW for r in table.ranks]
