"""Sends and receives on a socket, all with a deadline.

Timeouts are the kernel's (SO_RCVTIMEO, SO_SNDTIMEO), and reads request everything at once (MSG_WAITALL): one system
call per MiB, where a socket with Python's own timeout needs nine, each of which has to reacquire the GIL. Buffer sizes
are the kernel's too: none from 256 KiB to 4 MiB was faster in our measurements, and setting one disables autotuning.
"""

import socket
import struct
import time
from collections.abc import Sequence

STALL = 10.0  # seconds without progress until a bulk transfer is abandoned
_TIMEVAL = struct.Struct("@ll")
_AT_ONCE = 512  # buffers in one system call; Linux accepts 1024


class Stream:
    """A connected socket, made blocking. All methods raise TimeoutError, and other OSErrors from the socket.

    A deadline is a time of `time.monotonic`. Whatever the deadline, ``stall`` seconds without progress are a timeout;
    detecting it may take twice as long. After an error the position in the stream is unknown: close the socket.
    """

    def __init__(self, sock: socket.socket, stall: float = STALL) -> None:
        sock.settimeout(None)
        self._socket, self._stall = sock, stall

    def send(self, parts: Sequence[memoryview], deadline: float | None = None) -> None:
        """Send all parts in order, without a copy."""
        waiting = [part for part in parts if part]
        while waiting:
            limit = self._allow(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self._socket.sendmsg(waiting[:_AT_ONCE])
            except BlockingIOError:
                raise self._late(limit, "nothing was accepted") from None
            waiting = _after(waiting, sent)

    def receive(self, parts: Sequence[memoryview], deadline: float | None = None) -> None:
        """Fill all parts in order. Raises ConnectionResetError if the connection ends first."""
        waiting = [part for part in parts if part]
        while waiting:
            limit = self._allow(socket.SO_RCVTIMEO, deadline)
            try:
                count = self._socket.recvmsg_into(waiting[:_AT_ONCE], 0, socket.MSG_WAITALL)[0]
            except BlockingIOError:
                raise self._late(limit, "nothing was received") from None
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            waiting = _after(waiting, count)

    def receive_some(self, count: int, deadline: float) -> bytes:
        """Return 1 to ``count`` bytes, or none if the connection has ended."""
        limit = self._allow(socket.SO_RCVTIMEO, deadline)
        try:
            return self._socket.recv(count)
        except BlockingIOError:
            raise self._late(limit, "nothing was received") from None

    def _allow(self, option: int, deadline: float | None) -> float:
        """Set how long the next system call may take, and return it."""
        limit = self._stall if deadline is None else min(self._stall, deadline - time.monotonic())
        if limit <= 0:
            raise TimeoutError
        whole = int(limit)
        micro = max(1, int((limit - whole) * 1e6))  # zero would mean no timeout
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(whole, micro))
        return limit

    def _late(self, limit: float, what: str) -> TimeoutError:
        """Explain a stall. The caller explains a missed deadline."""
        return TimeoutError(f"{what} for {self._stall:g} s") if limit == self._stall else TimeoutError()


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """Return the parts without their first ``count`` bytes."""
    for place, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[place + 1 :]]
        count -= len(part)
    return []
