"""What the node's agent does for the launcher: requests, handlers, and the table `VERBS`."""

import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass

from transom_cli.errors import TransomError
from transom_cli.files import publish_text
from transom_cli.heartbeat import paths, reentry
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.rpc import secret
from transom_cli.rpc.server import ALL, IDLE, Server
from transom_cli.rpc.sockets import free_port, is_free
from transom_cli.rpc.verbs import Call, Empty, Reply, Verb, dispatch
from transom_cli.rpc.wire import CLIENT, LIMITS
from transom_cli.supervise.agent import final_checkpoint, flight_recorder, procfs
from transom_cli.supervise.agent.evidence import choose, take
from transom_cli.supervise.agent.heartbeat_feed import Beats, HeartbeatFeed
from transom_cli.supervise.agent.logs import SECONDS
from transom_cli.supervise.agent.monitor import Monitor
from transom_cli.supervise.agent.processes import find
from transom_cli.supervise.agent.snapshot_daemon import SnapshotDaemon
from transom_cli.supervise.agent.termination import Left, end_launch, kill_ranks
from transom_cli.supervise.agent.warm import mapped, warm

CONNECTIONS = 8  # at once
HANDLERS = 3  # calls answered at once; `beats` waits most of the time
_INCIDENT = re.compile(r"l\d{1,6}")
_DUMPS = 3.0  # seconds for flight recorder dumps; the launcher's timeout for `end` allows for more
_MOST = 1e6  # launches, and seconds


def _in_range(name: str, value: float, most: float = _MOST) -> None:
    if not 0 <= value < most:
        raise ValueError(f"{name} is {value!r}, out of range")


def _incident(name: str) -> None:
    if not _INCIDENT.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an incident")


@dataclass(frozen=True)
class Launch:
    launch: int

    def __post_init__(self) -> None:
        _in_range("launch", self.launch)


@dataclass(frozen=True)
class Logs(Launch):
    seconds: float = SECONDS  # for all logs of this node

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range("seconds", self.seconds)


@dataclass(frozen=True)
class Evidence(Launch):
    incident: str
    seconds: float  # for all ranks of this node

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range("seconds", self.seconds)
        _incident(self.incident)


@dataclass(frozen=True)
class FinalCheckpoint(Launch):
    step: int  # the last one; -1 only asks how far the ranks are

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 <= self.step <= final_checkpoint.LARGEST:
            raise ValueError(f"step is {self.step!r}, neither a step nor -1")


@dataclass(frozen=True)
class Snapshots:
    """Without ``step``: what the node holds. With it: make that step of ``directory`` durable within ``seconds``."""

    step: int | None = None
    launch: int = 0
    directory: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        _in_range("step", self.step or 0, final_checkpoint.LARGEST)
        _in_range("launch", self.launch)
        _in_range("seconds", self.seconds)
        if self.step is not None and not self.directory:
            raise ValueError("directory is missing")


@dataclass(frozen=True)
class Reenter(Launch):
    """Order the ranks of `launch` to enter launch `to`, with this rendezvous."""

    to: int = 0
    address: str = ""
    port: int = 0
    replicas: tuple[int, ...] = ()  # ranks that train there before the others have joined; (): they wait for all

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range("to", self.to)
        _in_range("port", self.port, 65536)
        for rank in self.replicas:
            _in_range("rank", rank)


@dataclass(frozen=True)
class Warm:
    files: tuple[str, ...]

    def __post_init__(self) -> None:
        if any(path[:1] != "/" or "\0" in path for path in self.files):
            raise ValueError("files are not absolute paths")


@dataclass(frozen=True)
class Port:
    port: int = 0  # only say whether it is free; 0: choose one

    def __post_init__(self) -> None:
        _in_range("port", self.port, 65536)


@dataclass(frozen=True)
class End(Launch):
    """``grace``: seconds between TERM and KILL. With ``incident``, its folder gets the flight recorder's dumps."""

    grace: float
    incident: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range("grace", self.grace)
        if self.incident:
            _incident(self.incident)


@dataclass(frozen=True)
class Kill(Launch):
    """Those of these ranks that are on this node."""

    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for rank in self.ranks:
            _in_range("rank", rank)


