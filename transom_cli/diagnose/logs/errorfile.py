"""torchelastic's error files: the exception that ended a rank, with its time. Pure.

A rank whose entry point is decorated with `@record` writes {"message": {"message": ..., "extraInfo": {"py_callstack":
..., "timestamp": ...}}} where TORCHELASTIC_ERROR_FILE says; C++ handlers write {"message": ..., "timestamp": ...}
(torch/distributed/elastic/multiprocessing/errors). Of several ranks' files the smallest timestamp is the root.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorFile:
    """message: the exception's last line. at: seconds of the wall clock, None where it has none."""

    message: str
    at: float | None


def parse(text: str) -> ErrorFile | None:
    """None: it is no such file."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict) or "message" not in told:
        return None
    message, more = told["message"], told
    if isinstance(message, dict):
        more = message.get("extraInfo") or message
        message = message.get("message")
    if not isinstance(message, str) or not isinstance(more, dict):
        return None
    return ErrorFile(message, _seconds(more.get("timestamp")))


def _seconds(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None
