"""Calls within a node: JSON and passed descriptors over a Unix socket, between processes of one user.

One message is one packet (SOCK_SEQPACKET), so it is never incomplete. Anything larger than a packet is passed as a
sealed memfd (`parcel`). The kernel tells who the peer is (SO_PEERCRED): it must be the same user. The folder of the
socket is private as well.
"""

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from transom_cli.rpc.errors import Failed, Refused, Unreachable
from transom_cli.rpc.verbs import Call, Fields, Handler, Result

LIMIT = 64 << 10  # bytes of a message's JSON
TIMEOUT = 120.0  # seconds for a reply on this node: a server may compute checksums of a large share for it
_MOST_FDS = 16
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def readable(file: Any, seconds: float) -> bool:
    """Wait until `file` has bytes or its end to read. Unlike `select`, this works beyond 1,024 open files."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000.0 * seconds))


class Client:
    """A connection. Calls of several threads wait for one another."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()

    def call(
        self, verb: str, fds: Sequence[int] = (), timeout: float = TIMEOUT, **request: Any
    ) -> tuple[Fields, list[int]]:
        """Return the fields of the reply and its descriptors, which the caller closes.

        Raises Unreachable, after which the connection is useless, Refused, and Failed.
        """
        with self._lock:
            return call(self._sock, timeout, verb, fds, **request)

    def gone(self) -> bool:
        """Return whether the server has ended. Use it only between calls: a server sends nothing unasked."""
        return readable(self._sock, 0.0)

    def close(self) -> None:
        self._sock.close()


def connect(path: str) -> Client:
    """Raises OSError if no server of this user listens at ``path``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
        if not same_user(sock):
            raise PermissionError(f"{path} belongs to another user")
    except BaseException:
        sock.close()
        raise
    return Client(sock)


def serve(sock: socket.socket, handle: Handler) -> None:
    """Answer the calls of one connection until it ends, if its peer is the same user."""
    with contextlib.suppress(OSError, EOFError, ValueError):  # disconnected, or does not follow the protocol
        while same_user(sock):
            body, fds = receive(sock)
            try:
                reply = handle(Call.decode(body, fds=fds))
                send(sock, Result(True, reply.answer).encode(), reply.fds)
            except BaseException as error:  # SystemExit too would end only this thread
                send(sock, Result.failure(error).encode())
            finally:
                for fd in fds:
                    os.close(fd)


def call(
    sock: socket.socket, timeout: float, verb: str, fds: Sequence[int] = (), **request: Any
) -> tuple[Fields, list[int]]:
    try:
        sock.settimeout(timeout)
        send(sock, Call(verb, request).encode(), fds)
        body, came = receive(sock)
    except (OSError, EOFError) as error:
        raise Unreachable("The node's snapshot daemon does not answer", str(error) or type(error).__name__) from error
    try:
        result = Result.decode(body)
        if result.ok:
            return result.answer, came
    except Exception as error:
        _close(came)
        raise Refused(f"Unexpected reply to {verb} from the node's snapshot daemon", str(error)) from error
    _close(came)
    raise Failed(result.error or f"{verb} failed at the node's snapshot daemon")


def send(sock: socket.socket, body: Fields, fds: Sequence[int] = ()) -> None:
    """Raises OSError, and ValueError for a message that is too long."""
    data = json.dumps(body, separators=(",", ":")).encode("ascii")
    if len(data) > LIMIT:
        raise ValueError(f"a message of {len(data)} bytes; {LIMIT} are allowed")
    socket.send_fds(sock, [data], list(fds))


def receive(sock: socket.socket) -> tuple[Fields, list[int]]:
    """Return the next message and its descriptors, which the caller closes.

    Raises OSError, EOFError at the end, and ValueError for anything that is not a message.
    """
    data, fds, flags, _ = socket.recv_fds(sock, LIMIT, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    try:
        if not data:
            raise EOFError
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a message that is too long")
        body = json.loads(data)
        if not isinstance(body, dict):
            raise ValueError("a message that is not a JSON object")
    except BaseException:
        _close(fds)
        raise
    return body, list(fds)


def same_user(sock: socket.socket) -> bool:
    return peer_uid(sock) == os.geteuid()


def peer_uid(sock: socket.socket) -> int:
    """Return the user of the process at the other end of a Unix socket, as the kernel knows it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def parcel(data: bytes) -> int:
    """Return `data` as a memfd that nobody can change. The caller closes it."""
    fd = os.memfd_create("transom-parcel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(fd)
        raise
    return fd


def unpack(fd: int, most: int = 1 << 30) -> bytes:
    """Return the content of a parcel. Reads by position, because the sender shares the offset."""
    size = os.fstat(fd).st_size
    if size > most:
        raise ValueError(f"a parcel of {size} bytes")
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), len(data))):
        data += piece
    return bytes(data)


def take_parcel(fds: Sequence[int]) -> bytes:
    """Return the content of a reply's only parcel, and close it."""
    try:
        return unpack(fds[0])
    finally:
        _close(fds)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
