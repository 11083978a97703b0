"""What a node shows of its GPUs, as its agent leaves it in the run directory: `nodes/<node>.gpus`. Pure.

    {"schema": 1, "node": "gpu031", "attempt": ..., "expected": 8, "answering": 8, "worst": "gpu3 88 C, heavy", ...}
    {"index": 0, "uuid": ..., "busy": 99, "heat": 61, ...}

A line for the node, then one for each GPU: who looks at a thousand nodes decodes the first line of each, and the others
of the node that is opened. What a device does not tell is left out; it is never 0.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain

SCHEMA = 1
LEVELS = ("", "moderate", "heavy", "throttled", "fault")  # of what is the worst; "": all is well
_OLD = 3.0  # so many times the pace without a newer reading, and it is old


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


_STRICT = json.JSONDecoder(parse_constant=_no_number)  # one for all: making it takes longer than a line


class BadShown(ValueError):
    """This text is not what an agent writes there."""


@dataclass(frozen=True)
class GpuShown:
    """One GPU. Units as in `reading`; None: not told.

    trouble: why NVML gives no answer about it. warmth: light, moderate or heavy by the device's own threshold; "" where
    it tells none. throttle: why its clocks are held down, in words; () where they are not. ecc_*: memory errors since
    its last reset. rows_*, pages_pending: remapped rows and retired pages. xid, xid_at: the last one that was heard.
    """

    index: int
    uuid: str = ""
    name: str = ""
    trouble: str = ""
    busy: int | None = None
    heat: int | None = None
    slowdown: int | None = None
    warmth: str = ""
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    power_limit: float | None = None
    throttle: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    pages_pending: bool | None = None
    xid: int | None = None
    xid_at: float | None = None


@dataclass(frozen=True)
class NodeGpus:
    """A node's GPUs at `wall` (seconds of its own clock); written every `every` seconds at most.

    answering: of the `expected` ones; None: NVML itself gave no answer. worst: what is odd, in words; "": nothing.
    level: how bad that is, of LEVELS. xid, xid_at, xid_gpu: the newest Xid of the node, when, and of which GPU, where
    that is known. xids_since: from when on they have been heard without a gap; None: they are not. lines: the GPUs.
    """

    node: str
    attempt: str
    wall: float
    every: float
    expected: int
    answering: int | None = None
    worst: str = ""
    level: str = ""
    xid: int | None = None
    xid_at: float | None = None
    xid_gpu: int | None = None
    xids_since: float | None = None
    lines: str = ""

    def old(self, age: float) -> bool:
        """Whether a reading that is `age` seconds old no longer tells how things are."""
        return age > _OLD * self.every


def with_gpus(told: NodeGpus, gpus: Iterable[GpuShown]) -> NodeGpus:
    return replace(told, lines="".join(_line(one) for one in gpus))


def gpus_of(told: NodeGpus) -> tuple[GpuShown, ...]:
    """Lines that cannot be read are left out."""
    found = []
    for said in gpu_objects(told):
        with contextlib.suppress(BadRecord):
            found.append(build(GpuShown, said))
    return tuple(found)


def gpu_objects(told: NodeGpus) -> list[dict[str, Any]]:
    """As they were written, for who hands them on: ten times faster."""
    found = []
    for text in told.lines.splitlines():
        with contextlib.suppress(ValueError):  # damaged
            said = _STRICT.decode(text)
            found += [said] if isinstance(said, dict) else []
    return found


def encode(told: NodeGpus) -> str:
    return _line(replace(told, lines=""), schema=SCHEMA) + told.lines


def decode(text: str) -> NodeGpus:
    """Keys of a newer writer are left out. Raises BadShown for anything else than what `encode` makes."""
    head, _, lines = text.partition("\n")
    try:
        said = _STRICT.decode(head)
        if said["schema"] != SCHEMA:
            raise ValueError(f"schema {said['schema']!r}")
        told = build(NodeGpus, {**said, "lines": lines})
    except (ValueError, KeyError, TypeError, BadRecord) as error:
        raise BadShown(f"not what a node shows of its GPUs: {error}") from None
    if told.level not in LEVELS:
        raise BadShown(f"not what a node shows of its GPUs: level {told.level!r}")
    return told


def _line(one: Any, **more: object) -> str:
    return (
        json.dumps(more | {key: value for key, value in plain(one).items() if value is not None and value != ""}) + "\n"
    )
