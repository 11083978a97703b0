"""Is a node's slurmd reachable? `read_reach` asks it; `judge_reach` is pure.

First a TCP connection to slurmd itself, because srun needs 10 s to give up on a dead one; then, inside our own job, an
empty step. A step also needs the controller: trouble with it is UNKNOWN, never the node's fault.

A node that is not reached is accused only after two more questions. Does this host reach another node, which Slurm
calls good, by the same method? If not, the trouble is on this side. Does Slurm, or another node of the job, fail to
reach it too? Without that second opinion it is a suspicion.
"""

import enum
import errno
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from transom_cli.errors import TransomError
from transom_cli.health.finding import Finding, Verdict
from transom_cli.slurm.runner import Runner, SlurmTimeout

CHECK = "reach"
CALLED_DOWN = "Slurm calls it down"
STEP = 6.0  # minimum timeout of an empty step, in seconds
STEP_FACTOR, STEP_MARGIN = 3.0, 3.0  # timeout relative to a step of this job on a good node: factor, plus seconds
SLOWEST = 90.0  # seconds for a step on a good node that shows how long one takes
CONNECT = 2.0
PEERS = 3  # good nodes to try

# srun's messages for a slurmd that does not answer (not for a silent controller).
_NODE_SILENT = re.compile(
    r"failed on node \S+: (?:communication connection failure|socket timed out|connection (?:refused|timed out)"
    r"|zero bytes were transmitted|unable to contact)|node failure on",
    re.IGNORECASE,
)
_STEP_WAITS = re.compile(r"step creation temporarily disabled|step creation still disabled|retrying", re.IGNORECASE)
# The step or its job was ended from outside: by a requeue, a cancellation or a suspension.
_INTERRUPTED = re.compile(
    r"cancelled|force terminated|job step aborted|already completing|revoked|suspended|signal|job .*requeue",
    re.IGNORECASE,
)
_CONTROLLER = re.compile(r"controller|slurmctld|munge|allocation|configuration", re.IGNORECASE)

# Runs on another node of the job: can it connect to its own slurmd (so the method works), to the suspect's, and does a
# step start there? $1, $2: its own address and port; $3, $4: the suspect's; $5: seconds; the rest: srun's command line.
_SECOND_LOOK = r"""
connects() { timeout "$3" bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>/dev/null; }
own=$1 port=$2 other=$3 at=$4 limit=$5
shift 5
connects "$own" "$port" 3 || { echo "second: cannot tell"; exit 0; }
connects "$other" "$at" 3 || { echo "second: does not connect"; exit 0; }
[ $# -gt 0 ] || { echo "second: connects"; exit 0; }
for name in ${!SLURM_*} ${!SLURMD_*} ${!SRUN_*}; do [ "$name" = SLURM_CONF ] || unset "$name"; done
words=$(LC_ALL=C timeout -k 1 "$limit" "$@" 2>&1 >/dev/null)
echo "second: step $? $words"
"""


class Link(enum.Enum):
    """Result of a TCP connection to slurmd's port. LOCAL: it failed on this side (no route, no sockets)."""

    CONNECTED = "connected"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    LOCAL = "local failure"


class Step(enum.Enum):
    """Result of an empty step on the node. UNKNOWN: it failed for another reason than the node's silence."""

    NOT_TRIED = "not tried"
    RAN = "ran"
    NO_ANSWER = "no answer"
    UNKNOWN = "unknown"


class Second(enum.Enum):
    """What a second opinion says of a node that this host does not reach."""

    NOT_ASKED = "not asked"
    BLIND = "blind"  # this host reaches no good node either
    NONE = "none"  # it does, and no other host could be reached
    FAILS = "fails"  # Slurm, or another node, does not reach it either
    REACHES = "reaches"  # another node does


