"""The first cause in the tail of one rank's log: a category and a line. Pure.

This knows just enough to tell a user's own error (which a restart would repeat) from a peer's death (which made this
rank fail).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Every pattern here meets whatever ranks print. No character may be taken by two neighbouring parts of one: a line on
# which they can be shared out in many ways is never done with, and `re` holds the interpreter meanwhile.

# An exception's last line: "ValueError: bad", "torch.OutOfMemoryError: ..."; behind optional rank labels.
_EXCEPTION = re.compile(
    r"^(?:(?:(?:\s*\[)?[\w ]*(?<=\d)\]?:)+\s*)?"
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*)"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_USAGE, _USAGE_ERROR = "usage: ", re.compile(r"\S+: error: .+")  # argparse and its kind

# A rank that says one of these is a victim of another one's death.
_PEER = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|DistNetworkError|DistBackendError|NCCL error"
    r"|connection refused|gloo|socket timeout|timed out after|watchdog|remote peer"
    r"|process group has not been initialized",
    re.IGNORECASE,
)
_OOM = re.compile(r"out of memory|OutOfMemoryError|Cannot allocate memory|MemoryError", re.IGNORECASE)
_DEVICE = re.compile(
    r"CUDA error|cudaError|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error|HIP error|hipError|uncorrectable ECC|\bXid\b"
)
_STORAGE = re.compile(
    r"No space left on device|Disk quota exceeded|Stale file handle|Read-only file system|Input/output"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_LIMIT = 300
_LOOKED_AT = 4096  # characters of a line, control sequences and all


@dataclass(frozen=True)
class RootLine:
    category: str  # user, peer, usage, oom, device, storage or unknown
    line: str


def clean(line: str) -> str:
    """A log line that may meet a terminal: no control characters, one line, not endless."""
    seen = line.rpartition("\r")[2][:_LOOKED_AT]
    return _CONTROL.sub("", seen.replace("\t", " ")).strip()[:_LINE_LIMIT]


def root_line(text: str) -> RootLine:
    """Read the tail of a log. The last exception is the outermost, the one that ended the process."""
    lines = [clean(x) for x in text.splitlines()]
    found = [m.group(1) for m in map(_EXCEPTION.match, lines) if m]
    if found and _TRACEBACK.search(text):
        return RootLine(_category(found[-1]), found[-1])
    usage = _last_usage_error(lines)
    if usage:
        return RootLine("usage", usage)
    last = next((x for x in reversed(lines) if x), "")
    return RootLine("unknown", last)


def _last_usage_error(lines: Sequence[str]) -> str:
    """Of those that stand below a usage, each the first below its own; "" when there is none."""
    found, below = "", False
    for line in lines:
        if below and _USAGE_ERROR.match(line):
            found, below = line, False
        elif line.startswith(_USAGE):
            below = True
    return found


def first_cause(said: Sequence[tuple[RootLine, str]], rank: int | None) -> tuple[RootLine, str] | None:
    """Of what several logs said, (root line, log's name) each, what tells: None when none said anything.

    The log of the rank that died first (under torchrun: of its node) comes first, then its fellows'. The first with
    an error of its own tells; else the first that says anything, a victim's words included.
    """
    ordered = sorted(said, key=lambda x: log_order(x[1], rank))
    own = [x for x in ordered if x[0].category not in ("unknown", "peer")]
    return next(iter(own or ordered), None)


def log_order(name: str, rank: int | None) -> tuple[bool, int, str]:
    """Sorts the logs of a launch by number, those of `rank` first."""
    return name not in (f"rank-{rank}.log", f"node-{rank}.log"), len(name), name


def exception_in(line: str) -> RootLine | None:
    """The exception that a clean line tells of, if it is the last line of a traceback."""
    found = _EXCEPTION.match(line)
    return RootLine(_category(found[1]), found[1]) if found else None


def usage_error_in(line: str) -> RootLine | None:
    """What argparse and its kind say below their usage."""
    return RootLine("usage", line) if _USAGE_ERROR.match(line) else None


def fault_in(line: str) -> RootLine | None:
    """A line that tells of a fault of device, memory or storage wherever it stands, an exception's or not."""
    for category, pattern in (("oom", _OOM), ("storage", _STORAGE), ("device", _DEVICE)):
        if pattern.search(line):
            return RootLine(category, line)
    return None


def _category(line: str) -> str:
    for category, pattern in (("oom", _OOM), ("storage", _STORAGE), ("peer", _PEER), ("device", _DEVICE)):
        if pattern.search(line):
            return category
    return "user"
