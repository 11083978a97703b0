"""A holder's end of the lines between nodes: answers authenticated questions, with bytes by the gigabyte behind them.

Only hosts that are allowed get as much as a byte, only who knows the run's secret gets an answer; nothing is encrypted
(see `agent.wire`, and `bulk` for the bytes). A thread for each line, and no more than `LINES` of them: a job has tens
of nodes that may ask one holder, and each of their threads sleeps in the kernel while it sends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from transom_cli.ckpt.snapshot import bulk
from transom_cli.ckpt.snapshot.stream import STALL, Stream
from transom_cli.ckpt.snapshot.throttle import Throttle
from transom_cli.supervise.agent import wire
from transom_cli.supervise.agent.server import normal

LINES = 32  # at once
HANDSHAKE = 5.0  # seconds from the connection to the proof
IDLE = 600.0  # seconds from one answer to the whole of the next question
LEAVE = 5.0  # seconds that stop() waits for questions that are being answered
ERROR_TEXT = 4000  # characters of an error that are sent
PAUSE = 1.0  # seconds without new lines after accept() failed (no file descriptors left, most likely)

KINDS = (
    "accepted",  # lines whose asker has proven itself
    "answered",  # answers sent whole, errors among them
    "refused_address",
    "refused_handshake",  # a wrong or half handshake
    "refused_question",  # not one, or not by the asker, or too long, or repeated, or half
    "timed_out",  # no proof in time, idle for too long, or takes no bytes
    "cut",  # gone before its answer was sent
    "too_many",  # turned away, or put out before its proof to make place
)

Answer = tuple["dict[str, object]", Sequence[memoryview]]
Handler = Callable[[str, "dict[str, object]"], Answer]


class Server:
    """Answers for one holder.

    ``identity`` is what an asker must name, and nobody else's. ``allowed`` are IP addresses (ValueError for anything
    else), None for all. ``handle`` gets the question's name and its other fields, in one of many threads, and returns
    the answer's fields and what to send behind them: views, one after the other. They are not copied, must stay as they
    are until they are sent, and are let go then, or when the line ends before: a `weakref.finalize` on one tells. What
    it raises becomes the answer's error. ``rate`` is in bytes a second, of all lines together; None for no limit.
    ``counts`` says what happened, by `KINDS`.
    """

    def __init__(
        self,
        secret: bytes,
        identity: str,
        allowed: frozenset[str] | None,
        handle: Handler,
        rate: float | None = None,
        stall: float = STALL,
    ) -> None:
        self._party = wire.Party(wire.AGENT, secret, identity)
        self._allowed = None if allowed is None else frozenset(normal(address) for address in allowed)
        self._handle, self._stall = handle, stall
        self._throttle = None if rate is None else Throttle(rate)
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._lock = threading.Lock()  # of the counts and the lines
        self._lines: dict[_Line, None] = {}  # a set in order of arrival
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None

    def start(self, host: str = "0.0.0.0", port: int = 0) -> int:
        """Listen on that port, on a free one where it is taken, and say which. Once only."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        make = functools.partial(socket.create_server, family=family, backlog=LINES, dualstack_ipv6=both)
        try:
            self._listener = make((host, port))
        except OSError:
            self._listener = make((host, 0))
        self._accepting = threading.Thread(target=self._accept_all, args=(self._listener,), name="lines", daemon=True)
        self._accepting.start()
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        """End every line and the threads; not from within ``handle``.

        Waits a few seconds for questions that are being answered, then leaves their (daemon) threads behind.
        """
        if self._listener is None:
            return
        with self._lock:
            left = dict(self._lines)  # also those whose threads will be gone from there at once, and still be running
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() would not
        self._accepting.join()
        self._listener.close()
        with self._lock:
            left |= self._lines
        for line in left:
            line.end()
        deadline = time.monotonic() + LEAVE
        for line in left:
            line.thread.join(max(0.0, deadline - time.monotonic()))

    # The accepting thread

    def _accept_all(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:  # stopped; or it would fail again at once, and for ever
                self._stopping.wait(PAUSE)
                continue
            if not self._admit(sock, address[0]):
                sock.close()

    def _admit(self, sock: socket.socket, address: str) -> bool:
        if self._allowed is not None and normal(address) not in self._allowed:
            self._count("refused_address")
            return False
        if not self._make_place():
            return False
        with contextlib.suppress(OSError):  # it has hung up already; reading will tell
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _Line(sock)
        line.thread = threading.Thread(target=self._serve, args=(line,), name="line", daemon=True)
        with self._lock:
            self._lines[line] = None
        try:
            line.thread.start()
        except RuntimeError:  # no more threads may be made
            self._leave(line, "too_many")
        return True

    def _make_place(self) -> bool:
        with self._lock:
            if len(self._lines) < LINES:
                return True
            self.counts["too_many"] += 1
            unproven = next((line for line in self._lines if not line.proven), None)
            if unproven is None:
                return False
            del self._lines[unproven]  # the one that has had most time: silent peers must not lock out the others
        unproven.end()
        return True

    # A line's own thread

    def _serve(self, line: _Line) -> None:
        why: str | None = None
        stream = Stream(line.sock, self._stall)
        try:
            meeting = self._meet(line, stream)
            patient = Stream(line.sock, IDLE)
            seals = bulk.Seals(meeting.bulk)
            while (question := _question(patient, meeting.receiver)) is not None:
                self._reply(stream, meeting, seals, question)
        except TimeoutError:
            why = "timed_out"
        except wire.WireError:
            why = "refused_question" if line.proven else "refused_handshake"
        except OSError:
            why = "cut" if line.proven else "refused_handshake"
        finally:
            self._leave(line, why)

    def _meet(self, line: _Line, stream: Stream) -> wire.Meeting:
        """The handshake: the asker's nonce, ours, its proof, and ours only after it."""
        deadline = time.monotonic() + HANDSHAKE
        theirs, proof, own = bytearray(wire.HELLO_BYTES), bytearray(wire.PROOF_BYTES), os.urandom(wire.NONCE_BYTES)
        stream.receive([memoryview(theirs)], deadline)
        meeting = self._party.meet(own, wire.read_hello(bytes(theirs)))
        stream.send([memoryview(wire.hello(own))], deadline)
        stream.receive([memoryview(proof)], deadline)
        meeting.check(bytes(proof))
        line.proven = True
        self._count("accepted")
        stream.send([memoryview(meeting.proof)], deadline)
        return meeting

    def _reply(self, stream: Stream, meeting: wire.Meeting, seals: bulk.Seals, question: dict[str, object]) -> None:
        name, arguments = question.get("ask"), question.get("with")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise wire.Malformed("a question without a name or arguments")
        views: Sequence[memoryview] = ()
        try:
            fields, views = self._handle(name, arguments)
            flat = [view.cast("B") for view in views]
            frame = meeting.sender.frame({"ok": True, "bulk": sum(map(len, flat)), "answer": fields})
        except BaseException as error:  # SystemExit too would end nothing but this thread
            text = "".join(traceback.format_exception_only(type(error), error)).strip()
            frame, flat = meeting.sender.frame({"ok": False, "error": text[:ERROR_TEXT]}), []
        stream.send([memoryview(frame)])
        bulk.send(stream, flat, seals, self._throttle.slice if self._throttle else bulk.WHOLE, self._pace)
        self._count("answered")

    def _pace(self, count: int) -> None:
        if self._stopping.wait(self._throttle.take(count) if self._throttle else 0.0):
            raise ConnectionAbortedError("the server stops")

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1

    def _leave(self, line: _Line, why: str | None) -> None:
        with self._lock:
            # before the asker can notice; and who was put out, or is being stopped, has not failed
            if why is not None and line in self._lines and not self._stopping.is_set():
                self.counts[why] += 1
            self._lines.pop(line, None)
        line.sock.close()


class _Line:
    thread: threading.Thread

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.proven = sock, False

    def end(self) -> None:
        """Wake its thread, whatever it waits for on the socket."""
        with contextlib.suppress(OSError):  # ended already
            self.sock.shutdown(socket.SHUT_RDWR)


def _question(stream: Stream, receiver: wire.Receiver) -> dict[str, object] | None:
    """The next message, whole within the stream's patience; None when the asker has hung up instead."""
    deadline = time.monotonic() + IDLE
    while (message := receiver.next()) is None:
        data = bytearray(receiver.wanted)
        try:
            stream.receive([memoryview(data)], deadline)
        except ConnectionResetError:
            receiver.end()
            return None
        receiver.feed(bytes(data))
    return message