@dataclass(frozen=True)
class Reach:
    node: str
    address: str
    port: int
    link: Link
    step: Step = Step.NOT_TRIED
    detail: str = ""  # the system's or srun's message
    second: Second = Second.NOT_ASKED
    by: str = ""  # who gave the second opinion
    alive: bool = False  # the machine itself refused the connection: only its slurmd does not run

    @property
    def fails(self) -> bool:
        """Whether this host does not reach it, for a reason that is not known to be on this side."""
        gone = (Link.REFUSED, Link.UNREACHABLE, Link.TIMEOUT)
        return self.link in gone or self.step is Step.NO_ANSWER


@dataclass(frozen=True)
class Peer:
    """A node that Slurm calls good. in_job: a step of our job can run on it."""

    node: str
    address: str
    port: int
    in_job: bool = False


class StepTimes:
    """How long an empty step takes on a job's good nodes, in seconds; a site's TaskProlog may take most of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest: dict[int, float] = {}

    def learn(self, job_id: int, seconds: float) -> None:
        with self._lock:
            self._longest[job_id] = max(seconds, self._longest.get(job_id, 0.0))

    def known(self, job_id: int) -> bool:
        return job_id in self._longest

    def limit(self, job_id: int, least: float = STEP) -> float:
        """Return the timeout of a step, in seconds."""
        seconds = self._longest.get(job_id)
        return least if seconds is None else max(least, STEP_FACTOR * seconds + STEP_MARGIN)


def read_reach(
    node: str,
    address: str,
    port: int,
    job_id: int | None = None,
    *,
    runner: Runner | None = None,
    tcp_timeout: float = CONNECT,
    step_timeout: float = STEP,
    times: StepTimes | None = None,
    peers: Callable[[], Sequence[Peer]] = tuple,
    slurm_says: str = "",
    another_says: str = "",
    ask_peers: bool = False,
) -> Reach:
    """Ask the slurmd at `address`:`port` (`Node.address`, `Node.port`); timeouts in seconds.

    With `job_id`, our own running job on the node, an empty step follows the connection: a slurmd that is stopped or
    wedged still accepts connections, because the kernel does that.

    Args:
        times: known durations of this job's steps; a step that takes longer is tried again with more time.
        peers: returns good nodes; called only if this node fails, to see whether this host reaches any node.
        slurm_says: Slurm's statement that the node is gone (such as CALLED_DOWN), or "".
        another_says: who else just failed to reach the node; counts if this host reaches a peer.
        ask_peers: let a peer in the job try to reach the node, if there is no other second opinion.
    """
    times = times or StepTimes()
    asking = _Asking(runner or Runner(), node, address or node, port, job_id, tcp_timeout, step_timeout, times)
    link, detail = _connect(asking.address, port, tcp_timeout)
    alive = link is Link.REFUSED and slurm_says != CALLED_DOWN and not _is_loopback(asking.address)
    reach = Reach(node, address, port, link, detail=detail, alive=alive)
    good: list[Peer] | None = None
    if link is Link.CONNECTED:
        if job_id is None:
            return reach
        step, detail, late = asking.step(node, times.limit(job_id, step_timeout))
        if late and not times.known(job_id):  # learn how long a step of this job takes
            good = [peer for peer in peers() if peer.node != node]
            if not asking.learn(good):
                words = f"an empty step took longer than {step_timeout:g} s, and no other step shows how long one takes"
                return replace(reach, step=Step.UNKNOWN, detail=words)
            if times.limit(job_id, step_timeout) > step_timeout:
                step, detail, _ = asking.step(node, times.limit(job_id, step_timeout))
        reach = replace(reach, step=step, detail=detail)
    if not reach.fails:
        return reach
    if slurm_says:
        return replace(reach, second=Second.FAILS, by=slurm_says)
    good = [peer for peer in peers() if peer.node != node] if good is None else good
    return asking.second(reach, good, another_says, ask_peers)


@dataclass(frozen=True)
class _Asking:
    """Tests of one node, from this host."""

    runner: Runner
    node: str
    address: str
    port: int
    job_id: int | None
    tcp_timeout: float
    step_timeout: float
    times: StepTimes

    def step(self, node: str, timeout: float) -> tuple[Step, str, bool]:
        """Run an empty step on `node`; return its result, a message, and whether it was only late. Learns its time."""
        assert self.job_id is not None
        began = time.monotonic()
        try:
            self.runner.run(step_argv(self.job_id, node), timeout=timeout)
        except SlurmTimeout as error:
            return self._late(error, timeout)
        except TransomError as error:
            return (Step.NO_ANSWER if is_node_silence(error.why) else Step.UNKNOWN), error.why or error.what, False
        self.times.learn(self.job_id, time.monotonic() - began)
        return Step.RAN, "", False

    def _late(self, error: SlurmTimeout, timeout: float) -> tuple[Step, str, bool]:
        """Judge a timeout of srun: the node is at fault only if the controller answers and had created the step."""
        try:
            self.runner.run(["scontrol", "show", "config"], timeout=timeout)
        except TransomError as controller:
            return Step.UNKNOWN, controller.why or controller.what, False
        words = error.why or error.what
        if _STEP_WAITS.search(error.why) or (is_interrupted(error.why) and not is_node_silence(error.why)):
            return Step.UNKNOWN, words, False
        return Step.NO_ANSWER, words, True

    def learn(self, peers: Sequence[Peer]) -> bool:
        """Run a step on a good node of the job to learn how long one takes; return False if none could run."""
        inside = [peer for peer in peers if peer.in_job][:PEERS]
        return any(self.step(peer.node, SLOWEST)[0] is Step.RAN for peer in inside)

    def second(self, reach: Reach, peers: Sequence[Peer], another_says: str, ask_peers: bool) -> Reach:
        """Add a second opinion about a node that this host does not reach, if this host reaches a good node."""
        peers = self._reached(peers[:PEERS])
        inside = [peer for peer in peers if peer.in_job] if self.job_id is not None else []
        if reach.step is Step.NO_ANSWER:  # then steps, not just connections, must work on a peer
            peers = inside = [peer for peer in inside if self.step(peer.node, self._timeout)[0] is Step.RAN]
        if not peers:
            return replace(reach, second=Second.BLIND)
        if another_says:
            return replace(reach, second=Second.FAILS, by=another_says)
        for peer in inside if ask_peers else ():
            sees = self._ask(peer, reach.step is Step.NO_ANSWER)
            if sees is not None:
                return (
                    replace(reach, second=Second.REACHES, by=peer.node)
                    if sees
                    else replace(reach, second=Second.FAILS, by=f"{peer.node} does not reach it either")
                )
        return replace(reach, second=Second.NONE)

    @property
    def _timeout(self) -> float:
        return self.times.limit(self.job_id or 0, self.step_timeout)

    def _reached(self, peers: Sequence[Peer]) -> list[Peer]:
        """Return peers whose slurmd this host can connect to."""
        if not peers:
            return []
        with ThreadPoolExecutor(len(peers), thread_name_prefix="peers") as pool:
            links = pool.map(lambda peer: _connect(peer.address or peer.node, peer.port, self.tcp_timeout)[0], peers)
            return [peer for peer, link in zip(peers, links, strict=True) if link is Link.CONNECTED]

    def _ask(self, peer: Peer, step: bool) -> bool | None:
        """Return whether `peer` reaches the node; None if unknown or if `peer` cannot be reached."""
        assert self.job_id is not None
        limit = self._timeout
        arguments = [peer.address or peer.node, str(peer.port), self.address, str(self.port), f"{limit:g}"]
        nested = step_argv(self.job_id, self.node) if step else []
        argv = [*step_argv(self.job_id, peer.node)[:-1], "bash", "-c", _SECOND_LOOK, "second-look", *arguments, *nested]
        try:
            out = self.runner.run(argv, timeout=limit + 8.0 + (limit if step else 0.0))
        except TransomError:
            return None
        return read_second(next((line for line in out.splitlines() if line.startswith("second: ")), ""))


def read_second(line: str) -> bool | None:
    """Parse another node's answer: whether it reaches the suspect; None if unknown."""
    if line in ("second: connects", "second: does not connect"):
        return line == "second: connects"
    step = re.match(r"second: step (\d+) ?(.*)", line)
    if step is None:
        return None
    code, words = int(step[1]), step[2]
    if code == 0:
        return True
    if is_node_silence(words):
        return False
    late = code in (124, 137) and not (is_interrupted(words) or _STEP_WAITS.search(words) or _CONTROLLER.search(words))
    return False if late else None


