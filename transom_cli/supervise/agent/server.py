"""The agent's end: answers authenticated questions, and can be brought down by none.

Protected: only hosts that are allowed get as much as a byte, only who knows the run's secret gets an answer, and what
is not a well-formed next message ends its connection and is counted (see `wire`). Not protected: nothing is encrypted,
so stacks travel in clear; and a program on an allowed host can keep places taken, though never for long without proof.

One thread waits for all sockets and never for one of them; it sleeps when there is nothing to do. Questions are
answered by two more threads, one question at a time for each connection.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import selectors
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from transom_cli.supervise.agent import wire
from transom_cli.supervise.agent.peer import Peer

PEERS = 8  # connections at once
WORKERS = 2  # questions answered at once
PAUSE = 1.0  # seconds without new connections after accept() failed (no file descriptors left, most likely)
LEAVE = 5.0  # seconds that stop() waits for questions that are being answered
ERROR_TEXT = 4000  # characters of an error that are sent

KINDS = (
    "accepted",  # connections whose peer has proven itself
    "answered",  # replies made, errors among them
    "refused_address",
    "refused_handshake",  # a wrong or half handshake
    "malformed",  # a message that is not one, or not by the peer (bad HMAC), or only half of one
    "oversized",
    "replayed",  # a true message repeated or out of order
    "timed_out",  # no proof in time, or idle for too long
    "too_many",  # turned away, or put out before its proof to make place
)

Handler = Callable[[str, "dict[str, object]"], "dict[str, object]"]


class Server:
    """Answers for one agent.

    ``identity`` is what the launcher must name, such as "<attempt>/<node>". ``allowed`` are IP addresses (ValueError
    for anything else). ``handle`` gets the question's name and its other fields, in one of two threads, and returns
    the answer's fields; what it raises becomes the answer's error. ``counts`` says what happened, by `KINDS`.
    """

    def __init__(self, secret: bytes, identity: str, allowed: frozenset[str], handle: Handler) -> None:
        self._party = wire.Party(wire.AGENT, secret, identity)
        self._allowed = frozenset(normal(address) for address in allowed)
        self._handle = handle
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[Peer, None] = {}  # a set in order of arrival
        self._questions: queue.SimpleQueue[tuple[Peer, str, dict[str, object]] | None] = queue.SimpleQueue()
        self._replies: deque[tuple[Peer, bytes]] = deque()
        self._threads: list[threading.Thread] = []
        self._deaf_until: float | None = None
        self._stopping = False

    def start(self, host: str = "0.0.0.0") -> int:
        """Listen on a free port, and say which. Once only; signals that sigwait is to get must be blocked before."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        self._listener = socket.create_server((host, 0), family=family, backlog=2 * PEERS, dualstack_ipv6=both)
        self._listener.setblocking(False)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for number, work in enumerate([self._loop] + [self._work] * WORKERS):
            thread = threading.Thread(target=work, name=f"agent-server-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        """Close every connection and end the threads; not from within ``handle``.

        Waits a few seconds for questions that are being answered, then leaves their (daemon) threads behind.
        """
        if not self._threads:
            return
        self._stopping = True
        self._rouse()
        for _ in range(WORKERS):
            self._questions.put(None)
        end = time.monotonic() + LEAVE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._wake.close()

    # The workers' threads

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            peer, name, arguments = question
            if peer in self._peers:  # who has gone meanwhile needs no answer
                self._replies.append((peer, self._answer(peer, name, arguments)))
                self._rouse()

    def _answer(self, peer: Peer, name: str, arguments: dict[str, object]) -> bytes:
        try:
            return peer.sender.frame({**self._handle(name, arguments), "ok": True})
        except BaseException as error:  # SystemExit too would end nothing but this thread
            text = "".join(traceback.format_exception_only(type(error), error)).strip()
            return peer.sender.frame({"ok": False, "error": text[:ERROR_TEXT]})

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: stopped
            self._wake.send(b"\0")

    # The loop's thread

    def _loop(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._wait()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.data in self._peers:  # else put out a moment ago
                    self._serve(key.data)
            while self._replies:
                peer, reply = self._replies.popleft()
                if peer in self._peers:
                    self.counts["answered"] += 1
                    peer.busy = False
                    peer.moved()
                    peer.outbox += reply
                    self._serve(peer)
            self._expire()
        for peer in list(self._peers):
            self._drop(peer)
        self._selector.close()
        self._listener.close()
        self._woken.close()

    def _wait(self) -> float | None:
        times = [peer.deadline for peer in self._peers if not peer.busy]
        if self._deaf_until is not None:
            times.append(self._deaf_until)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _expire(self) -> None:
        now = time.monotonic()
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        for peer in [p for p in self._peers if not p.busy and now >= p.deadline]:
            self._drop(peer, "timed_out")

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # it would be ready again at once, and for ever
            self._selector.unregister(self._listener)
            self._deaf_until = time.monotonic() + PAUSE
            return
        if normal(address[0]) not in self._allowed:
            self.counts["refused_address"] += 1
            sock.close()
            return
        if len(self._peers) >= PEERS:
            self.counts["too_many"] += 1
            unproven = next((peer for peer in self._peers if not peer.proven), None)
            if unproven is None:
                sock.close()
                return
            self._drop(unproven)  # the one that has had most time: silent peers must not lock out the launcher
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # it has hung up already; reading will tell
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sock)
        self._peers[peer] = None
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _serve(self, peer: Peer) -> None:
        """Move what can be moved without waiting: one piece out, or one piece in."""
        try:
            if peer.outbox:
                del peer.outbox[: peer.sock.send(peer.outbox)]
                peer.moved()
            elif peer.busy:
                if not peer.sock.recv(1, socket.MSG_PEEK):
                    return self._drop(peer)
                peer.ahead = True  # the next question has come already: it waits in the socket
            else:
                data = peer.sock.recv(peer.wanted)
                if not data:
                    return self._ended(peer)
                peer.moved()
                self._take(peer, data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return self._drop(peer, None if peer.proven else "refused_handshake")
        except wire.Oversized:
            return self._drop(peer, "oversized")
        except wire.Replayed:
            return self._drop(peer, "replayed")
        except wire.WireError:
            return self._drop(peer, "malformed" if peer.proven else "refused_handshake")
        self._watch(peer)

    def _take(self, peer: Peer, data: bytes) -> None:
        if not peer.proven:
            peer.shake(data, self._party)
            self.counts["accepted"] += peer.proven
            return
        peer.receiver.feed(data)
        message = peer.receiver.next()
        if message is None:
            return
        name = message.pop("ask", None)
        if not isinstance(name, str):
            raise wire.Malformed("a question without a name")
        peer.busy, peer.ahead = True, False
        self._questions.put((peer, name, message))

    def _ended(self, peer: Peer) -> None:
        if not peer.proven:
            return self._drop(peer, "refused_handshake")
        try:
            peer.receiver.end()
        except wire.Malformed:
            return self._drop(peer, "malformed")
        self._drop(peer)

    def _watch(self, peer: Peer) -> None:
        events = selectors.EVENT_READ
        if peer.outbox:
            events = selectors.EVENT_WRITE
        elif peer.busy and peer.ahead:
            events = 0
        if events != peer.watched:
            if peer.watched:
                self._selector.unregister(peer.sock)
            if events:
                self._selector.register(peer.sock, events, peer)
            peer.watched = events

    def _drop(self, peer: Peer, why: str | None = None) -> None:
        if why is not None:
            self.counts[why] += 1  # before the peer can notice
        del self._peers[peer]
        if peer.watched:
            self._selector.unregister(peer.sock)
        peer.sock.close()


def normal(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """One form for each address: an IPv4 one that comes in through an IPv6 socket is itself, and no interface name."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
