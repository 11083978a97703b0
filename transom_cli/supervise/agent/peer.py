"""One connection of the agent's server: the handshake's state, what is to be sent, and until when it may stay."""

from __future__ import annotations

import os
import selectors
import socket
import time

from transom_cli.supervise.agent import wire

HANDSHAKE = 5.0  # seconds from the connection to the proof
IDLE = 600.0  # seconds after which a connection on which nothing moves is closed


class Peer:
    """Its reads are never longer than what is wanted next, so what it can make us hold is bounded."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.deadline = time.monotonic() + HANDSHAKE
        self.watched = selectors.EVENT_READ
        self.outbox = bytearray()
        self.busy = False  # a question of its is being answered
        self.ahead = False  # and it has sent more meanwhile
        self.proven = False
        self._inbox = bytearray()  # of the handshake
        self._meeting: wire.Meeting | None = None

    @property
    def sender(self) -> wire.Sender:
        assert self._meeting is not None
        return self._meeting.sender

    @property
    def receiver(self) -> wire.Receiver:
        assert self._meeting is not None
        return self._meeting.receiver

    @property
    def wanted(self) -> int:
        if self.proven:
            return self.receiver.wanted
        return (wire.HELLO_BYTES if self._meeting is None else wire.PROOF_BYTES) - len(self._inbox)

    def shake(self, data: bytes, party: wire.Party) -> None:
        """The handshake's next bytes: nonces first, then the launcher's proof, and ours only after it."""
        self._inbox += data
        if self.wanted:
            return
        data, self._inbox = bytes(self._inbox), bytearray()
        if self._meeting is None:
            nonce = os.urandom(wire.NONCE_BYTES)
            self._meeting = party.meet(nonce, wire.read_hello(data))
            self.outbox += wire.hello(nonce)
        else:
            self._meeting.check(data)
            self.outbox += self._meeting.proof
            self.proven = True
            self.moved()

    def moved(self) -> None:
        if self.proven:  # the handshake's time runs from its start, however it trickles
            self.deadline = time.monotonic() + IDLE