def step_argv(job_id: int, node: str) -> list[str]:
    """Return the command line of an empty step on one node, overlapping with other steps."""
    ask = ["--export=ALL", "--overlap", "-N1", "-n1", "-w", node, "--mem=0", "--gres=none"]
    return ["srun", "--jobid", str(job_id), *ask, "true"]


def _connect(address: str, port: int, timeout: float) -> tuple[Link, str]:
    try:
        with socket.create_connection((address, port), timeout=timeout):
            return Link.CONNECTED, ""
    except TimeoutError:
        return Link.TIMEOUT, f"no answer within {timeout:g} s"
    except ConnectionRefusedError as error:
        return Link.REFUSED, str(error)
    except OSError as error:
        reached_out = error.errno in (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNRESET)
        return (Link.UNREACHABLE if reached_out else Link.LOCAL), str(error)


def _is_loopback(address: str) -> bool:
    """Whether it leads to this very host, as in a sandbox: what our own kernel refuses shows no life of a machine."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(address)).is_loopback
    except (OSError, ValueError):
        return False


def is_interrupted(words: str) -> bool:
    """Return whether srun's message says that the step was ended from outside: cancelled, requeued, suspended."""
    return bool(_INTERRUPTED.search(words))


def is_node_silence(words: str) -> bool:
    """Return whether srun's message says that the node's slurmd, not the controller or srun, failed to answer."""
    return bool(_NODE_SILENT.search(words)) and not _CONTROLLER.search(words)


