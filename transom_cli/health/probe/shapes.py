"""What is asked of a probe process, and what it answers: one JSON object a line, both ways. Pure.

    {"do": "hello"}                              {"says": "hello", "node": ..., "kind": ..., "port": ...}
    {"do": "compute", "id": 1, "seconds": 1.0}   {"says": "computed", "id": 1, "digests": [...], "rates": [...]}
    {"do": "link", "id": 2, "groups": [...]}     {"says": "linked", "id": 2, "sent": [...], "error": ""}
    {"do": "bye"}                                (it ends)

Hello is said once the device is ready, which is when it was asked for at the earliest; unasked where there is no torch.
Whoever runs the process says "gone" for it when it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain


@dataclass(frozen=True)
class Hello:
    """device: "cpu" or "cuda:0". of: how many probe processes its node runs. kind: devices of one kind compute the
    same bits. port: of the board that it keeps, on all of its host's addresses. addresses: of the host, best first; the
    asker may know a better one. versions: of torch, CUDA, NCCL. error: why it can do nothing (no torch).
    """

    node: str
    index: int
    device: str = "cpu"
    of: int = 1
    kind: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Compute:
    """seconds: how long to compute. deadline: seconds after which the process is ended, whatever holds it up."""

    id: int
    seconds: float
    deadline: float


@dataclass(frozen=True)
class Computed:
    """digests: the result bits of each kernel, by name. rates: FLOP or bytes a second, by kernel, and turns of all of
    them, of the time in which it could run. repeats: how often each was computed; differed: kernels of which a
    repetition gave other bits than the first, and how many did. starved: share of the time for which a CPU's process
    could have run but got no processor.
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
    """rails: two nodes, in one group for each device number; else one group of all the nodes' devices.

    devices: how many of each node take part. host, port: the board at which they meet, on the first of the nodes.
    """

    name: str
    nodes: tuple[str, ...]
    devices: int
    host: str
    port: int
    rails: bool


@dataclass(frozen=True)
class Link:
    """What the members of each group do: add up `bytes` over all, or, two with rails, send them to and fro.

    trips: round trips of a small message. seconds: how long each direction of a pair may send. deadline: seconds that
    all of it may take.
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
    """To a peer. delay: seconds, half of the shortest round trip. rate: bytes a second of the best transfer. starved:
    share of the time for which the sender could have run but got no processor.
    """

    node: str
    delay: float
    rate: float
    starved: float = 0.0


@dataclass(frozen=True)
class Linked:
    """peer: the other node of a pair. step: how far it came ("" is nowhere: it is in no group), "done" at the end.

    seconds, rate: of an all-reduce, the shortest, and its bus bandwidth in bytes/s. absent: members, node and device,
    that had not come to the meeting when its time was over. garbled: what came from the peer was not what it had sent.
    starved: as `Sent` has it, of this process as the receiver.
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
    """Said for a process that has ended by itself. error: how ("killed by signal 9")."""

    error: str = ""


DONE = "done"
Ask = Compute | Link
Answer = Hello | Computed | Linked | Gone
_ASKS: dict[str, type[Ask]] = {"compute": Compute, "link": Link}
_ANSWERS: dict[str, type[Answer]] = {"hello": Hello, "computed": Computed, "linked": Linked, "gone": Gone}
_SAYS = {cls: says for says, cls in _ANSWERS.items()}
_DO = {cls: do for do, cls in _ASKS.items()}
HELLO: dict[str, Any] = {"do": "hello"}
BYE: dict[str, Any] = {"do": "bye"}


def ask_to_json(ask: Ask) -> dict[str, Any]:
    return {"do": _DO[type(ask)], **plain(ask)}


def ask_from_json(data: Mapping[str, Any]) -> Ask | None:
    """None for what is no work to do (hello, bye); BadRecord for what nobody here can read."""
    if data.get("do") in (HELLO["do"], BYE["do"]):
        return None
    return _built(_ASKS, data, "do")


def answer_to_json(answer: Answer) -> dict[str, Any]:
    return {"says": _SAYS[type(answer)], **plain(answer)}


def answer_from_json(data: Mapping[str, Any]) -> Answer:
    return _built(_ANSWERS, data, "says")


def _built(classes: Mapping[str, type[Any]], data: Mapping[str, Any], key: str) -> Any:
    cls = classes.get(str(data.get(key)))
    if cls is None:
        raise BadRecord(f"unknown {key} {data.get(key)!r}")
    return build(cls, data)
