"""The launcher's end of the connection to one agent: ask, and get that question's answer or an error in time.

Both sides prove that they know the run's secret; nothing is encrypted (see `wire`). One thread at a time may ask.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType

from transom_cli.errors import TransomError
from transom_cli.supervise.agent import wire
from transom_cli.supervise.agent.dialing import Names, meet, receive, send, words


class AgentError(TransomError):
    """An agent gave no answer, or not the one that was asked for."""


class Unreachable(AgentError):
    """No connection, or none any more, or no whole answer in time. The connection is closed."""


class Refused(AgentError):
    """Something answers there, but it will not have us, or is not the agent that we mean. The connection is closed.

    An agent closes without a word on a host that is not allowed and when too many are connected, and one that dies
    during the handshake looks the same: try again before believing it.
    """


class Failed(AgentError):
    """The agent's own words why it could not; or the question cannot be sent. The connection can be used further."""


class Client:
    """A connection that both sides have proven themselves on. Made by `connect`."""

    def __init__(self, sock: socket.socket, meeting: wire.Meeting, who: str) -> None:
        self._socket, self._meeting, self._who = sock, meeting, who
        self._closed = False

    @classmethod
    def connect(cls, address: str, port: int, secret: bytes, identity: str, timeout: float) -> Client:
        """Connect and prove, all within ``timeout`` seconds.

        ``address`` is an IP address: looking a name up could take any time. ``identity`` is the agent's, exactly.
        """
        party = wire.Party(wire.LAUNCHER, secret, identity)
        who = f"The agent of {identity} at {address} port {port}"
        return cls(*meet(address, port, party, timeout, Names(who, "an agent", Unreachable, Refused)), who)

    def ask(self, name: str, timeout: float, **arguments: object) -> dict[str, object]:
        """The agent's answer (without ``ok``), whole within ``timeout`` seconds; an AgentError otherwise.

        After Unreachable or Refused the connection is closed, so that an answer that comes late is never taken for
        the answer to a later question.
        """
        if self._closed:
            raise Unreachable(f"{self._who} cannot be asked for {name}", "the connection is closed")
        deadline = time.monotonic() + timeout
        try:
            frame = self._meeting.sender.frame(dict(ask=name, **arguments))
        except wire.WireError as error:
            raise Failed(f"{name} cannot be asked of an agent", str(error)) from error
        try:
            send(self._socket, frame, deadline)
            reply = self._reply(deadline)
            if not isinstance(reply.get("ok"), bool):
                raise wire.Malformed("an answer without ok")
        except BaseException as error:  # also a signal handler's: half an exchange must not be gone on with
            self.close()
            if isinstance(error, wire.WireError):
                raise Refused(f"{self._who} answered {name} in a way that is refused", str(error)) from error
            if isinstance(error, OSError):
                raise Unreachable(f"{self._who} did not answer {name}", words(error, timeout)) from error
            raise
        if not reply.pop("ok"):
            raise Failed(f"{self._who} could not do {name}", str(reply.get("error", "")))
        return reply

    def _reply(self, deadline: float) -> dict[str, object]:
        receiver = self._meeting.receiver
        while (message := receiver.next()) is None:
            receiver.feed(receive(self._socket, receiver.wanted, deadline))
        return message

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
