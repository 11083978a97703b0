"""Whole bytes over a socket, in time or not at all.

Timeouts are the kernel's (SO_RCVTIMEO, SO_SNDTIMEO) and reads ask for all they want at once (MSG_WAITALL): one call for
a MiB, where a socket with Python's own timeout takes nine, each of which has to win the interpreter's lock back. The
buffers' sizes stay the kernel's too: none of 256 KiB to 4 MiB was faster where this was written, and asking for one
ends the kernel's own tuning of it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

STALL = 10.0  # seconds without a byte after which a connection is given up
_TIMEVAL = struct.Struct("@ll")
_AT_ONCE = 512  # buffers in one call; Linux takes 1024


class Stream:
    """A connected socket, made blocking. Both methods raise TimeoutError, and other OSErrors as they come.

    A deadline is a time of `time.monotonic`. Whatever the deadline, ``stall`` seconds without any byte moving are too
    many; it may take twice as long to be noticed when bytes moved just before. After an error the place in the stream
    is not known any more: close the socket.
    """

    def __init__(self, sock: socket.socket, stall: float = STALL) -> None:
        sock.settimeout(None)
        self._socket, self._stall = sock, stall

    def send(self, parts: Sequence[memoryview], deadline: float | None = None) -> None:
        """All of the parts, one after the other, none of them copied."""
        waiting = [part for part in parts if part]
        while waiting:
            limit = self._allow(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self._socket.sendmsg(waiting[:_AT_ONCE])
            except BlockingIOError:
                raise self._late(limit, "nothing was taken") from None
            waiting = _after(waiting, sent)

    def receive(self, parts: Sequence[memoryview], deadline: float | None = None) -> None:
        """Fill all of the parts, one after the other. ConnectionResetError when the connection ends before."""
        waiting = [part for part in parts if part]
        while waiting:
            limit = self._allow(socket.SO_RCVTIMEO, deadline)
            try:
                count = self._socket.recvmsg_into(waiting[:_AT_ONCE], 0, socket.MSG_WAITALL)[0]
            except BlockingIOError:
                raise self._late(limit, "nothing came") from None
            if not count:
                raise ConnectionResetError("it closed the connection")
            waiting = _after(waiting, count)

    def _allow(self, option: int, deadline: float | None) -> float:
        """Set how long the next call may take, and say it."""
        limit = self._stall if deadline is None else min(self._stall, deadline - time.monotonic())
        if limit <= 0:
            raise TimeoutError
        whole = int(limit)
        micro = max(1, int((limit - whole) * 1e6))  # 0 altogether would mean for ever
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(whole, micro))
        return limit

    def _late(self, limit: float, what: str) -> TimeoutError:
        """With words when it was the stall; the deadline's are its owner's."""
        return TimeoutError(f"{what} for {self._stall:g} s") if limit == self._stall else TimeoutError()


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the parts after their first ``count`` bytes."""
    for place, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[place + 1 :]]
        count -= len(part)
    return []
