"""The state of a node's GPUs as its agent writes it to the run directory: `nodes/<node>.gpus`. Pure.

    {"schema": 1, "node": "gpu031", "attempt": ..., "expected": 8, "answering": 8, "worst": "gpu3 88 C, heavy", ...}
    {"index": 0, "uuid": ..., "busy": 99, "heat": 61, ...}

One line for the node, then one per GPU: a screen of a thousand nodes decodes only first lines. A value that a device
does not report is left out; it is never 0.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain

SCHEMA = 1
LEVELS = ("", "moderate", "heavy", "throttled", "fault")  # of the worst problem; "": all is well
_STALE = 3.0  # a reading is stale after this many intervals without a newer one


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)  # shared: making one takes longer than decoding a line


class BadStatus(ValueError):
    """The text is not a GPU status file."""


@dataclass(frozen=True)
class GpuStatus:
    """One GPU, in the units of `reading`. None: not reported.

    trouble: NVML's message if it cannot access the GPU. warmth: light, moderate or heavy, by the device's own
    threshold. throttle: why its clocks are held down; () if they are not. ecc_*: errors since its last reset. rows_*,
    pages_pending: remapped rows and retired pages. xid, xid_at: the last Xid and when.
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
    """A node's GPUs at `wall` (seconds of its own clock), written at most every `every` seconds.

    answering: how many of `expected` answer; None if NVML itself does not. worst: the worst problem as text. level: one
    of LEVELS. xid, xid_at, xid_gpu: the node's newest Xid, when, and on which GPU if known. xids_since: start of
    gapless listening for Xids; None if there is none now. lines: the GPUs.
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
        """Return whether a reading of this age (seconds) is stale."""
        return age > _STALE * self.every


def with_gpus(status: NodeGpus, gpus: Iterable[GpuStatus]) -> NodeGpus:
    return replace(status, lines="".join(_line(one) for one in gpus))


def gpus_of(status: NodeGpus) -> tuple[GpuStatus, ...]:
    """Return the GPUs, without unreadable lines."""
    found = []
    for data in gpu_objects(status):
        with contextlib.suppress(BadRecord):
            found.append(build(GpuStatus, data))
    return tuple(found)


def gpu_objects(status: NodeGpus) -> list[dict[str, Any]]:
    """Return the GPUs as they were written; ten times faster than `gpus_of`."""
    found = []
    for text in status.lines.splitlines():
        with contextlib.suppress(ValueError):  # damaged
            data = _STRICT.decode(text)
            found += [data] if isinstance(data, dict) else []
    return found


def encode(status: NodeGpus) -> str:
    return _line(replace(status, lines=""), schema=SCHEMA) + status.lines


def decode(text: str) -> NodeGpus:
    """Decode what `encode` returned; a newer writer's keys are ignored.

    Raises:
        BadStatus: the text is something else.
    """
    head, _, lines = text.partition("\n")
    try:
        data = _STRICT.decode(head)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        status = build(NodeGpus, {**data, "lines": lines})
    except (ValueError, KeyError, TypeError, BadRecord) as error:
        raise BadStatus(f"not a GPU status file: {error}") from None
    if status.level not in LEVELS:
        raise BadStatus(f"not a GPU status file: level {status.level!r}")
    return status


def _line(one: Any, **more: object) -> str:
    values = {key: value for key, value in plain(one).items() if value is not None and value != ""}
    return json.dumps(more | values) + "\n"
