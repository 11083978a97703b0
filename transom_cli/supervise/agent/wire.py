"""The bytes between a launcher and a node's agent: who is who, and whole messages in order. Pure: no socket, no clock.

What is protected. Both sides hold the run's secret and neither sends it. Each sends a fresh nonce and proves that it
knows the secret, with an HMAC over its role, both nonces and the identity (which agent of which attempt): so a proof
cannot be sent back to its maker, used again later, or used at another node or attempt. From the same values comes a
key for each direction; every message carries its number and an HMAC under that key, so a message that was changed,
repeated, left out, put elsewhere, or sent back is refused. Bodies are JSON, never anything that runs when it is read.

What is not protected. Nothing is encrypted: whoever can read the network reads the messages, stacks and log lines
among them. Who learns the secret can pose as either side, and no later message is safe from them. A connection can
still be cut or delayed by whoever carries it.

    hello    4 bytes magic, 2 bytes version, 32 bytes nonce; the launcher's first
    proof    32 bytes; the launcher's first, so that a stranger gets nothing from an agent but a random number
    message  4 bytes length of the body, 8 bytes number, body (a JSON object, UTF-8), 32 bytes HMAC; big-endian

A connection that has raised any error of this module must be closed.
"""

from __future__ import annotations

import hmac
import json
import struct

VERSION = 1
SECRET_BYTES = NONCE_BYTES = PROOF_BYTES = 32
LAUNCHER, AGENT = "launcher", "agent"
LIMITS = {LAUNCHER: 64 * 1024, AGENT: 1024 * 1024}  # bytes in the body of what each role sends

_MAGIC = b"trnw"
_HELLO = struct.Struct(">4sH32s")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_AROUND = _LENGTH.size + _NUMBER.size + PROOF_BYTES  # what a message has beside its body
HELLO_BYTES = _HELLO.size


class WireError(Exception):
    """The other side's bytes are refused."""


class Malformed(WireError):
    """Not in the shape that the protocol asks for."""


class Oversized(WireError):
    """A length above the limit. Told by the length alone, before any of the body."""


class Replayed(WireError):
    """A true message at a place that is not its own: repeated, out of order, or after one that was left out."""


class BadMac(WireError):
    """Not made by somebody who knows the secret and speaks in this role, on this connection, for this identity."""


def hello(nonce: bytes) -> bytes:
    """The first bytes of either side. ``nonce`` is 32 random bytes, never used twice."""
    return _HELLO.pack(_MAGIC, VERSION, nonce)


