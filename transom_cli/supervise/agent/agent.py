"""The node's agent: writes the node's heartbeat table and its findings, and answers the attempt's launcher.

    python -m transom_cli.supervise.agent.agent --attempt-dir D [--beats-dir B] [--node N]

There is one per node and attempt. It is a Slurm step of its own, so there are tables even when the training step dies.
The agent looks four times a second. It makes a table once a second, or at once for news that should not wait: a stopped
or vanished process, a first step. The launcher fetches the tables (`heartbeat_feed`), and the run directory gets one
every `RARELY` seconds; every one of them while no launcher fetches them.

The agent ends when it receives TERM and no live launcher needs it, when the attempt has an outcome, when its parent
(the Slurm step) dies, or when the run directory has vanished.

It also starts the node's snapshot daemon, which keeps the ranks' snapshots.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import BadNodes, NotPermitted, TransomError
from transom_cli.health.finding import Finding, Verdict
from transom_cli.heartbeat import paths, record
from transom_cli.heartbeat.attempt_end import EVERY as END_EVERY
from transom_cli.heartbeat.attempt_end import AttemptEnd, End
from transom_cli.heartbeat.local_table import GONE, process, publish, row
from transom_cli.heartbeat.table import BadTable, NodeTable, RankBeat, decode, encode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.ownership import require_own
from transom_cli.supervise.agent import procfs
from transom_cli.supervise.agent.heartbeat_feed import HeartbeatFeed
from transom_cli.supervise.agent.monitor import Alarms, Monitor
from transom_cli.supervise.agent.nccl_behind import NcclBehind
from transom_cli.supervise.agent.node_health import Watch, watched
from transom_cli.supervise.agent.rank_monitor import RankMonitor
from transom_cli.supervise.agent.snapshot_daemon import SnapshotDaemon
from transom_cli.supervise.agent.step_breakdown import StepBreakdown
from transom_cli.supervise.agent.trainer_progress import TrainerProgress
from transom_cli.supervise.agent.verbs import serve, summary

if TYPE_CHECKING:
    from transom_cli.supervise.agent.node_gpus import Gpus

LOOK = 0.25  # seconds between two looks at the ranks
EVERY = 1.0  # seconds between two tables while nothing happens
RARELY = 15.0  # seconds between two files, and between two looks for the outcome, while a launcher fetches the tables
RESTARTED = 1000  # tables that a former agent may have made since its last file
FORMER = 5.0  # seconds for an agent that hung to be gone
LAUNCHER_SILENT = 2.5  # seconds; its sign of life comes once a second
KILL_NEAR = 27.0  # seconds from TERM: Slurm's KillWait is 30
HEARTBEATS = "heartbeats"  # the check that a node without a place for heartbeats fails
_TOLD = (signal.SIGTERM, signal.SIGINT)
_NOT_FOR_US = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)  # Slurm signals every step of a job


class Ranks:
    """Reads the records and the process table. If a record is damaged, its last content and process count."""

    def __init__(self, beats_dir: str) -> None:
        self._folder = beats_dir
        self._namespace = record.pid_namespace()
        self._last: dict[str, record.Record] = {}
        self._launch = -1  # of the last look
        self.pids: tuple[int, dict[int, int]] = (-1, {})  # launch, process IDs of its ranks
        self._born: dict[tuple[int, int], int] = {}  # rank, pid -> start time, of that launch's ranks

    def look(self) -> tuple[RankBeat, ...]:
        """Return one row per rank, by rank. A table is of one launch: records of an earlier one are left out."""
        try:
            found_names = os.listdir(self._folder)  # noqa: PTH208 - four times a second: names, not Path objects
        except OSError:
            found_names = []
        names = [n for n in found_names if n.startswith("rank-") and not n.endswith(".tmp")]
        for name in names:
            found = record.look(f"{self._folder}/{name}")
            if found is not None:
                self._last[name] = found
        known = [self._last[name] for name in names if name in self._last]
        launch = max((r.launch for r in known), default=0)
        if launch != self._launch:  # its ranks may get numbers that those before them had
            self._launch, self._born = launch, {}
            paths.forget_launches(self._folder, launch - 1)  # evidence of the last one may still be collected
        now = time.monotonic_ns()
        rows = []
        pids = {}
        for found in known:
            if found.launch == launch:
                pid = pids[found.rank] = found.pid if found.pid and found.pidns == self._namespace else found.child
                rows.append(row(found, now, pid, self._state(found.rank, pid)))
        self.pids = launch, {rank: pid for rank, pid in pids.items() if pid}
        return tuple(sorted(rows, key=lambda r: r.rank))

    def _state(self, rank: int, pid: int) -> str:
        if not pid:
            return "?"
        letter, born = process(pid)
        if (letter, born) != GONE and born and self._born.setdefault((rank, pid), born) != born:
            return "X"  # another process has its number by now
        return letter


class Agent:
    def __init__(
        self,
        attempt: AttemptDir,
        beats_dir: str,
        node: str,
        alarms: Callable[[], int] = lambda: 0,
        feed: HeartbeatFeed | None = None,
        progress: TrainerProgress | None = None,
    ) -> None:
        self._attempt, self._alarms = attempt, alarms
        self._progress = progress or TrainerProgress()
        self._path = attempt.nodes / f"{node}.beats"
        self._node = node
        self.ranks = Ranks(beats_dir)
        self.rank_monitor = RankMonitor(lambda: max((row.launch for row in self.rows), default=0), _say)
        self.feed = feed or HeartbeatFeed()
        self._breakdown = StepBreakdown(attempt, node, beats_dir, self.feed, self._progress)
        self.rows: tuple[RankBeat, ...] = ()  # of the last look
        self._seq = _former_seq(self._path)
        self._edges: tuple[object, ...] | None = None
        self._due = 0.0
        self._fetched = False  # whether a launcher fetched the tables at the last look
        self._file_due = 0.0
        self._phase = random.uniform(0.1, 1.0)  # of the first rare file: the agents of a job start together

    def look(self, now: float) -> None:
        rows = self.rows = self.rank_monitor.apply(self.ranks.look())
        ranks = tuple((r.rank, r.launch, r.count > 0, r.phase == "done", r.proc in "TXZ") for r in rows)
        edges = (self._alarms(), *ranks)
        fetched = self.feed.fetched
        if now >= self._due or edges != self._edges or (self._fetched and not fetched):
            to_file = not fetched or now >= self._file_due
            self._write(rows, closed=False, to_file=to_file)
            self._edges, self._due = edges, now + EVERY
            if to_file:
                self._file_due, self._phase = now + RARELY * self._phase, 1.0
        self._fetched = fetched
        self._breakdown.look(now, rows)

    def close(self) -> None:
        self._write(self.ranks.look(), closed=True, to_file=True)

    def _write(self, rows: tuple[RankBeat, ...], *, closed: bool, to_file: bool) -> None:
        self._seq += 1
        shown = self._progress.apply(rows)
        data = encode(NodeTable(self._node, self._attempt.name, self._seq, shown, closed, self._alarms()))
        self.feed.offer(self._seq, data)
        if to_file:
            with contextlib.suppress(OSError):  # its silence shows it; the next table is written again
                publish(self._path, data)


class TermGrace:
    """How long the agent stays after TERM, which Slurm sends to all of a job at once.

    The launcher may still order a final checkpoint or end ranks. `over` returns True when the launcher has fallen
    silent, or KillWait is nearly over, and at once if there is no launcher.
    """

    def __init__(self, attempt: AttemptDir, now: float) -> None:
        self._attempt = attempt
        self._until = now + KILL_NEAR
        self._sign, self._signed = self._read(), now

    def over(self, now: float) -> bool:
        sign = self._read()
        if sign != self._sign:
            self._sign, self._signed = sign, now
        return not sign or now - self._signed >= LAUNCHER_SILENT or now >= self._until

    def _read(self) -> str:
        try:
            return self._attempt.launcher_alive.read_text()
        except OSError:
            return ""


def keep(agent: Agent, attempt: AttemptDir) -> bool:
    """Look until the attempt is over or TERM arrives (True), or until nobody needs the agent any more (False).

    The signals must be blocked.
    """
    parent = os.getppid()
    end = AttemptEnd(attempt, time.monotonic())
    grace: TermGrace | None = None
    while os.getppid() == parent:
        now = time.monotonic()
        agent.look(now)
        found = end.look(now, RARELY if agent.feed.fetched else END_EVERY, at_once=agent.feed.over)
        if found is End.VANISHED:
            return False
        if found is End.OUTCOME or (grace is not None and grace.over(now)):
            return True
        came = signal.sigtimedwait(_TOLD, LOOK)
        # After SIGSTOP and SIGCONT Python returns a signal that never came, with an arbitrary number.
        if came is not None and came.si_signo in _TOLD and grace is None:
            grace = TermGrace(attempt, now)
    return False


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="transom agent", description="Write the node's beat table.")
    parser.add_argument("--attempt-dir", required=True, type=Path)
    parser.add_argument("--beats-dir", default="", help="default: where the ranks' wrappers put their records")
    parser.add_argument("--node", default=paths.node_name())
    parser.add_argument("--watch", default="", help="what to look at while ranks train, as JSON; default: the host")
    parser.add_argument("--cpus", default="", help="CPUs that it may use, such as 0-1,64; default: as it is started")
    options = parser.parse_args(argv)
    bind(options.cpus)
    signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD)
    for number in _NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    attempt = AttemptDir(options.attempt_dir.absolute())
    try:
        require_own(RunDir(attempt.path.parents[1]), attempt=attempt.path)
    except NotPermitted as error:
        print(f"transom: {error}", file=sys.stderr)
        return error.exit_code
    try:
        attempt.nodes.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        message = f"transom: run directory {attempt.path} is not visible on node {options.node}: {error.strerror}"
        print(message, file=sys.stderr)
        return BadNodes.exit_code
    try:
        if options.beats_dir:
            beats_dir, held, blind = options.beats_dir, paths.enter(options.beats_dir), ""
        else:
            (beats_dir, held), blind = paths.enter_beats(str(attempt.path), options.node), ""
    except OSError as error:
        if options.beats_dir:
            print(f"transom: no heartbeats from node {options.node}: {error}", file=sys.stderr)
            return TransomError.exit_code
        # without heartbeats, it stays: logs, health and the end of a launch do not need them
        beats_dir, held, blind = paths.NOWHERE, -1, f"this node has no place for heartbeats: {error}"
        _say(f"no heartbeats from node {options.node}, so hangs of its ranks are not detected: {error}")
    paths.sweep(options.node, keep=beats_dir)
    end_former(attempt, options.node)
    alarms = Alarms()
    progress = TrainerProgress()
    agent = Agent(attempt, beats_dir, options.node, lambda: alarms.count, progress=progress)
    monitor = Monitor(attempt, options.node, beats_dir, lambda: agent.rows, alarms, progress)
    if blind:
        monitor.report([Finding(HEARTBEATS, Verdict.SUSPECT, options.node, blind)])
    elif HEARTBEATS in monitor.reported:  # a former agent had no place for them
        monitor.report([Finding(HEARTBEATS, Verdict.PASS, options.node, "heartbeats have a place again")])
    monitor.start()
    what = watched(options.watch)
    watches: list[Watch | Gpus | NcclBehind] = [Watch(options.node, what, monitor.report, monitor.reported)]
    watches.append(NcclBehind(attempt, options.node, lambda: agent.ranks.pids))
    if what.about.gpus:
        from transom_cli.supervise.agent.node_gpus import GpuFile, Gpus  # what judges them takes a moment to import

        watches.append(Gpus(options.node, what, monitor.report, monitor.reported, GpuFile(attempt, options.node)))
    for watch in watches:
        watch.start()
    snapshots = SnapshotDaemon(beats_dir, attempt.path, _say)
    if not blind:  # its socket is in the same place; the ranks start a daemon of their own
        snapshots.start()
        agent.rank_monitor.start(beats_dir)
    server = serve(RunDir(attempt.path.parents[1]), attempt, options.node, beats_dir, monitor, snapshots, agent.feed)
    if keep(agent, attempt):
        agent.close()
        if not blind:
            snapshots.end()
    for watch in watches:
        watch.stop()
    monitor.stop()
    if server is not None:
        agent.feed.end()
        server.stop()
        print(f"transom: the agent of {options.node} answered: {summary(server.counts)}")
    if held >= 0:
        os.close(held)
    paths.discard(beats_dir)  # stays while a rank's wrapper holds it; then the next agent on this node sweeps it
    return 0


def bind(cpus: str) -> None:
    """Bind this process, and those that it starts, to a list of CPUs such as 0-1,64."""
    ends = [part.partition("-") for part in cpus.split(",") if part]
    try:
        if ends:
            os.sched_setaffinity(0, {n for first, _, last in ends for n in range(int(first), int(last or first) + 1)})
    except OSError as error:
        _say(f"the agent is not bound to the CPUs {cpus} (launch.agent_cpus): {error.strerror}")


def _say(line: str) -> None:
    print(f"transom: {line}", file=sys.stderr, flush=True)


def end_former(attempt: AttemptDir, node: str) -> None:
    """End a former agent of this node, which must not write this node's files: it may only have seemed dead.

    It is known by its endpoint (PID and start time) and, in case the node has rebooted, by its command line.
    """
    try:
        said = json.loads(attempt.endpoint(node).read_text())
        former = procfs.read(int(said["pid"]))
        if former is None or former.pid == os.getpid() or former.start != int(said["start"]):
            return
    except (OSError, ValueError, KeyError, TypeError):
        return
    if str(attempt.path) not in procfs.command_line(former.pid):
        return
    procfs.send(former, signal.SIGKILL)
    until = time.monotonic() + FORMER
    while (now := procfs.read(former.pid)) and now.start == former.start and time.monotonic() < until:
        time.sleep(0.02)


def _former_seq(path: Path) -> int:
    """Continue the numbers of an earlier agent, so that readers see the first table as new."""
    try:
        return decode(path.read_bytes()).seq + RESTARTED
    except (OSError, BadTable):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
