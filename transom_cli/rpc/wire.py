"""Handshake and framing of a TCP connection: mutual authentication, and complete messages in order. Pure.

What is protected. Both sides hold the run's secret and neither sends it. Each side sends a fresh nonce and proves that
it knows the secret with an HMAC over its role, both nonces and the identity of the server (its node and attempt). So a
proof cannot be reflected, replayed, or used for another node or attempt. The same values yield one key per direction.
Every message carries its number and an HMAC under that key, so an altered, repeated, dropped, reordered or reflected
message is refused. Bodies are JSON: reading one executes nothing.

What is not protected. Nothing is encrypted: anyone who can read the network traffic can read the messages, including
stack traces and log lines. Anyone who learns the secret can impersonate either side. An attacker on the network path
can still cut or delay a connection.

    hello    4 bytes magic, 2 bytes version, 32 bytes nonce; the client sends first
    proof    32 bytes; the client sends first, so that a stranger gets only a random number from a server
    message  4 bytes length of the body, 8 bytes number, body (a JSON object, UTF-8), 32 bytes HMAC; big-endian

Close a connection after any error of this module.
"""

from __future__ import annotations

import hmac
import json
import struct

VERSION = 2
SECRET_BYTES = NONCE_BYTES = PROOF_BYTES = 32
CLIENT, SERVER = "client", "server"
LIMITS = {CLIENT: 64 * 1024, SERVER: 1024 * 1024}  # bytes in the body of a message, by the role that sends it

_MAGIC = b"trnw"
_HELLO = struct.Struct(">4sH32s")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_OVERHEAD = _LENGTH.size + _NUMBER.size + PROOF_BYTES  # bytes of a message beside its body
HELLO_BYTES = _HELLO.size


class WireError(Exception):
    """The bytes from the other side are refused."""


class Malformed(WireError):
    """The bytes do not follow the protocol."""


class Oversized(WireError):
    """The length is above the limit. Detected from the length alone, before any of the body is read."""


class Replayed(WireError):
    """An authentic message at the wrong position: repeated, out of order, or after a dropped one."""


class BadMac(WireError):
    """The sender does not know the secret, or made this for another role, connection or identity."""


def hello(nonce: bytes) -> bytes:
    """Return the first bytes of either side. ``nonce`` is 32 random bytes, never used twice."""
    return _HELLO.pack(_MAGIC, VERSION, nonce)


def read_hello(data: bytes) -> bytes:
    """Return the other side's nonce from exactly `HELLO_BYTES` bytes. Raises Malformed."""
    if len(data) != HELLO_BYTES:
        raise Malformed(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
    magic, version, nonce = _HELLO.unpack(data)
    if magic != _MAGIC:
        raise Malformed("not a transom hello")
    if version != VERSION:
        raise Malformed(f"version {version} of the protocol, not {VERSION}")
    return bytes(nonce)


class Endpoint:
    """One side before the handshake. ``identity`` names the server and is the same on both sides.

    No two servers of a run may share an identity: nothing else distinguishes them.
    """

    def __init__(self, role: str, secret: bytes, identity: str) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes, not {len(secret)}")
        self._role, self._secret = role, secret
        self._other = SERVER if role == CLIENT else CLIENT
        self._identity = identity.encode("utf-8", "surrogateescape")

    def pair(self, own: bytes, others: bytes) -> Channel:
        """Return the channel that results from the nonces of both hellos."""
        nonces = (own, others) if self._role == CLIENT else (others, own)
        return Channel(
            self._derive("proof", self._role, nonces),
            self._derive("proof", self._other, nonces),
            Sender(self._derive("key", self._role, nonces), LIMITS[self._role]),
            Receiver(self._derive("key", self._other, nonces), LIMITS[self._other]),
            self._derive("bulk", SERVER, nonces),
        )

    def _derive(self, purpose: str, role: str, nonces: tuple[bytes, bytes]) -> bytes:
        parts = (_MAGIC, str(VERSION).encode(), purpose.encode(), role.encode(), self._identity, *nonces)
        # length-prefixed, so that no two different lists produce the same bytes
        return hmac.digest(self._secret, b"".join(_LENGTH.pack(len(part)) + part for part in parts), "sha256")


class Channel:
    """One connection. ``proof`` is for the other side. Use everything else only after `check` has passed.

    ``bulk_key`` authenticates the bytes that a server sends beside its messages (see `bulk`).
    """

    def __init__(self, proof: bytes, expected: bytes, sender: Sender, receiver: Receiver, bulk_key: bytes) -> None:
        self.proof, self._expected = proof, expected
        self.sender, self.receiver, self.bulk_key = sender, receiver, bulk_key

    def check(self, proof: bytes) -> None:
        """Accept the other side's proof, or raise BadMac."""
        if not hmac.compare_digest(proof, self._expected):
            raise BadMac("the other side did not prove that it knows the secret")


class Sender:
    """Frames the messages of one direction, numbered from 0."""

    def __init__(self, key: bytes, limit: int) -> None:
        self._key, self._limit, self._number = key, limit, 0

    def frame(self, body: dict[str, object]) -> bytes:
        """Return the bytes of the next message. Raises Malformed or Oversized, and then uses up no number."""
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
    """Reads the messages of one direction from bytes in any pieces.

    Call `next` after each `feed` until it returns None. If you feed at most `wanted` bytes at a time, no more than one
    message is buffered, and no part of an oversized body is ever read. ``size`` is the last message's body in bytes.
    """

    def __init__(self, key: bytes, limit: int) -> None:
        self._key, self._limit, self._number, self.size = key, limit, 0, 0
        self._buffer = bytearray()
        self._failed: WireError | None = None

    @property
    def wanted(self) -> int:
        """Bytes that `next` needs to make progress; at least 1 after `next` has returned None."""
        if len(self._buffer) < _LENGTH.size:
            return _LENGTH.size - len(self._buffer)
        return max(0, self._whole() - len(self._buffer))

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> dict[str, object] | None:
        """Return the next message, or None while it is incomplete. After an error, always raises that error."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._next()
        except WireError as error:
            self._failed = error
            raise

    def end(self) -> None:
        """Note that the connection has ended. Raises Malformed if it ended within a message."""
        if self._buffer:
            raise Malformed(f"ended {len(self._buffer)} bytes into a message")

    def _whole(self) -> int:
        return _OVERHEAD + int(_LENGTH.unpack_from(self._buffer)[0])

    def _next(self) -> dict[str, object] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        whole = self._whole()
        if whole - _OVERHEAD > self._limit:
            raise Oversized(f"{whole - _OVERHEAD} bytes announced, and {self._limit} are allowed")
        if len(self._buffer) < whole:
            return None
        signed = bytes(self._buffer[_LENGTH.size : whole - PROOF_BYTES])
        mac = bytes(self._buffer[whole - PROOF_BYTES : whole])
        del self._buffer[:whole]
        # Check the HMAC first: only an authentic message can be at the wrong position.
        if not hmac.compare_digest(mac, hmac.digest(self._key, signed, "sha256")):
            raise BadMac("not a message that the other side made for this connection")
        (number,) = _NUMBER.unpack_from(signed)
        if number != self._number:
            raise Replayed(f"message {number} where {self._number} was expected")
        self._number += 1
        self.size = len(signed) - _NUMBER.size
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
