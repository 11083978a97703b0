"""All heartbeat tables of an attempt in one file, `heartbeats`, from the launcher. Pure.

For each table: its bytes, how long ago the launcher got it, and per rank how long ago the rank last gave a sign of
life, in seconds. So a reader that sees the file seldom knows the times as exactly as the launcher.

Little-endian, with a CRC-32 over everything before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from transom_cli.heartbeat.table import BadTable, NodeTable, decode

_HEAD = struct.Struct("<4sQI")  # magic, number, tables
_PART = struct.Struct("<fIH")  # age, bytes of the table, ranks
_CRC = struct.Struct("<I")
_MAGIC = b"TBA1"


class Part(NamedTuple):
    """One table. still: seconds, by its rows."""

    data: bytes
    age: float
    still: tuple[float, ...]


class Heard(NamedTuple):
    table: NodeTable
    age: float
    still: tuple[float, ...]


def encode_all(number: int, parts: Iterable[Part]) -> bytes:
    """number: grows with every publication."""
    pieces: list[bytes] = []
    count = 0
    for part in parts:
        count += 1
        pieces += (_PART.pack(part.age, len(part.data), len(part.still)), part.data)
        pieces.append(struct.pack(f"<{len(part.still)}f", *part.still))
    body = b"".join((_HEAD.pack(_MAGIC, number, count), *pieces))
    return body + _CRC.pack(crc32(body))


def decode_all(data: bytes) -> tuple[int, tuple[Heard, ...]]:
    """Return the number and the tables. Raises BadTable for anything that `encode_all` does not make."""
    body = data[: -_CRC.size]
    if len(data) < _HEAD.size + _CRC.size or _CRC.unpack(data[-_CRC.size :])[0] != crc32(body):
        raise BadTable("not a whole file of heartbeat tables")
    magic, number, count = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise BadTable("not a file of heartbeat tables of this version")
    found, at = [], _HEAD.size
    try:
        for _ in range(count):
            age, size, ranks = _PART.unpack_from(body, at)
            at += _PART.size
            still = struct.unpack_from(f"<{ranks}f", body, at + size)
            found.append(Heard(decode(body[at : at + size]), age, still))
            at += size + 4 * ranks
    except struct.error as error:
        raise BadTable(f"a file of heartbeat tables that ends early: {error}") from None
    return number, tuple(found)
