"""What is new in a log that grows: `watch(state, lines) -> (state, findings)`. Pure.

The same rules as `rootline`'s, line by line. An exception counts only below a traceback, a usage error only below its
usage; faults of device, memory and storage count wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.core.rootline import RootLine, clean, exception_in, fault_in, usage_error_in

BELOW = 400  # lines below a traceback's head in which its exception is looked for
BELOW_USAGE = 40
_LABEL = re.compile(r"\[rank(\d{1,9})\]:")

# One of these is in every line that counts: a chatty rank's megabytes are passed over without being taken apart.
MARKS = tuple(
    mark.encode()
    for mark in (
        "Traceback (most recent",
        "usage: ",
        "of memory",
        "OutOfMemory",
        "Cannot allocate",
        "cannot allocate",
        "MemoryError",
        "CUDA error",
        "cudaError",
        "CUBLAS_STATUS",
        "CUDNN_STATUS",
        "cuDNN error",
        "HIP error",
        "hipError",
        "uncorrectable ECC",
        "Xid",
        "No space left",
        "Disk quota",
        "Stale file",
        "Read-only file",
        "Input/output",
    )
)


@dataclass(frozen=True)
class LogState:
    """How many more lines may belong to a traceback, or to a usage, that has begun."""

    tracing: int = 0
    usage: int = 0

    @property
    def idle(self) -> bool:
        """Nothing has begun: lines without any of `MARKS` change nothing."""
        return self.tracing == self.usage == 0


@dataclass(frozen=True)
class Edge:
    """rank: the one that the line names, as torch labels an exception's lines; None: the log's own, if it is one's."""

    told: RootLine
    rank: int | None = None


def watch(state: LogState, lines: Iterable[str]) -> tuple[LogState, tuple[Edge, ...]]:
    """`lines` as they stand in the log, whole ones. A line is found once, by the first rule that knows it."""
    tracing, usage = state.tracing, state.usage
    found: list[Edge] = []
    for raw in lines:
        line = clean(raw)
        tracing, usage = max(0, tracing - 1), max(0, usage - 1)
        if "Traceback (most recent call last)" in line:
            tracing = BELOW
            continue
        if line.startswith("usage: "):
            usage = BELOW_USAGE
            continue
        told = (exception_in(line) if tracing else None) or fault_in(line) or (usage_error_in(line) if usage else None)
        if told is not None:
            usage = 0 if told.category == "usage" else usage
            label = _LABEL.match(line)
            found.append(Edge(told, int(label[1]) if label else None))
    return LogState(tracing, usage), tuple(found)
