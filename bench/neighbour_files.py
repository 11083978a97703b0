"""Count what the heartbeats of a large run ask of the shared file system while all is well.

    python bench/neighbour_files.py [--nodes 1024] [--ranks 8] [--seconds 60] [--json]

The nodes' agents, the launcher's monitor and publisher, and the operator's follower are the real ones; only ranks, time
and connections are simulated. The bench counts each call to `os` and `open` on the run directory. "before" is the same
code while no launcher fetches the tables: every node writes its table once a second, and launcher and operator read
those. Exit code 1 if a budget is exceeded.
"""

from __future__ import annotations

import argparse
import base64
import builtins
import collections
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.stall import StallLimits
from transom_cli.core.stall_state import StallFinding
from transom_cli.heartbeat.attempt_end import EVERY as END_EVERY
from transom_cli.heartbeat.attempt_end import AttemptEnd
from transom_cli.heartbeat.local_table import publish
from transom_cli.heartbeat.step_breakdown import RankSteps
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.agent.agent import RARELY, Agent
from transom_cli.supervise.agent.heartbeat_feed import Beats, HeartbeatFeed
from transom_cli.supervise.follow import AttemptFollower
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor
from transom_cli.supervise.launcher.heartbeat_stream import CURRENT, UNREAD, HeartbeatPublisher

TURN = 0.25  # simulated seconds per turn
SETTLE = 40.0  # simulated seconds until the beginning of the training is no news any more
DAEMON = 5.0  # seconds between two looks of a node's snapshot daemon for the outcome
OPEN = 5  # calls of one `open`: open, fstat, lseek, read or write, close
NODES, RANKS, SECONDS = 1024, 8, 60.0


class Rank:
    """step: the next one, in `every` seconds; it hangs from `hangs` on."""

    def __init__(self, number: int, every: float) -> None:
        self.number, self.every, self.hangs = number, every, float("inf")

    def row(self, now: float) -> RankBeat:
        until = min(now, self.hangs)
        step = int(until / self.every)
        return RankBeat(self.number, 0, step, step + 1, now - step * self.every, 1.83, "step", 4000 + self.number, "S")


class Stream:
    """Fetches from the feeds of the nodes that are connected, as `heartbeat_stream` does over sockets."""

    def __init__(self, world: World) -> None:
        self.nodes, self._world = tuple(world.agents), world
        self._seen: dict[str, int] = {}
        self._arrived: dict[str, float] = {}
        self._tables: dict[str, bytes] = {}
        self._consumed = world.now

    def take(self) -> tuple[dict[str, bytes], frozenset[str]]:
        tables, self._tables = self._tables, {}
        return tables, frozenset(node for node, at in self._arrived.items() if self._world.now - at < CURRENT)

    def fetch(self) -> None:
        """A turn of the thread."""
        world = self._world
        for node in world.agents if world.now - self._consumed <= UNREAD else ():
            feed, seen = world.feeds[node], self._seen.get(node, -1)
            if node not in world.dead and node not in world.cut and feed.newest != seen:
                answer = feed.fetch(Beats(seen))
                self._seen[node], self._arrived[node] = answer["seq"], world.now
                self._tables[node] = base64.b64decode(answer["table"])

    def consumed(self) -> None:
        self._consumed = self._world.now


