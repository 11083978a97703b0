"""Gigabytes beside the messages of a connection: pieces of 1 MiB, each with a seal.

    bulk    pieces of 1 MiB; the last one of a reply may be shorter. The reply's message states the total size
    piece   its bytes, then 16 bytes: truncated HMAC-SHA256 over an 8-byte number (big-endian) and the bytes' xxh3_128

Key and seed come from the handshake (`wire`). Piece numbers continue over all replies of a connection.

What is protected: a piece that was corrupted, repeated, dropped, reordered, or made without the secret is refused.
What is not: nothing is encrypted. xxh3 is not a cryptographic hash. Its seed is secret and its value never sent, but
there is no proof that an attacker who can read and replace a piece cannot find other bytes with the same hash.
(SHA-256 over all bytes, at 1.7 GB/s, would cost more than the transfer.)

The hash function is the caller's, because this package uses only the standard library.
"""

import hmac
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from transom_cli.rpc import wire
from transom_cli.rpc.stream import Stream

PIECE = 1 << 20
SEAL_BYTES = 16
_NUMBER = struct.Struct(">Q")


class Hash(Protocol):
    """What `xxhash.xxh3_128` returns."""

    def reset(self) -> None: ...
    def update(self, data: memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


MakeHash = Callable[[int], Hash]  # from a 64-bit seed


class Seals:
    """The seals of one connection's pieces, in order. Both sides compute them, and the receiver compares."""

    def __init__(self, key: bytes, make_hash: MakeHash) -> None:
        self._key, self._number = key, 0
        seed = hmac.digest(key, b"seed", "sha256")
        self._hash = make_hash(int.from_bytes(seed[:8], "big"))

    def next(self, parts: Sequence[memoryview]) -> bytes:
        """Return the seal of the next piece, which consists of ``parts``."""
        self._hash.reset()
        for part in parts:
            self._hash.update(part)  # releases the GIL
        signed = _NUMBER.pack(self._number) + self._hash.digest()
        self._number += 1
        return hmac.digest(self._key, signed, "sha256")[:SEAL_BYTES]


def send(stream: Stream, views: Sequence[memoryview], seals: Seals, before: Callable[[], None]) -> None:
    """Send all bytes of ``views`` (flat byte views) without a copy. Calls ``before`` before each piece.

    The receiver refuses bytes that change while they are sent: the seal covers the earlier content.
    Raises what the stream and ``before`` raise.
    """
    for piece in cut(views):
        before()
        stream.send([*piece, memoryview(seals.next(piece))])


def receive(stream: Stream, into: memoryview, seals: Seals, deadline: float) -> None:
    """Fill ``into`` (a flat byte view). Raises BadMac at the first altered piece; ``into`` then holds garbage."""
    seal = bytearray(SEAL_BYTES)
    for start in range(0, len(into), PIECE):
        piece = into[start : start + PIECE]
        stream.receive([piece, memoryview(seal)], deadline)
        if not hmac.compare_digest(seal, seals.next([piece])):
            raise wire.BadMac(f"the bytes from {start} to {start + len(piece)} are not the bytes that were sent")


def cut(views: Sequence[memoryview], size: int = PIECE) -> Iterator[list[memoryview]]:
    """Yield the bytes of ``views`` in groups of ``size`` bytes. The last group may be shorter, and none is empty."""
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
