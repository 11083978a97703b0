"""The client of a `server`: a call returns the reply to that very call, or raises an error in time.

Both sides prove that they know the run's secret; nothing is encrypted (see `wire`). One thread at a time may call.
"""

from __future__ import annotations

import math
import os
import socket
import time
from types import TracebackType

from transom_cli.rpc import bulk, wire
from transom_cli.rpc.errors import Damaged, Failed, Refused, Unreachable
from transom_cli.rpc.stream import Stream
from transom_cli.rpc.verbs import Call, Result


class Client:
    """A connection on which both sides have proven themselves. Create it with `connect`."""

    def __init__(
        self, sock: socket.socket, channel: wire.Channel, who: str, stall: float, make_hash: bulk.MakeHash | None
    ) -> None:
        self._socket, self._channel, self._who = sock, channel, who
        self._stream = Stream(sock, stall)
        self._seals = None if make_hash is None else bulk.Seals(channel.bulk_key, make_hash)
        self._closed = False

    @classmethod
    def connect(
        cls,
        address: str,
        port: int,
        secret: bytes,
        identity: str,
        timeout: float,
        *,
        kind: str = "server",
        stall: float | None = None,
        make_hash: bulk.MakeHash | None = None,
    ) -> Client:
        """Connect and authenticate, all within ``timeout`` seconds. Raises Unreachable and Refused.

        Args:
            address: an IP address. Names are not resolved, because that could take any time.
            identity: the server's, exactly.
            kind: what the server is, for error messages.
            stall: seconds without progress after which a call fails, even before its timeout.
            make_hash: the server's, if replies may have bulk bytes.
        """
        who = f"the {kind} of {identity} at {address} port {port}"
        deadline = time.monotonic() + timeout
        try:
            sock = _dial(address, port, deadline)
        except OSError as error:
            raise Unreachable(f"Cannot reach {who}", _why(error, timeout)) from error
        try:
            channel = _shake_hands(Stream(sock, math.inf), wire.Endpoint(wire.CLIENT, secret, identity), deadline)
        except BaseException as error:
            sock.close()
            if isinstance(error, wire.BadMac):
                raise Refused(f"Not {who}: it does not know the run's secret", str(error)) from error
            if isinstance(error, wire.WireError):
                raise Refused(f"Not {who}: it does not follow the protocol", str(error)) from error
            if isinstance(error, ConnectionError):
                raise Refused(f"Rejected by {who}: it closed the connection", _why(error, timeout)) from error
            if isinstance(error, OSError):
                raise Unreachable(f"The handshake with {who} did not finish", _why(error, timeout)) from error
            raise
        return cls(sock, channel, who, math.inf if stall is None else stall, make_hash)

    def call(
        self, verb: str, timeout: float, into: memoryview | None = None, /, **request: object
    ) -> dict[str, object]:
        """Return the fields of the reply, complete within ``timeout`` seconds. Raises RpcError.

        The reply's bulk bytes fill ``into`` exactly: a reply with more or fewer is refused, and so is one with any if
        ``into`` is None. After any error but Failed the connection is closed, so that a late reply is never taken for
        the reply to a later call.
        """
        if self._closed:
            raise Unreachable(f"Cannot send {verb} to {self._who}", "the connection is closed")
        deadline = time.monotonic() + timeout
        into = memoryview(bytearray()) if into is None else into.cast("B")
        try:
            frame = self._channel.sender.frame(Call(verb, request).encode())
        except wire.WireError as error:
            raise Failed(f"Cannot send {verb} to {self._who}", str(error)) from error
        try:
            self._stream.send([memoryview(frame)], deadline)
            result = self._result(deadline)
            if result.ok and result.bulk != len(into):
                raise Refused(f"Unexpected reply to {verb} from {self._who}", f"{result.bulk} bytes, not {len(into)}")
            if result.bulk:
                assert self._seals is not None, "bulk bytes without a hash"
                bulk.receive(self._stream, into, self._seals, deadline)
        except BaseException as error:  # also a signal handler's: half an exchange must not be continued
            self.close()
            if isinstance(error, wire.WireError):
                raise Damaged(f"The reply to {verb} from {self._who} is damaged", str(error)) from error
            if isinstance(error, OSError):
                raise Unreachable(f"No reply to {verb} from {self._who}", _why(error, timeout)) from error
            raise
        if not result.ok:
            raise Failed(f"{verb} failed at {self._who}", result.error)
        return result.answer

    def _result(self, deadline: float) -> Result:
        receiver = self._channel.receiver
        while (body := receiver.next()) is None:
            data = self._stream.receive_some(receiver.wanted, deadline)
            if not data:
                raise ConnectionResetError("the peer closed the connection")
            receiver.feed(data)
        return Result.decode(body)

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _dial(address: str, port: int, deadline: float) -> socket.socket:
    """Connect to an IP address before ``deadline`` (of time.monotonic). Raises OSError."""
    family, kind, number, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    timeout = deadline - time.monotonic()
    if timeout <= 0:
        raise TimeoutError
    sock = socket.socket(family, kind, number)
    try:
        sock.settimeout(timeout)
        sock.connect(where)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _shake_hands(stream: Stream, endpoint: wire.Endpoint, deadline: float) -> wire.Channel:
    """Prove, and have the server prove. Raises OSError and WireError."""
    nonce, hello, proof = os.urandom(wire.NONCE_BYTES), bytearray(wire.HELLO_BYTES), bytearray(wire.PROOF_BYTES)
    stream.send([memoryview(wire.hello(nonce))], deadline)
    stream.receive([memoryview(hello)], deadline)
    channel = endpoint.pair(nonce, wire.read_hello(bytes(hello)))
    stream.send([memoryview(channel.proof)], deadline)
    stream.receive([memoryview(proof)], deadline)
    channel.check(bytes(proof))
    return channel


def _why(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return str(error) or f"not within {timeout:g} s"
    return error.strerror or str(error)
