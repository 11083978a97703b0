"""A line of a log as a terminal may get it, and which logs are read first. Pure."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_LIMIT = 300
_LOOKED_AT = 4096  # characters of a line, control sequences and all


def clean(line: str) -> str:
    """A log line that may meet a terminal: no control characters, one line, not endless."""
    seen = line.rpartition("\r")[2][:_LOOKED_AT]
    return _CONTROL.sub("", seen.replace("\t", " ")).strip()[:_LINE_LIMIT]


def log_order(name: str, rank: int | None) -> tuple[bool, int, str]:
    """Sorts the logs of a launch by number, those of `rank` first."""
    return name not in (f"rank-{rank}.log", f"node-{rank}.log"), len(name), name