class Answers:
    """The service behind `VERBS`."""

    def __init__(
        self,
        attempt: AttemptDir,
        node: str,
        beats_dir: str,
        monitor: Monitor,
        snapshots: SnapshotDaemon,
        feed: HeartbeatFeed | None = None,
    ) -> None:
        self._attempt, self._node, self._beats_dir = attempt, node, beats_dir
        self._monitor, self._snapshots, self._feed = monitor, snapshots, feed or HeartbeatFeed()

    def __call__(self, call: Call) -> Reply:
        return dispatch(VERBS, self, call)

    def probe(self, _: Empty) -> Reply:
        return Reply({"node": self._node, "load": list(os.getloadavg()), "health": self._monitor.health()})

    def beats(self, request: Beats) -> Reply:
        return Reply(self._feed.fetch(request))

    def faults(self, _: Empty) -> Reply:
        return Reply({"faults": self._monitor.alarms.faults()})

    def clock(self, _: Empty) -> Reply:
        return Reply({"mono": time.monotonic()})

    def logs(self, request: Logs) -> Reply:
        cause = self._monitor.cause(request.launch, request.seconds)
        hearing = reentry.hearing(self._beats_dir, request.launch)
        elastic = reentry.elastic(self._beats_dir, request.launch, hearing)
        return Reply({**cause, "wall": time.time(), "hearing": hearing, "elastic": elastic})

    def evidence(self, request: Evidence) -> Reply:
        folder = self._attempt.evidence(request.incident)
        entries = take(
            self._attempt.path, request.launch, self._node, folder, request.seconds, beats_dir=self._beats_dir
        )
        return Reply({"ranks": [_rank_line(entry, self._node) for entry in entries]})

    def final_checkpoint(self, request: FinalCheckpoint) -> Reply:
        answer = final_checkpoint.ask(self._beats_dir, request.launch, request.step)
        if not answer["listening"]:
            answer["warned"] = self._ranks_catch_warning(request.launch)
        return Reply(answer)

    def reenter(self, request: Reenter) -> Reply:
        order = {
            paths.LAUNCH: str(request.to), "MASTER_ADDR": request.address, "MASTER_PORT": str(request.port),
            paths.REPLICAS: ",".join(map(str, request.replicas)),
        }  # fmt: skip
        reentry.write_order(self._beats_dir, request.launch, order)
        return Reply()

    def snapshots(self, request: Snapshots) -> Reply:
        if request.step is None:
            return Reply(self._snapshots.newest())
        attempt = f"{self._attempt.name}.{request.launch}"
        return Reply(self._snapshots.rescue(request.directory, request.step, attempt, request.seconds))

    def mapped(self, request: Launch) -> Reply:
        return Reply({"files": mapped(self._attempt.path, request.launch, self._node)})

    def warm(self, request: Warm) -> Reply:
        return Reply(warm(list(request.files)))

    def port(self, request: Port) -> Reply:
        """Choose or test a port for the rendezvous of the next launch, whose rank 0 runs here."""
        return Reply({"free": is_free(request.port)} if request.port else {"port": free_port()})

    def end(self, request: End) -> Reply:
        ended = end_launch(self._attempt.path, request.launch, self._node, request.grace, self._beats_dir)
        dumps: dict[int, str] = {}
        if request.incident:  # no rank writes a dump any more
            folder = self._attempt.evidence(request.incident)
            dumps = flight_recorder.keep(self._beats_dir, request.launch, folder, _DUMPS)
        return Reply(
            {
                "killed": [_process_line(one) for one in ended.killed],
                "survivors": [_process_line(one) for one in ended.survivors],
                "dumps": [f"rank {rank} on {self._node}: {what}" for rank, what in dumps.items()],
            }
        )

    def kill(self, request: Kill) -> Reply:
        ended = kill_ranks(self._attempt.path, request.launch, self._node, request.ranks)
        return Reply({"survivors": [_process_line(one) for one in ended.survivors]})

    def _ranks_catch_warning(self, launch: int) -> bool:
        """Return whether all ranks here catch USR2, Slurm's warning before the time limit: they may save by then."""
        ranks = choose(find(self._attempt.path, launch, self._node))
        return bool(ranks) and all(procfs.catches(member.pid, signal.SIGUSR2) for member in ranks)


VERBS: dict[str, Verb] = {
    "probe": Verb(Answers.probe, Empty),
    "beats": Verb(Answers.beats, Beats),
    "faults": Verb(Answers.faults, Empty),
    "clock": Verb(Answers.clock, Empty),
    "logs": Verb(Answers.logs, Logs),
    "evidence": Verb(Answers.evidence, Evidence),
    "reenter": Verb(Answers.reenter, Reenter),
    "flush": Verb(Answers.final_checkpoint, FinalCheckpoint),
    "memory": Verb(Answers.snapshots, Snapshots, 16 * 1024),
    "mapped": Verb(Answers.mapped, Launch),
    "warm": Verb(Answers.warm, Warm, LIMITS[CLIENT]),
    "port": Verb(Answers.port, Port),
    "end": Verb(Answers.end, End),
    "kill": Verb(Answers.kill, Kill),
}


def serve(
    run: RunDir,
    attempt: AttemptDir,
    node: str,
    beats_dir: str,
    monitor: Monitor,
    snapshots: SnapshotDaemon,
    feed: HeartbeatFeed,
) -> Server | None:
    """Answer this attempt's launcher and publish the port. If that fails, print the reason and return None."""
    try:
        peers = json.loads(attempt.peers.read_text())
        answers = Answers(attempt, node, beats_dir, monitor, snapshots, feed)
        server = Server(
            secret.read(run.secret), f"{attempt.name}/{node}", frozenset(peers["allowed"]), answers,
            connections=CONNECTIONS, handlers=HANDLERS, stall=IDLE,
        )  # fmt: skip
        host = peers["nodes"].get(node) or ALL
        port, own = server.start(host), procfs.read(os.getpid())
        if server.address != host:
            print(f"transom: the agent of {node} listens on all addresses: {host} is none of them", file=sys.stderr)
        where = {"port": port, "pid": os.getpid(), "start": own.start if own else 0}
        publish_text(attempt.endpoint(node), json.dumps(where) + "\n")
    except (OSError, ValueError, TypeError, KeyError, TransomError) as error:
        print(f"transom: the agent of {node} cannot answer the launcher: {error}", file=sys.stderr)
        return None
    return server


def _rank_line(entry: dict[str, object], node: str) -> str:
    rank = "a process" if entry["rank"] is None else f"rank {entry['rank']}"
    where = f", in {entry['top']}" if entry["top"] else ""
    note = f" ({entry['note']})" if entry["note"] else ""
    return f"{rank} on {node}, state {entry['state']}{where}{note}"


def _process_line(left: Left) -> str:
    rank = f" of rank {left.rank}" if left.rank is not None else ""
    return f"{left.kind} {left.comm} (process {left.pid}{rank}, state {left.state})"


def summary(counts: dict[str, int]) -> str:
    """Return a server's counts in words, for the agent's log."""
    return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "nothing"
