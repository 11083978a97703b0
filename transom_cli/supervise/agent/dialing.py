"""The asker's way to a connection on which both sides have proven themselves, and bytes over it in time.

For agents and for memory holders: they say the same, and their errors have their own names (see `wire`).
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

from transom_cli.errors import TransomError
from transom_cli.supervise.agent import wire


@dataclass(frozen=True)
class Names:
    """In words whom we mean (`who`) and what it is (`kind`); and as what a failure is raised."""

    who: str
    kind: str
    unreachable: type[TransomError]
    refused: type[TransomError]


def meet(
    address: str, port: int, party: wire.Party, timeout: float, names: Names
) -> tuple[socket.socket, wire.Meeting]:
    """Connect to an IP address and prove, all within ``timeout`` seconds."""
    who, deadline = names.who, time.monotonic() + timeout
    try:
        sock = _dial(address, port, deadline)
    except OSError as error:
        raise names.unreachable(f"{who} cannot be reached", words(error, timeout)) from error
    try:
        return sock, _handshake(sock, party, deadline)
    except BaseException as error:
        sock.close()
        if isinstance(error, wire.BadMac):
            raise names.refused(f"{who} is not the one: it does not know the run's secret", str(error)) from error
        if isinstance(error, wire.WireError):
            raise names.refused(f"{who} does not speak as {names.kind} does", str(error)) from error
        if isinstance(error, ConnectionError):
            raise names.refused(f"{who} closed the connection before it was made", words(error, timeout)) from error
        if isinstance(error, OSError):
            raise names.unreachable(f"{who} did not finish the handshake", words(error, timeout)) from error
        raise


def _dial(address: str, port: int, deadline: float) -> socket.socket:
    """A connection to an IP address, made before ``deadline`` (of time.monotonic). Raises OSError."""
    family, kind, number, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    sock = socket.socket(family, kind, number)
    try:
        sock.settimeout(_left(deadline))
        sock.connect(where)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _handshake(sock: socket.socket, party: wire.Party, deadline: float) -> wire.Meeting:
    """Prove, and have the other side prove. Raises OSError and WireError; the socket is the caller's to close."""
    nonce = os.urandom(wire.NONCE_BYTES)
    send(sock, wire.hello(nonce), deadline)
    meeting = party.meet(nonce, wire.read_hello(_receive_all(sock, wire.HELLO_BYTES, deadline)))
    send(sock, meeting.proof, deadline)
    meeting.check(_receive_all(sock, wire.PROOF_BYTES, deadline))
    return meeting


def send(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(_left(deadline))  # of sendall as a whole
    sock.sendall(data)


def receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    """From 1 to ``count`` bytes."""
    sock.settimeout(_left(deadline))
    data = sock.recv(count)
    if not data:
        raise ConnectionResetError("it closed the connection")
    return data


def _receive_all(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        data += receive(sock, count - len(data), deadline)
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def words(error: OSError, timeout: float) -> str:
    """Why, for a person."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"not within {timeout:g} s"
    return error.strerror or str(error)
