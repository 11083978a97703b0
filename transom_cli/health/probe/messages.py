"""Requests to a probe process and its answers, one JSON object per line; and the recording of a whole probe. Pure.

    {"do": "hello"}                              {"says": "hello", "node": ..., "kind": ..., "port": ...}
    {"do": "compute", "id": 1, "seconds": 1.0}   {"says": "computed", "id": 1, "digests": [...], "rates": [...]}
    {"do": "link", "id": 2, "groups": [...]}     {"says": "linked", "id": 2, "sent": [...], "error": ""}
    {"do": "bye"}                                (the process ends)

A process answers hello when its device is ready, which is only prepared on request; without torch it says so unasked.
The process's parent sends "gone" when it has ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain

Device = tuple[str, int]  # node, number of the device


@dataclass(frozen=True)
class Hello:
    """device: "cpu" or "cuda:0". of: number of probe processes on the node. kind: devices of one kind compute the same
    bits. port: of its rendezvous store, on all addresses of its host. password: of that store. addresses: of the host,
    best first; the health run may know a better one. versions: of torch, CUDA, NCCL. error: why it cannot work (no
    torch).
    """

    node: str
    index: int
    device: str = "cpu"
    of: int = 1
    kind: str = ""
    port: int = 0
    password: str = field(default="", repr=False)
    addresses: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Compute:
    """seconds: how long to compute. deadline: seconds after which the process is killed."""

    id: int
    seconds: float
    deadline: float


@dataclass(frozen=True)
class Computed:
    """digests: of each kernel's result bits. rates: FLOP or bytes per second by kernel, and turns of all kernels.

    repeats: how often each kernel ran. differed: kernels whose repetitions gave other bits than the first run, and how
    many did. starved: share of the time in which a CPU's process could have run but got no CPU; rates exclude it.
    """

    node: str
    index: int
    id: int
    digests: tuple[tuple[str, str], ...] = ()
    rates: tuple[tuple[str, float], ...] = ()
    repeats: int = 0
    differed: tuple[tuple[str, int], ...] = ()
    starved: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Group:
    """rails: two nodes form one group per device number; otherwise all devices of all nodes are one group.

    devices: per node. host, port, password: the rendezvous store, on the first node.
    """

    name: str
    nodes: tuple[str, ...]
    devices: int
    host: str
    port: int
    rails: bool
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Link:
    """What each group does: all-reduce `bytes`, or, with rails, send them back and forth between two nodes.

    trips: round trips of a small message. seconds: sending time per direction. deadline: seconds in all.
    """

    id: int
    phase: str
    groups: tuple[Group, ...]
    bytes: int
    trips: int
    seconds: float
    deadline: float


@dataclass(frozen=True)
class Sent:
    """What was sent to the peer `node`. delay: seconds, half of the shortest round trip. rate: bytes per second of the
    best transfer. starved: share of the time in which the sender could have run but got no CPU."""

    node: str
    delay: float
    rate: float
    starved: float = 0.0


@dataclass(frozen=True)
class Linked:
    """peer: the other node of a pair. step: how far it got; "done" at the end, "" if it is in no group.

    seconds, rate: of the fastest all-reduce, and its bus bandwidth in bytes/s. absent: members (node, device) that did
    not arrive in time. garbled: the received bytes differ from those sent. starved: of this process as receiver.
    """

    node: str
    index: int
    id: int
    phase: str
    peer: str = ""
    step: str = ""
    seconds: float = 0.0
    rate: float = 0.0
    sent: Sent | None = None
    absent: tuple[tuple[str, int], ...] = ()
    garbled: bool = False
    starved: float = 0.0
    error: str = ""

    @property
    def well(self) -> bool:
        return self.step == DONE and not self.error and not self.garbled


@dataclass(frozen=True)
class Gone:
    """The process has ended by itself. error: how ("killed by signal 9")."""

    error: str = ""


DONE = "done"
Request = Compute | Link
Answer = Hello | Computed | Linked | Gone
_REQUESTS: dict[str, type[Request]] = {"compute": Compute, "link": Link}
_ANSWERS: dict[str, type[Answer]] = {"hello": Hello, "computed": Computed, "linked": Linked, "gone": Gone}
_SAYS = {cls: says for says, cls in _ANSWERS.items()}
_DO = {cls: do for do, cls in _REQUESTS.items()}
HELLO: dict[str, Any] = {"do": "hello"}
BYE: dict[str, Any] = {"do": "bye"}


def request_to_json(request: Request) -> dict[str, Any]:
    return {"do": _DO[type(request)], **plain(request)}


def request_from_json(data: Mapping[str, Any]) -> Request | None:
    """Return None for hello and bye. Raises BadRecord: the request is unknown or malformed."""
    if data.get("do") in (HELLO["do"], BYE["do"]):
        return None
    return _build(_REQUESTS, data, "do")


def answer_to_json(answer: Answer) -> dict[str, Any]:
    return {"says": _SAYS[type(answer)], **plain(answer)}


def answer_from_json(data: Mapping[str, Any]) -> Answer:
    return _build(_ANSWERS, data, "says")


def _build(classes: Mapping[str, type[Any]], data: Mapping[str, Any], key: str) -> Any:
    cls = classes.get(str(data.get(key)))
    if cls is None:
        raise BadRecord(f"unknown {key} {data.get(key)!r}")
    return build(cls, data)


@dataclass(frozen=True)
class Silent:
    """A process that did not answer. phase: "hello", "compute 1", "all 1", "pairs 1". seconds: waited.

    error: how it ended, if it did. late: it answered after the deadline.
    """

    node: str
    index: int
    phase: str
    seconds: float
    error: str = ""
    late: bool = False


@dataclass(frozen=True)
class Norm:
    """What is usual, learned from `count` values. spread: standard deviation of their logarithms: 0.1 is about 10%."""

    median: float
    spread: float
    count: int


@dataclass(frozen=True)
class ProbeReading:
    """All that a probe saw, in order; it can be recorded.

    looks: measurements of computing; the first of all nodes, later ones of slow nodes and some beside them. alls,
    pairs: link answers, of groups and of pairs. timings: seconds by phase. untried: why phases were skipped.
    """

    nodes: tuple[str, ...]
    hellos: tuple[Hello, ...] = ()
    looks: tuple[tuple[Computed, ...], ...] = ()
    alls: tuple[Linked, ...] = ()
    pairs: tuple[Linked, ...] = ()
    silent: tuple[Silent, ...] = ()
    timings: tuple[tuple[str, float], ...] = ()
    untried: str = ""

    def by_device(self) -> dict[Device, Hello]:
        return {(hello.node, hello.index): hello for hello in self.hellos}
