"""Messages of many nodes over one pipe: each is cut into short lines, and put together again. Pure.

srun hands on a task's output line by line, but cuts lines of more than 1024 bytes, and then mixes them with those of
other tasks (slurmstepd's MAX_MSG_LEN). What a library prints between the lines is no message, and is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MARK = "~transom"
PIECE = 700  # characters of a message on a line; the rest is for the head
MOST = 20_000  # pieces of one message, at most
_OPEN = 64  # messages of one node that may be incomplete at a time


def frames(node: str, number: int, message: dict[str, Any]) -> Iterator[str]:
    """Lines without their ends, in order. `number` tells the messages of a node apart."""
    text = json.dumps(message, separators=(",", ":"))  # ASCII, and no line break
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    for i, piece in enumerate(pieces):
        yield f"{MARK} {node} {number} {i + 1}/{len(pieces)} {piece}"


class Assembler:
    """Takes lines of any nodes in any order, as long as each node's own come in order."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, list[str]]] = {}  # by node and number

    def feed(self, line: str) -> dict[str, Any] | None:
        """The message that this line completes, with its "node"; None otherwise."""
        parts = line.rstrip("\r\n").split(" ", 4)
        if len(parts) != 5 or parts[0] != MARK:
            return None
        _, node, number, count, piece = parts
        this, _, of = count.partition("/")
        if not this.isdecimal() or not of.isdecimal() or not 1 <= int(this) <= int(of) <= MOST:
            return None
        mine = self._open.setdefault(node, {})
        pieces = mine.setdefault(number, [])
        if len(pieces) != int(this) - 1:
            del mine[number]  # one was lost: so is the message
            return None
        pieces.append(piece)
        if int(this) < int(of):
            if len(mine) > _OPEN:
                del mine[next(iter(mine))]
            return None
        text = "".join(mine.pop(number))
        try:
            message = json.loads(text)
        except ValueError:
            return None
        return {**message, "node": node} if isinstance(message, dict) else None
