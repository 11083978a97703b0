"""The attempt's agents: a Slurm step beside the training, called over authenticated connections."""

import contextlib
import ipaddress
import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import psutil

from transom_cli.core.clocks import NodeClock, measured
from transom_cli.core.launcher import LaunchEnded
from transom_cli.errors import TransomError
from transom_cli.files import make_private, open_private, publish_text
from transom_cli.heartbeat.paths import ROLE
from transom_cli.layout import AttemptDir
from transom_cli.rpc import secret
from transom_cli.rpc.client import Client, Unreachable
from transom_cli.rpc.sockets import free_port, is_free, normal
from transom_cli.slurm.guards import retry_unanswered
from transom_cli.slurm.port import Connect
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.heartbeat_stream import HeartbeatStream
from transom_cli.supervise.launcher.journal import JournalWriter
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.revive import ANSWER, Revival

END = 3.0  # seconds for the agents to see the outcome and end
CONNECT = 3.0
SLURM_ANSWERS = 600.0  # seconds to wait for Slurm to say where the nodes are
COMING_UP = 10.0  # seconds for an agent to publish its endpoint
GRACE = 2.0  # seconds from TERM to KILL for the ranks of a failed launch
KILLING = 10.0  # seconds more, for processes that die slowly and for a busy node
EVIDENCE = 20.0  # seconds for the stacks of a node's ranks
FLUSH = 3.0  # seconds for an agent to pass on a request
PORT = 2.0  # seconds to choose a port: the launcher's loop waits
LISTED = 1.0  # seconds between two looks for agents that have come up
DESCRIPTORS = 512  # that the launcher needs beside its connections to the agents
CLOCK, CLOCK_CALLS = 1.0, 3  # seconds to read a node's clock; how often it is read
LOGS = 5.0  # seconds to read the logs of all nodes
AT_ONCE = 256  # agents called at the same time
RESOLVING = 64  # names resolved at the same time

Answer = dict[str, object]


def addresses(nodes: tuple[str, ...], connect: Connect, leave: Callable[[], bool]) -> dict[str, str]:
    """Return by node a name that the others can connect to: its own if it resolves, else Slurm's NodeAddr.

    Waits for a Slurm that does not answer: without it no step could start, and no rank could reach another.
    """
    unknown = [node for node, ip in _ips(nodes).items() if not ip]
    known = {node: node for node in nodes}
    if unknown:
        slurm, deadline = connect(30.0), time.monotonic() + SLURM_ANSWERS
        clock = lambda: deadline if leave() else time.monotonic()  # noqa: E731
        with contextlib.suppress(TransomError):  # an unreachable agent is reported when it is called
            answer = retry_unanswered(lambda: slurm.nodes(unknown), deadline, time.sleep, clock, cap=2.0)
            known.update((found.name, found.address or found.name) for found in answer)
    return known


def hearing(answers: list[Answer]) -> tuple[tuple[int, ...], bool]:
    """From the answers to `Agents.logs`: ranks that would enter their training again; whether also without others."""
    found = [answer.get("hearing") for answer in answers]
    ranks = tuple(sorted(rank for ranks in found if isinstance(ranks, list) for rank in ranks))
    return ranks, all(answer.get("elastic") is True for answer in answers if answer.get("hearing"))


