"""Is a node's slurmd there? `read_reach` asks it, `judge_reach` is pure.

First a TCP connection to the slurmd itself, since srun takes 10 s to give up on a dead one; then, inside a job of
ours, a step that does nothing. A step needs the controller too: its trouble is UNKNOWN, never the node's fault.
"""

from __future__ import annotations

import enum
import errno
import re
import socket
from dataclasses import dataclass

from transom_cli.errors import TransomError
from transom_cli.health.finding import Finding, Verdict
from transom_cli.slurm.runner import Runner, SlurmTimeout

CHECK = "reach"
# srun's words for a slurmd that does not answer (not for a controller that does not).
_NODE_SILENT = re.compile(
    r"failed on node \S+: (?:communication connection failure|socket timed out|connection (?:refused|timed out)"
    r"|zero bytes were transmitted|unable to contact)|node failure on",
    re.IGNORECASE,
)
_STEP_WAITS = re.compile(r"step creation temporarily disabled|step creation still disabled|retrying", re.IGNORECASE)
_CONTROLLER = re.compile(r"controller|slurmctld|munge|allocation|configuration", re.IGNORECASE)


class Link(enum.Enum):
    """How the TCP connection to the slurmd's port went. LOCAL: it failed on this side (no route, no sockets)."""

    CONNECTED = "connected"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    LOCAL = "local failure"


class Step(enum.Enum):
    """How an empty step on the node went. UNKNOWN: it failed for a reason that is not the node's silence."""

    NOT_TRIED = "not tried"
    RAN = "ran"
    NO_ANSWER = "no answer"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reach:
    node: str
    address: str
    port: int
    link: Link
    step: Step = Step.NOT_TRIED
    detail: str = ""  # the words of the system or of srun


def read_reach(
    node: str,
    address: str,
    port: int,
    job_id: int | None = None,
    *,
    runner: Runner | None = None,
    tcp_timeout: float = 2.0,
    step_timeout: float = 6.0,
) -> Reach:
    """Ask the slurmd at `address`:`port` (`Node.address`, `Node.port`); timeouts in seconds.

    With `job_id`, a running job of ours that holds the node, a connection is followed by an empty step there: a
    slurmd that is stopped or wedged still accepts connections, since the kernel does that for it.
    """
    link, detail = _connect(address or node, port, tcp_timeout)
    if link is not Link.CONNECTED or job_id is None:
        return Reach(node, address, port, link, detail=detail)
    step, detail = _step(runner or Runner(), job_id, node, step_timeout)
    return Reach(node, address, port, link, step, detail)


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


def _step(runner: Runner, job_id: int, node: str, timeout: float) -> tuple[Step, str]:
    argv = ["srun", "--jobid", str(job_id), "--overlap", "-N1", "-n1", "-w", node, "--mem=0", "--gres=none", "true"]
    try:
        runner.run(argv, timeout=timeout)
    except SlurmTimeout as error:
        return _late(runner, error, timeout)
    except TransomError as error:
        return (Step.NO_ANSWER if is_node_silence(error.why) else Step.UNKNOWN), error.why or error.what
    return Step.RAN, ""


def _late(runner: Runner, error: SlurmTimeout, timeout: float) -> tuple[Step, str]:
    """Who kept srun waiting? Only when the controller answers at once, and had made the step, is it the node."""
    try:
        runner.run(["scontrol", "show", "config"], timeout=timeout)
    except TransomError as controller:
        return Step.UNKNOWN, controller.why or controller.what
    waits = _STEP_WAITS.search(error.why)
    return (Step.UNKNOWN if waits else Step.NO_ANSWER), error.why or error.what


def is_node_silence(words: str) -> bool:
    """Do srun's words say that the node's slurmd did not answer, rather than the controller or srun itself?"""
    return bool(_NODE_SILENT.search(words)) and not _CONTROLLER.search(words)


_BY_LINK = {
    Link.REFUSED: (Verdict.FAIL, "no slurmd listens on it"),
    Link.UNREACHABLE: (Verdict.FAIL, "the host cannot be reached"),
    Link.TIMEOUT: (Verdict.FAIL, "the host does not answer"),
    Link.LOCAL: (Verdict.UNKNOWN, "the connection failed on this side"),
}
_BY_STEP = {
    Step.NOT_TRIED: (Verdict.PASS, "slurmd accepts connections"),
    Step.RAN: (Verdict.PASS, "an empty step ran on it"),
    Step.NO_ANSWER: (Verdict.FAIL, "slurmd accepts connections but starts no step"),
    Step.UNKNOWN: (Verdict.UNKNOWN, "an empty step could not be tried"),
}


def judge_reach(reach: Reach) -> Finding:
    """FAIL when the slurmd does not answer; UNKNOWN when the question could not be put to it; else PASS.

    One FAIL is one failed probe: whoever isolates asks twice (see docs/architecture.md, "Blame").
    """
    connected = reach.link is Link.CONNECTED
    verdict, words = _BY_STEP[reach.step] if connected else _BY_LINK[reach.link]
    said = f" ({reach.detail})" if reach.detail else ""
    return Finding(CHECK, verdict, reach.node, f"{reach.address}:{reach.port}: {words}{said}")
