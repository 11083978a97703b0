"""The asker's end of a line to a holder: a question, and its answer with all its bytes, or an error in time.

Both sides prove that they know the run's secret; nothing is encrypted (see `agent.wire`, and `bulk` for the bytes).
One thread at a time may ask.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType

from transom_cli.ckpt.snapshot import bulk
from transom_cli.ckpt.snapshot.stream import STALL, Stream
from transom_cli.errors import TransomError
from transom_cli.supervise.agent import wire
from transom_cli.supervise.agent.dialing import Names, meet, words


class LineFailed(TransomError):
    """A holder gave no answer, or not the one that was asked for. But for `Failed`, the line is closed."""

    kind = "line_failed"


class Unreachable(LineFailed):
    """No line, or none any more, or no whole answer in time."""


class Refused(LineFailed):
    """Something answers there, but it will not have us, is not the holder that we mean, or sends what does not fit.

    A holder closes without a word on a host that is not allowed and when too many are connected, and one that dies
    during the handshake looks the same: try again before believing it.
    """


class Damaged(LineFailed):
    """What came is not what the holder sent. None of it may be used, nor any of what ``into`` holds now."""


class Failed(LineFailed):
    """The holder's own words why it could not; or the question cannot be sent. The line can be used further."""


class Line:
    """A connection that both sides have proven themselves on. Made by `connect`."""

    def __init__(self, sock: socket.socket, meeting: wire.Meeting, who: str, stall: float) -> None:
        self._socket, self._meeting, self._who = sock, meeting, who
        self._stream, self._seals = Stream(sock, stall), bulk.Seals(meeting.bulk)
        self._closed = False

    @classmethod
    def connect(
        cls, address: str, port: int, secret: bytes, identity: str, timeout: float, stall: float = STALL
    ) -> Line:
        """Connect and prove, all within ``timeout`` seconds.

        ``address`` is an IP address: looking a name up could take any time. ``identity`` is the holder's, exactly.
        """
        party = wire.Party(wire.LAUNCHER, secret, identity)
        who = f"The holder of {identity} at {address} port {port}"
        return cls(*meet(address, port, party, timeout, Names(who, "a holder", Unreachable, Refused)), who, stall)

    def ask(self, name: str, timeout: float, into: memoryview | None = None, **arguments: object) -> dict[str, object]:
        """The answer's fields, and its bytes in ``into``, all within ``timeout`` seconds; a LineFailed otherwise.

        ``into`` is filled whole: an answer with more or fewer bytes is refused, one with any where there is no ``into``
        too. After an error it may hold anything. After any error but Failed the line is closed, so that an answer that
        comes late is never taken for the answer to a later question.
        """
        if self._closed:
            raise Unreachable(f"{self._who} cannot be asked for {name}", "the line is closed")
        deadline = time.monotonic() + timeout
        into = memoryview(bytearray()) if into is None else into.cast("B")
        try:
            frame = self._meeting.sender.frame({"ask": name, "with": arguments})
        except wire.WireError as error:
            raise Failed(f"{name} cannot be asked of a holder", str(error)) from error
        try:
            self._stream.send([memoryview(frame)], deadline)
            reply = self._reply(deadline)
            if reply["ok"]:
                fields, size = reply.get("answer"), reply.get("bulk")
                if not isinstance(fields, dict):
                    raise wire.Malformed("an answer without its fields")
                if size != len(into):
                    raise Refused(f"{self._who} answered {name} otherwise", f"{size} bytes and not {len(into)}")
                bulk.receive(self._stream, into, self._seals, deadline)
                return fields
        except BaseException as error:  # also a signal handler's: half an exchange must not be gone on with
            self.close()
            if isinstance(error, wire.WireError):
                raise Damaged(f"{self._who} answered {name}, and it came damaged", str(error)) from error
            if isinstance(error, OSError):
                raise Unreachable(f"{self._who} did not answer {name}", _why(error, timeout)) from error
            raise
        raise Failed(f"{self._who} could not do {name}", str(reply.get("error", "")))

    def _reply(self, deadline: float) -> dict[str, object]:
        receiver = self._meeting.receiver
        while (message := receiver.next()) is None:
            data = bytearray(receiver.wanted)
            self._stream.receive([memoryview(data)], deadline)
            receiver.feed(bytes(data))
        if not isinstance(message.get("ok"), bool):
            raise wire.Malformed("an answer without ok")
        return message

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _why(error: OSError, timeout: float) -> str:
    """The stream's own words, where it has some."""
    return str(error) if len(error.args) == 1 else words(error, timeout)