class Agents:
    def __init__(
        self,
        allocation: Allocation,
        options: LaunchOptions,
        attempt: AttemptDir,
        journal: JournalWriter,
        connect: Connect,
        leave: Callable[[], bool] = lambda: False,
    ) -> None:
        self._allocation = allocation
        self._options = options
        self._attempt = attempt
        self._step: subprocess.Popen[bytes] | None = None
        self.addresses = addresses(allocation.nodes, connect, leave)
        found = _ips(tuple(set(self.addresses.values())))
        self._ips = {node: found[address] for node, address in self.addresses.items()}
        self._stream: HeartbeatStream | None = None
        self._listed, self._up = float("-inf"), frozenset[str]()  # files of nodes, and when they were listed
        self._revival = Revival(allocation, options, attempt, self._lives, journal, connect)

    def start(self) -> None:
        """Write the run's secret, the addresses that may call agents and those where agents listen. Start their step.

        The step is started even if that raises OSError: the agents still publish heartbeats.
        """
        try:
            secret.make(self._options.run.secret)
            peers = {"allowed": sorted(self._peers()), "nodes": self._ips}
            publish_text(self._attempt.peers, json.dumps(peers) + "\n")
            open_private(self._attempt.agents_log, "ab").close()  # srun would create it for nobody else, also if shared
        finally:
            argv = launchplan.agent_argv(self._allocation, self._options, self._attempt)
            self._step = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, umask=0o077, env={**os.environ, ROLE: "agent"}
            )

    def add(self, nodes: tuple[str, ...], connect: Connect, leave: Callable[[], bool]) -> None:
        """Start agents on nodes that another job has brought (`Allocation.borrowed`). May take seconds.

        Raises:
            OSError, TransomError: they cannot be started.
        """
        self.addresses.update(addresses(nodes, connect, leave))
        found = _ips(tuple({self.addresses[node] for node in nodes}))
        self._ips.update((node, found[self.addresses[node]]) for node in nodes)
        peers = {"allowed": sorted(self._peers()), "nodes": self._ips}
        publish_text(self._attempt.peers, json.dumps(peers) + "\n")
        for node in nodes:
            self._attempt.endpoint(node).unlink(missing_ok=True)  # of an earlier top-up job
            self._revival.begin(node)

    def _peers(self) -> set[str]:
        """Addresses of the job's nodes, and all of this node, which may reach the others by any of its interfaces.

        Loopback only if a node's name resolves to it: then its agent listens there.
        """
        own = {a.address.partition("%")[0] for known in psutil.net_if_addrs().values() for a in known}
        loopback = any(_is_ip(ip) and normal(ip).is_loopback for ip in self._ips.values())
        return {a for a in (*own, *self._ips.values()) if _is_ip(a) and (loopback or not normal(a).is_loopback)}

    def fetch_heartbeats(self) -> HeartbeatStream | None:
        """Begin to fetch the tables of all nodes. None: the agents cannot be called."""
        try:
            key = secret.read(self._options.run.secret)
        except (OSError, TransomError):
            return None
        nodes = self._allocation.nodes
        self._stream = HeartbeatStream(nodes, self._attempt.name, key, self._where, most=_descriptors(len(nodes)))
        return self._stream

    def _where(self, node: str) -> tuple[str, int] | None:
        """Where the node's agent listens; None if it is not up, or cannot be called. One listing a second for all."""
        now = time.monotonic()
        if now - self._listed >= LISTED:
            self._listed = now
            with contextlib.suppress(OSError):
                self._up = frozenset(os.listdir(self._attempt.nodes))  # noqa: PTH208
        if not self._ips[node] or self._attempt.endpoint(node).name not in self._up:
            return None
        try:
            return self._ips[node], self._port(node, 0.0)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def stop(self, *, at_once: bool) -> None:
        """Wait for agents to end, which they do once the outcome is written; `at_once` if Slurm is ending the job."""
        if self._stream is not None:
            self._stream.stop(0.0 if at_once else END)
        if self._step is None:
            return
        try:
            self._step.wait(0 if at_once else END)
        except subprocess.TimeoutExpired:
            self._step.kill()
        self._revival.stop(at_once=at_once, patience=END)

    def revive(self, late: tuple[str, ...]) -> None:
        """Restart dead agents among those of `late`, nodes whose tables are late. Returns at once."""
        self._revival.look(late)

    def revive_returned(self, node: str) -> None:
        """Start the agent of a node that has come back, unless it answers. May take seconds."""
        if not self._lives(node):
            self._revival.begin(node)

    def resumed(self) -> None:
        """This process was stopped for a while, and the agents with it."""
        self._revival.resumed()

    def dead(self, node: str) -> bool:
        """Whether the node's slurmd does not answer either, as far as is known."""
        return self._revival.dead(node)

    def evidence(self, launch: int, incident: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Collect evidence of every rank into the attempt's evidence folder. Returns one line per rank."""
        folder = self._attempt.evidence(incident)
        with contextlib.suppress(OSError):  # a full disk: the agents report it
            make_private(folder)
        about = {"launch": launch, "incident": incident, "seconds": EVIDENCE}
        answers = self._ask_all(nodes, "evidence", EVIDENCE + 2.0, about)
        lines: list[str] = []
        for node, answer in answers.items():
            found = answer.get("ranks")
            if isinstance(answer.get("error"), str):
                lines.append(f"{node}: no evidence: {answer['error']}")
            lines += [str(line) for line in found] if isinstance(found, list) else []
        return tuple(lines)

    def end(self, launch: int, nodes: tuple[str, ...], grace: float = GRACE, incident: str = "") -> LaunchEnded:
        """End every process of the launch on these nodes. The answer names nodes where that failed or is unknown.

        Flight recorder dumps are kept with the incident, if there is one, and listed as evidence.
        """
        unheard, survivors, dumps, clocks = [], [], [], []
        wall = time.time() - time.monotonic()
        about: Answer = {"launch": launch, "grace": grace, "incident": incident}
        for node, answer in self._ask_all(nodes, "end", grace + KILLING, about).items():
            if not answer.get("ok"):
                unheard.append(node)
            if isinstance(clock := answer.get("clock"), NodeClock):
                clocks.append(replace(clock, ahead=clock.ahead - wall))
            left, kept = answer.get("survivors"), answer.get("dumps")
            survivors += [(node, str(what)) for what in left] if isinstance(left, list) else []
            dumps += [str(line) for line in kept] if isinstance(kept, list) else []
        return LaunchEnded(
            0.0, launch, unheard=tuple(unheard), survivors=tuple(survivors), evidence=tuple(dumps), clocks=tuple(clocks)
        )

    def kill(self, launch: int, nodes: tuple[str, ...], ranks: tuple[int, ...]) -> LaunchEnded:
        """Kill these ranks, which are on these nodes. The answer names nodes where that failed or is unknown."""
        answers = self._ask_all(nodes, "kill", KILLING, {"launch": launch, "ranks": list(ranks)})
        unheard = tuple(node for node, answer in answers.items() if not answer.get("ok"))
        left = {node: found for node, answer in answers.items() if isinstance(found := answer.get("survivors"), list)}
        survivors = tuple((node, str(what)) for node, found in left.items() for what in found)
        return LaunchEnded(0.0, launch, unheard=unheard, survivors=survivors)

    def flush(self, launch: int, nodes: tuple[str, ...], step: int) -> dict[str, Answer]:
        """Request a save at `step` from the ranks; -1 only asks how far they are."""
        return self._ask_all(nodes, "flush", FLUSH, {"launch": launch, "step": step})

    def reenter(
        self, launch: int, to: int, nodes: tuple[str, ...], address: str, port: int, replicas: tuple[int, ...]
    ) -> None:
        """Order the ranks of `launch` to enter launch `to`. Those that do not are missed there."""
        order: Answer = {"launch": launch, "to": to, "address": address, "port": port, "replicas": list(replicas)}
        self._ask_all(nodes, "reenter", FLUSH, order)

    def memory(self, nodes: tuple[str, ...], seconds: float, about: Answer) -> dict[str, Answer]:
        """List what the nodes hold in memory; or, with a step in `about`, have it written. Starts no agent."""
        with ThreadPoolExecutor(min(len(nodes), AT_ONCE), thread_name_prefix="agents") as pool:
            answers = pool.map(lambda node: self._ask_once(node, "memory", seconds, about, 0.0), nodes)
            return dict(zip(nodes, answers, strict=True))

    def logs(self, launch: int, nodes: tuple[str, ...]) -> list[Answer]:
        """Read the cause from the logs of each node that answers in time (see `agent.logs.read_cause`)."""
        about: Answer = {"launch": launch, "seconds": (LOGS - 2.0) / -(-len(nodes) // AT_ONCE)}
        pool = ThreadPoolExecutor(min(len(nodes), AT_ONCE), thread_name_prefix="agents")
        asked = [pool.submit(self._logs_of, node, about) for node in nodes]
        done, _ = wait(asked, LOGS)
        pool.shutdown(wait=False, cancel_futures=True)
        return [answer for one in asked if one in done and (answer := one.result()).get("ok")]

    def _logs_of(self, node: str, about: Answer) -> Answer:
        """Return a node's answer. behind: by how many seconds its wall clock is behind this one, on which times of its
        log lines depend."""
        answer = self._ask_once(node, "logs", LOGS, about, 0.0)
        wall = answer.get("wall")
        return {**answer, "behind": time.time() - wall} if isinstance(wall, float) else answer

    def free_port(self, node: str) -> int:
        """Choose a random port that is free on `node`. Without an answer from there, it is free on this node at least.

        Raises OSError if this node has none.
        """
        answer = {} if node == self._allocation.host else self._ask_once(node, "port", PORT, {}, 0.0)
        port = answer.get("port")
        return port if isinstance(port, int) else free_port()

    def holds_port(self, node: str, port: int) -> bool:
        """Whether a program uses the port on `node`, where no rank runs now. False if that is unknown."""
        if node == self._allocation.host:
            return not is_free(port)
        return self._ask_once(node, "port", PORT, {"port": port}, 0.0).get("free") is False

    def ask(self, node: str, name: str, timeout: float, **arguments: object) -> Answer:
        """Call one agent. Returns its answer with "ok" set, or an "error"."""
        return self._ask(node, name, timeout, arguments)

    def _ask_all(self, nodes: tuple[str, ...], name: str, timeout: float, about: Answer) -> dict[str, Answer]:
        with ThreadPoolExecutor(min(len(nodes), AT_ONCE), thread_name_prefix="agents") as pool:
            answers = pool.map(lambda node: self._ask(node, name, timeout, about), nodes)
            return dict(zip(nodes, answers, strict=True))

    def _ask(self, node: str, name: str, timeout: float, arguments: Answer) -> Answer:
        """Call an agent; if nothing listens there, restart it and call the new one. A call may be made twice."""
        answer = self._ask_once(node, name, timeout, arguments, COMING_UP)
        if answer.get("broken"):  # if it has died, nothing listens there now
            answer = self._ask_once(node, name, timeout, arguments, 0.0)
        if answer.get("gone"):
            self._revival.at_once(node)
            answer = self._ask_once(node, name, timeout, arguments, 0.0)
        return answer

    def _lives(self, node: str) -> bool:
        return bool(self._ask_once(node, "probe", ANSWER, {}, 0.0).get("ok"))

    def _ask_once(self, node: str, name: str, timeout: float, arguments: Answer, patience: float) -> Answer:
        """patience: seconds for an agent to publish its endpoint. "gone" in the answer: nothing listens there;
        "broken": the connection broke during the call."""
        try:
            port = self._port(node, patience)
            key = secret.read(self._options.run.secret)
            identity = f"{self._attempt.name}/{node}"
            with Client.connect(self._ips[node], port, key, identity, min(CONNECT, timeout), kind="agent") as line:
                answer = {"ok": True, **line.call(name, timeout, **arguments)}
                return {**answer, "clock": _clock(line, node)} if name == "end" else answer
        except TransomError as error:
            gone = isinstance(error, Unreachable) and isinstance(error.__cause__, ConnectionRefusedError)
            broken = not gone and isinstance(error.__cause__, ConnectionError)
            words = f"{error.what}: {error.why}" if error.why else error.what
            return {"error": words, "gone": gone, "broken": broken}
        except (OSError, ValueError, KeyError, TypeError) as error:
            return {"error": f"its endpoint cannot be read: {error}"}

    def _port(self, node: str, patience: float) -> int:
        """The agent's port. Ranks can fail before their agent has started, so wait for it."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return int(json.loads(self._attempt.endpoint(node).read_text())["port"])
            except FileNotFoundError:
                if time.monotonic() >= deadline or (self._step is not None and self._step.poll() is not None):
                    raise
            time.sleep(0.1)


def _descriptors(wanted: int) -> int:
    """Raise the soft limit of open files for `wanted` connections. Returns how many are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + DESCRIPTORS
    if 0 <= soft < need:
        with contextlib.suppress(OSError, ValueError):
            most = need if hard < 0 else min(need, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return wanted if soft < 0 else max(0, min(wanted, soft - DESCRIPTORS))


def _clock(line: Client, node: str) -> NodeClock | None:
    """Measure the node's monotonic clock against this one. None if the agent does not say. The best of a few calls."""
    found = []
    with contextlib.suppress(TransomError, KeyError, TypeError, ValueError):
        for _ in range(CLOCK_CALLS):
            asked = time.monotonic()
            answer = line.call("clock", CLOCK)
            found.append(measured(node, asked, float(str(answer["mono"])), time.monotonic()))
    return min(found, key=lambda clock: clock.error, default=None)


def _ips(names: Sequence[str]) -> dict[str, str]:
    """Resolve names in parallel: with a name server that takes 50 ms, thousands of nodes would take minutes."""
    with ThreadPoolExecutor(max(1, min(len(names), RESOLVING)), thread_name_prefix="names") as pool:
        return dict(zip(names, pool.map(_ip, names), strict=True))


def _ip(name: str) -> str:
    """Return an empty string if unknown: then this node's agent cannot be called, and nothing is relaunched there."""
    for family in (socket.AF_INET, socket.AF_UNSPEC):  # the agents listen on IPv4
        try:
            return str(socket.getaddrinfo(name, None, family)[0][4][0])
        except OSError:
            continue
    return ""


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False  # a hardware address
    return True
