"""Bytes by the gigabyte beside the messages of a line: pieces, each with its seal.

    bulk    pieces of 1 MiB, the last of an answer may be shorter; how many bytes in all, the answer's message has said
    piece   its bytes, then 16 bytes: HMAC-SHA256, cut short, over 8 bytes number (big-endian) and the bytes' xxh3_128

Key and seed come from the connection's handshake (`agent.wire`); numbers go on over all answers of a connection.

What is protected. A piece that was changed by accident, repeated, left out, put elsewhere, or made by somebody who does
not know the secret is refused. What is not. Nothing is encrypted. xxh3 is no cryptographic hash: its seed is secret
here, and its value never seen, but nobody vouches that who reads a piece on its way and may replace it cannot find
other bytes with the same value. (SHA-256 over all bytes, at 1.7 GB/s, would cost more than the sending.)
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Iterator, Sequence

import xxhash

from transom_cli.ckpt.snapshot.stream import Stream
from transom_cli.supervise.agent import wire

PIECE = 1 << 20
SEAL_BYTES = 16
WHOLE = PIECE + SEAL_BYTES
_NUMBER = struct.Struct(">Q")


class Seals:
    """The seals of one connection's pieces, in their order; both sides make them, and one of them compares."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0
        seed = hmac.digest(key, b"seed", "sha256")
        self._hash = xxhash.xxh3_128(seed=int.from_bytes(seed[:8], "big"))

    def next(self, parts: Sequence[memoryview]) -> bytes:
        """The seal of the next piece, which is all of ``parts`` one after the other."""
        self._hash.reset()
        for part in parts:
            self._hash.update(part)  # lets the GIL go
        signed = _NUMBER.pack(self._number) + self._hash.digest()
        self._number += 1
        return hmac.digest(self._key, signed, "sha256")[:SEAL_BYTES]


def send(stream: Stream, views: Sequence[memoryview], seals: Seals, slice: int, pace: Callable[[int], None]) -> None:
    """All bytes of ``views`` (flat, of bytes), without a copy. ``pace`` is asked before each ``slice`` or less goes.

    Bytes that change while they are sent are refused on the other side: the seal is of what they were before.
    Raises what the stream and ``pace`` raise.
    """
    for piece in cut(views, PIECE):
        for parts in cut([*piece, memoryview(seals.next(piece))], slice):
            pace(sum(map(len, parts)))
            stream.send(parts)


def receive(stream: Stream, into: memoryview, seals: Seals, deadline: float) -> None:
    """Fill ``into`` (flat, of bytes). BadMac at the first piece that is not what was sent; what came stays there."""
    seal = bytearray(SEAL_BYTES)
    for start in range(0, len(into), PIECE):
        piece = into[start : start + PIECE]
        stream.receive([piece, memoryview(seal)], deadline)
        if not hmac.compare_digest(seal, seals.next([piece])):
            raise wire.BadMac(f"the bytes from {start} to {start + len(piece)} are not what was sent")


def cut(views: Sequence[memoryview], size: int) -> Iterator[list[memoryview]]:
    """The bytes of ``views`` in groups of ``size`` bytes, the last one shorter; no group is empty."""
    group: list[memoryview] = []
    room = size
    for view in views:
        while view:
            part, view = view[:room], view[room:]
            group.append(part)
            room -= len(part)
            if not room:
                yield group
                group, room = [], size
    if group:
        yield group