def read_hello(data: bytes) -> bytes:
    """The other side's nonce, from exactly `HELLO_BYTES` bytes."""
    if len(data) != HELLO_BYTES:
        raise Malformed(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
    magic, version, nonce = _HELLO.unpack(data)
    if magic != _MAGIC:
        raise Malformed("not a transom hello")
    if version != VERSION:
        raise Malformed(f"version {version} of the protocol, not {VERSION}")
    return bytes(nonce)


class Party:
    """One side, before it has met the other. ``identity`` names who answers, the same on both sides.

    No agent and no holder of snapshots may have the identity of another: it alone keeps them apart.
    """

    def __init__(self, role: str, secret: bytes, identity: str) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes, not {len(secret)}")
        self._role, self._secret = role, secret
        self._other = AGENT if role == LAUNCHER else LAUNCHER
        self._identity = identity.encode("utf-8", "surrogateescape")

    def meet(self, own: bytes, others: bytes) -> Meeting:
        """One connection, from the two nonces of its hellos."""
        nonces = (own, others) if self._role == LAUNCHER else (others, own)
        return Meeting(
            self._derive("proof", self._role, nonces),
            self._derive("proof", self._other, nonces),
            Sender(self._derive("key", self._role, nonces), LIMITS[self._role]),
            Receiver(self._derive("key", self._other, nonces), LIMITS[self._other]),
            self._derive("bulk", AGENT, nonces),
        )

    def _derive(self, purpose: str, role: str, nonces: tuple[bytes, bytes]) -> bytes:
        parts = (_MAGIC, str(VERSION).encode(), purpose.encode(), role.encode(), self._identity, *nonces)
        # each with its length, so that no two different lists make the same bytes
        return hmac.digest(self._secret, b"".join(_LENGTH.pack(len(part)) + part for part in parts), "sha256")


class Meeting:
    """One connection. ``proof`` is for the other side; use the rest only once `check` has passed.

    ``bulk`` is a key for bytes that the answering side sends beside its messages (`ckpt.memory.bulk`); no agent does.
    """

    def __init__(self, proof: bytes, expected: bytes, sender: Sender, receiver: Receiver, bulk: bytes) -> None:
        self.proof, self._expected = proof, expected
        self.sender, self.receiver, self.bulk = sender, receiver, bulk

    def check(self, proof: bytes) -> None:
        """Accept the other side's proof, or raise BadMac."""
        if not hmac.compare_digest(proof, self._expected):
            raise BadMac("the other side did not prove that it knows the secret")


class Sender:
    """Messages of one direction, numbered from 0."""

    def __init__(self, key: bytes, limit: int) -> None:
        self._key, self._limit, self._number = key, limit, 0

    def frame(self, body: dict[str, object]) -> bytes:
        """The bytes of the next message. Malformed or Oversized when it cannot be sent; then no number is used up."""
        try:
            text = json.dumps(body, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise Malformed(f"not a JSON object: {error}") from error
        if len(text) > self._limit:
            raise Oversized(f"{len(text)} bytes, and {self._limit} are allowed")
        signed = _NUMBER.pack(self._number) + text
        self._number += 1
        return _LENGTH.pack(len(text)) + signed + hmac.digest(self._key, signed, "sha256")


class Receiver:
    """Messages of one direction, from bytes in any pieces.

    Call `next` after each `feed`, until it gives None. Who feeds no more than `wanted` bytes at a time never holds
    more than one message, and never reads any of a body that is too long.
    """

    def __init__(self, key: bytes, limit: int) -> None:
        self._key, self._limit, self._number = key, limit, 0
        self._buffer = bytearray()
        self._failed: WireError | None = None

    @property
    def wanted(self) -> int:
        """Bytes without which `next` has nothing more to say; at least 1 once `next` has given None."""
        if len(self._buffer) < _LENGTH.size:
            return _LENGTH.size - len(self._buffer)
        return max(0, self._whole() - len(self._buffer))

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> dict[str, object] | None:
        """The next message, or None while it is not whole. After an error, that error for ever."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._next()
        except WireError as error:
            self._failed = error
            raise

    def end(self) -> None:
        """The connection has ended: Malformed when it ended within a message."""
        if self._buffer:
            raise Malformed(f"ended {len(self._buffer)} bytes into a message")

    def _whole(self) -> int:
        return _AROUND + int(_LENGTH.unpack_from(self._buffer)[0])

    def _next(self) -> dict[str, object] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        whole = self._whole()
        if whole - _AROUND > self._limit:
            raise Oversized(f"{whole - _AROUND} bytes announced, and {self._limit} are allowed")
        if len(self._buffer) < whole:
            return None
        signed = bytes(self._buffer[_LENGTH.size : whole - PROOF_BYTES])
        mac = bytes(self._buffer[whole - PROOF_BYTES : whole])
        del self._buffer[:whole]
        # The HMAC before the number: only what the other side has truly sent can be out of its place.
        if not hmac.compare_digest(mac, hmac.digest(self._key, signed, "sha256")):
            raise BadMac("a message that the other side has not made, or not for this connection")
        (number,) = _NUMBER.unpack_from(signed)
        if number != self._number:
            raise Replayed(f"message {number} where {self._number} was due")
        self._number += 1
        return _object(signed[_NUMBER.size :])


def _object(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Malformed(f"not a JSON object but {type(found).__name__}")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