_BY_LINK = {
    Link.REFUSED: "no slurmd listens on it",
    Link.UNREACHABLE: "the host cannot be reached",
    Link.TIMEOUT: "the host does not answer",
    Link.LOCAL: "the connection failed on this side",
}
_BY_STEP = {
    Step.NOT_TRIED: "slurmd accepts connections",
    Step.RAN: "an empty step ran on it",
    Step.NO_ANSWER: "slurmd accepts connections but starts no step",
    Step.UNKNOWN: "an empty step could not be tried",
}
_BY_SECOND = {
    Second.NOT_ASKED: (Verdict.UNKNOWN, "no other host was tried"),
    Second.BLIND: (Verdict.UNKNOWN, "this host reaches no other node either"),
    Second.NONE: (Verdict.SUSPECT, "this host reaches other nodes; no other host could be tried"),
    Second.FAILS: (Verdict.FAIL, "{by}"),
    Second.REACHES: (Verdict.PASS, "but {by} reaches it: only this host does not"),
}


def judge_reach(reach: Reach) -> Finding:
    """Judge reachability.

    FAIL: neither this host nor a second one reaches slurmd. SUSPECT: only this host was tried; or the machine refuses
    the connection, so it lives: an upgrade of slurmd takes a while. UNKNOWN: the test could not be made, or this host
    reaches no node. One FAIL is one failed probe: the core tries twice before it isolates
    (docs/architecture.md, "Blame").
    """
    connected = reach.link is Link.CONNECTED
    words = _BY_STEP[reach.step] if connected else _BY_LINK[reach.link]
    said = f" ({reach.detail})" if reach.detail else ""
    words = f"{reach.address}:{reach.port}: {words}{said}"
    if not reach.fails:
        good = connected and reach.step is not Step.UNKNOWN
        return Finding(CHECK, Verdict.PASS if good else Verdict.UNKNOWN, reach.node, words)
    verdict, second = _BY_SECOND[reach.second]
    if reach.alive and verdict is Verdict.FAIL:
        verdict, second = Verdict.SUSPECT, f"{second}; the machine itself answers (is slurmd being restarted?)"
    return Finding(CHECK, verdict, reach.node, f"{words}; {second.format(by=reach.by)}")
