"""Questions and answers between a node's processes and its memory holder: JSON and descriptors over a Unix socket.

One message is one packet (SOCK_SEQPACKET), so there is no half of one. What is larger than a packet travels as a sealed
memfd. Whoever connects must be of the same user, as the kernel tells (SO_PEERCRED); the socket's folder is private too.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from transom_cli.errors import TransomError

LIMIT = 64 << 10  # bytes of a message's JSON
_MOST_FDS = 16
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

Body = dict[str, Any]


class HolderGone(TransomError):
    """The other side of the socket has ended, or does not answer in time."""


class Refused(TransomError):
    """The holder could not do what it was asked for, and says why."""


FAILURES = (HolderGone, Refused)


def send(sock: socket.socket, body: Body, fds: Sequence[int] = ()) -> None:
    data = json.dumps(body, separators=(",", ":")).encode("ascii")
    if len(data) > LIMIT:
        raise ValueError(f"a message of {len(data)} bytes; {LIMIT} are allowed")
    socket.send_fds(sock, [data], list(fds))


def receive(sock: socket.socket) -> tuple[Body, list[int]]:
    """The next message and the descriptors with it, which are the caller's to close. Raises OSError, EOFError at the
    end, ValueError for what is no message.
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
        for fd in fds:
            os.close(fd)
        raise
    return body, list(fds)


def same_user(sock: socket.socket) -> bool:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1]) == os.geteuid()


def ask(
    sock: socket.socket, timeout: float, name: str, fds: Sequence[int] = (), **about: Any
) -> tuple[Body, list[int]]:
    """One question and its answer. Raises HolderGone, after which the socket is useless, and Refused."""
    try:
        sock.settimeout(timeout)
        send(sock, {"ask": name, **about}, fds)
        body, came = receive(sock)
    except (OSError, EOFError) as error:
        raise HolderGone("the node's memory holder does not answer", str(error) or type(error).__name__) from error
    if body.pop("ok", None) is not True:
        for fd in came:
            os.close(fd)
        raise Refused(str(body.get("error", "the memory holder refused")))
    return body, came


def parcel(data: bytes) -> int:
    """`data` as a memfd that nobody can change any more; the caller closes it."""
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
    """What is in a parcel. Its offset is shared with the sender, so it is read by position."""
    size = os.fstat(fd).st_size
    if size > most:
        raise ValueError(f"a parcel of {size} bytes")
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), len(data))):
        data += piece
    return bytes(data)