class World:
    """An attempt in simulated time. dead: nodes without an agent. cut: those that the launcher cannot reach."""

    def __init__(
        self, folder: Path, nodes: int, ranks: int, *, fetches: bool = True, limits: StallLimits = StallLimits()
    ) -> None:
        self.now = 1000.0
        self.attempt: AttemptDir = RunDir(folder / "run").attempt(7, 0)
        self.attempt.nodes.mkdir(parents=True)
        self.dead: set[str] = set()
        self.cut: set[str] = set()
        self.launcher_lives = True
        names = [f"gpu{n:04d}" for n in range(nodes)]
        self.ranks = {name: [Rank(n * ranks + r, 1.0) for r in range(ranks)] for n, name in enumerate(names)}
        self.feeds = {name: HeartbeatFeed(lambda: self.now) for name in names}
        self.agents = {name: self._agent(name) for name in names}
        self._ends = {name: (AttemptEnd(self.attempt, self.now), AttemptEnd(self.attempt, self.now)) for name in names}
        self._fetches = fetches
        self.watch = HeartbeatMonitor(self.attempt.nodes, limits)
        self.publisher, self.stream = HeartbeatPublisher(self.attempt, self.watch), Stream(self)
        if fetches:
            self.watch.attach(self.stream)
        self._signs, self._signed, self._looked = 0, float("-inf"), float("-inf")
        self._look_every = max(0.25, min(1.0, nodes / 256))  # the launcher's
        record = {"type": "launch", "wall": 5.0, "launch": 0, "nodes": names, "idle": [], "world_size": nodes * ranks}
        self.attempt.launcher_journal.write_text(json.dumps(record) + "\n")
        self.operator = AttemptFollower(self.attempt, limits)
        self.publications = 0
        self.found: list[tuple[float, StallFinding]] = []  # by the launcher
        self.events: list[ev.Event] = []  # of the operator

    def _agent(self, name: str) -> Agent:
        made: Any = Agent(self.attempt, "/nonexistent", name, feed=self.feeds[name])
        made.ranks = self._Looks(lambda: tuple(rank.row(self.now) for rank in self.ranks[name]))
        made._breakdown._read = lambda row: RankSteps(
            row.rank, row.launch, row.step, self.now, 1.0, {"forward": 0.3 * row.step}
        )
        return made  # type: ignore[no-any-return]

    class _Looks:
        def __init__(self, look: Callable[[], tuple[RankBeat, ...]]) -> None:
            self.look = look

    def go_on(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.turn()

    def turn(self) -> None:
        self.now += TURN
        self.nodes()
        if self.launcher_lives:
            self.launcher()
        self.events += self.operator.poll(self.now)

    def nodes(self) -> None:
        for name, agent in self.agents.items():
            if name not in self.dead:
                agent.look(self.now)
                own, daemon = self._ends[name]
                own.look(self.now, RARELY if agent.feed.fetched else END_EVERY)
                daemon.look(self.now, DAEMON if self._fetches else END_EVERY)

    def launcher(self) -> None:
        if self._fetches:
            self.stream.fetch()
        if self.now - self._looked >= self._look_every:
            self._looked = self.now
            found = self.watch.look(self.now)
            self.found += [(self.now, one) for one in found]
            before = self._written()
            if self.publisher.look(self.now, found):
                self.stream.consumed()
            if self._written() != before:
                self.publications += 1
                with suppress(OSError):  # distinct in simulated time, too
                    os.utime(self.attempt.heartbeats, ns=(0, int(self.now * 1e9)))
        if self.now - self._signed >= 1.0:
            self._signed, self._signs = self.now, self._signs + 1
            publish(self.attempt.launcher_alive, f"{self._signs}\n".encode())

    def _written(self) -> int:
        return self.publisher.number


class Calls:
    """Counts calls to the file system below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._open = str(folder), set[int]()
        self.count: collections.Counter[str] = collections.Counter()

    @contextmanager
    def counting(self) -> Iterator[Calls]:
        real = {name: getattr(os, name) for name in (*_BY_PATH, *_BY_FD, "open", "close")}
        real_open = io.open
        for name in _BY_PATH:
            setattr(os, name, self._by_path(name, real[name]))
        for name in _BY_FD:
            setattr(os, name, self._by_fd(name, real[name]))

        def opened(path: Any, *args: Any, **kwargs: Any) -> int:
            descriptor: int = real["open"](path, *args, **kwargs)
            if self._ours(path):
                self.count["open"] += 1
                self._open.add(descriptor)
            return descriptor

        def closed(descriptor: int) -> None:
            if descriptor in self._open:
                self._open.discard(descriptor)
                self.count["close"] += 1
            real["close"](descriptor)

        def whole(path: Any, *args: Any, **kwargs: Any) -> Any:
            ours = not isinstance(path, int) and self._ours(path)
            self.count["open()"] += ours
            file = real_open(path, *args, **kwargs)
            self.count["open()"] += ours * (OPEN - 1)
            return file

        os.open, os.close = opened, closed  # type: ignore[assignment]
        io.open = builtins.open = whole  # type: ignore[assignment]
        try:
            yield self
        finally:
            for name, function in real.items():
                setattr(os, name, function)
            io.open = builtins.open = real_open

    def _ours(self, path: Any) -> bool:
        with suppress(TypeError):
            return os.fspath(path).startswith(self._folder)
        return False

    def _by_path(self, name: str, function: Any) -> Any:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            self.count[name] += self._ours(path) or path in self._open
            return function(path, *args, **kwargs)

        return call

    def _by_fd(self, name: str, function: Any) -> Any:
        def call(descriptor: Any, *args: Any, **kwargs: Any) -> Any:
            self.count[name] += descriptor in self._open
            return function(descriptor, *args, **kwargs)

        return call


_BY_PATH = ("stat", "lstat", "rename", "replace", "scandir", "listdir", "unlink", "mkdir")
_BY_FD = ("read", "pread", "write", "fstat", "fsync", "lseek")
_CHANGES = ("rename", "replace", "unlink", "mkdir")


def measured(nodes: int, ranks: int, seconds: float, *, fetches: bool) -> dict[str, float]:
    """Calls a second of simulated time, by who makes them."""
    with tempfile.TemporaryDirectory(prefix="tneighbour-") as folder:
        world = World(Path(folder), nodes, ranks, fetches=fetches)
        if not fetches:
            world.operator._watch = HeartbeatMonitor(world.attempt.nodes, StallLimits())
        world.go_on(SETTLE if fetches else 5.0)
        turns, totals = int(seconds / TURN), collections.Counter[str]()
        for _ in range(turns):
            world.now += TURN
            for who, work in (("agents", world.nodes), ("launcher", world.launcher), ("operator", _poll(world))):
                with Calls(Path(folder)).counting() as calls:
                    work()
                totals[who] += sum(calls.count.values())
                totals["renames"] += sum(calls.count[name] for name in _CHANGES)
                totals["fsyncs"] += calls.count["fsync"]
        assert not [e for e in world.events if isinstance(e, (ev.NodeSilent, ev.Stalled))], "all is well"
        return {name: count / (turns * TURN) for name, count in totals.items()}


def _poll(world: World) -> Callable[[], Iterable[ev.Event]]:
    return lambda: world.events.extend(world.operator.poll(world.now))  # type: ignore[func-returns-value]


BUDGET = {"agents": 1.0, "launcher": 15.0, "operator": 30.0, "renames": 0.12, "fsyncs": 0.0}
"""Calls a second. Those of the agents and the renames are per node; launcher and operator must not grow with nodes."""
NAMES = {
    "agents": "heartbeats, {} nodes: calls a second of all agents and snapshot daemons",
    "launcher": "heartbeats, {} nodes: calls a second of the launcher",
    "operator": "heartbeats, {} nodes: calls a second of the operator",
    "renames": "heartbeats, {} nodes: renames a second of all together",
    "fsyncs": "heartbeats, {} nodes: fsyncs a second of all together",
}


def rows(nodes: int = NODES, ranks: int = RANKS, seconds: float = SECONDS) -> list[tuple[str, float, float, float]]:
    """Return what is counted, before, now, and the budget; all per second."""
    before = measured(nodes, ranks, min(seconds, 10.0), fetches=False)
    now = measured(nodes, ranks, seconds, fetches=True)
    budget = {who: most * (nodes if who in ("agents", "renames") else 1) for who, most in BUDGET.items()}
    return [(NAMES[w].format(nodes), before.get(w, 0.0), now.get(w, 0.0), budget[w] + (w == "renames")) for w in BUDGET]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of simulated time [60]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = rows(options.nodes, options.ranks, options.seconds)
    if options.json:
        print(json.dumps([dict(zip(("what", "before", "now", "budget"), row, strict=True)) for row in found]))
    else:
        print(f"{'':74}  before     now  budget")
        for what, before, now, budget in found:
            print(f"{what:74} {before:7.1f} {now:7.1f} {budget:7.1f}")
    return int(any(now > budget for _, _, now, budget in found))


if __name__ == "__main__":
    sys.exit(main())
