"""The protocol between a health run and its nodes, and how messages are framed. Pure.

A message is a JSON object. A request has "do"; an answer has "re" (the request's kind) and "node":

    {"do": "read", "about": {...}, "checks": [...]}   {"re": "read", "node": n, "check": c, "reading": {...}}
    {"do": "ping", "n": 1}                            {"re": "ping", "node": n, "n": 1, "wall": ...}
    {"do": "start", "python": [...], "devices": 8}    (starts the node's probe processes)
    {"do": "probe", "request": {...}}                 {"re": "probe", "node": n, "index": i, "answer": {...}}
    {"do": "bye"}

A worker announces itself with {"re": "here"}. "probe" goes to each of the node's probe processes (`probe.rank`), one
per device, numbered from 0.

srun forwards a task's output line by line, but splits lines of more than 1024 bytes and mixes the parts with other
tasks' lines (slurmstepd's MAX_MSG_LEN). So answers are cut into short lines. Other lines, which libraries print, are
ignored.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Message = dict[str, Any]

MARK = "~transom"
PIECE = 700  # characters of a message per line; the rest of the line is its header
MAX_PIECES = 20_000  # per message
_MAX_OPEN = 64  # incomplete messages per node


class Transport(Protocol):
    """Connects a health run to one worker per node. No call blocks longer than its timeout, even if nodes hang."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        """Send to all nodes or to some. A node whose worker has ended does not get it; that is not an error."""

    def receive(self, timeout: float) -> Message | None:
        """Return the next message of any node, or None after `timeout` seconds or if all workers have ended."""

    def gone(self) -> tuple[str, ...]:
        """Return nodes whose worker is known to have ended. Others may have ended as well."""

    def close(self) -> None:
        """End all workers at once."""


def frames(node: str, number: int, message: Message) -> Iterator[str]:
    """Yield a message as lines, without line ends. `number` distinguishes the messages of a node."""
    text = json.dumps(message, separators=(",", ":"))  # ASCII, without line breaks
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    for i, piece in enumerate(pieces):
        yield f"{MARK} {node} {number} {i + 1}/{len(pieces)} {piece}"


class Assembler:
    """Joins lines to messages. Lines of different nodes may interleave; each node's own lines come in order."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, list[str]]] = {}  # pieces by node and number

    def feed(self, line: str) -> Message | None:
        """Return the message that this line completes, with its "node"; otherwise None."""
        parts = line.rstrip("\r\n").split(" ", 4)
        if len(parts) != 5 or parts[0] != MARK:
            return None
        _, node, number, count, piece = parts
        this, _, of = count.partition("/")
        if not this.isdecimal() or not of.isdecimal() or not 1 <= int(this) <= int(of) <= MAX_PIECES:
            return None
        messages = self._open.setdefault(node, {})
        pieces = messages.setdefault(number, [])
        if len(pieces) != int(this) - 1:
            del messages[number]  # a piece was lost, and the message with it
            return None
        pieces.append(piece)
        if int(this) < int(of):
            if len(messages) > _MAX_OPEN:
                del messages[next(iter(messages))]
            return None
        try:
            message = json.loads("".join(messages.pop(number)))
        except ValueError:
            return None
        return {**message, "node": node} if isinstance(message, dict) else None
