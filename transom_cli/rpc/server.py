"""A server of authenticated calls over TCP, with gigabytes behind the replies where a caller asks for them.

Protected: only allowed hosts receive any byte, and of this host only this user (and root); only a client that knows
the run's secret gets an answer, and anything but a well-formed next message ends its connection and is counted (see
`wire`). Not protected: nothing is encrypted, and a program on an allowed host can occupy places, though without a proof
never for long.

Each connection has a thread, which sleeps in the kernel; the number of connections is limited. Before the proof a
connection cannot make the server hold more than a hello, and afterwards no more than one message.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from transom_cli.rpc import bulk, wire
from transom_cli.rpc.sockets import normal, peer_user
from transom_cli.rpc.stream import STALL, Stream
from transom_cli.rpc.verbs import Call, Handler, Reply, Result

ALL = "0.0.0.0"
CONNECTIONS = 32  # at once
HANDSHAKE = 5.0  # seconds from the connection to the proof
IDLE = 600.0  # seconds from a reply to the end of the next call
LEAVE = 5.0  # seconds that stop() waits for calls that are being answered
PAUSE = 1.0  # seconds without new connections after accept() failed (most likely, no file descriptors are left)
_TURN = 0.2  # seconds between two checks whether a waiting call's connection still exists

KINDS = (
    "accepted",  # connections whose client has proven itself
    "answered",  # replies made, including errors
    "refused_address",
    "refused_user",  # another user of this host
    "refused_handshake",  # a wrong or incomplete handshake
    "malformed",  # a message that is not one, or not from the client (bad HMAC), or incomplete
    "oversized",
    "replayed",  # an authentic message repeated or out of order
    "timed_out",  # no proof in time, idle for too long, or does not accept bytes
    "cut",  # disconnected before its reply was sent
    "too_many",  # turned away, or closed before its proof to make room
    "accept_failed",
)


class Server:
    """Answers for one process.

    Args:
        identity: what a client must name; no other server of the run may have it.
        allowed: IP addresses (ValueError for anything else); None allows all.
        handle: called in many threads, ``handlers`` at once. What it raises becomes the error of the reply. The views
            in its reply must not change until they are sent. They are released then, or when the connection ends.
        stall: seconds without progress after which a client that does not read is dropped.
        make_hash: for the seals of bulk bytes; None if no reply has any.

    ``counts`` says what happened, by `KINDS`.
    """

    def __init__(
        self,
        secret: bytes,
        identity: str,
        allowed: frozenset[str] | None,
        handle: Handler,
        *,
        connections: int = CONNECTIONS,
        handlers: int = CONNECTIONS,
        stall: float = STALL,
        make_hash: bulk.MakeHash | None = None,
    ) -> None:
        self._endpoint = wire.Endpoint(wire.SERVER, secret, identity)
        self._users = (None, 0, os.geteuid())  # None: of another host
        self._allowed = None if allowed is None else frozenset(normal(address) for address in allowed)
        self._handle, self._stall, self._make_hash, self._most = handle, stall, make_hash, connections
        self._turns = threading.BoundedSemaphore(handlers)
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._lock = threading.Lock()  # guards the counts and the connections
        self._connections: dict[_Connection, None] = {}  # a set in order of arrival
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None

    def start(self, host: str = ALL, port: int = 0) -> int:
        """Listen on that port, or on a free one if it is taken, and return it. Call once.

        Block the signals that sigwait is to receive before.

        Args:
            host: the address that clients connect to. If this host does not have it, listen on all addresses.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        make = functools.partial(socket.create_server, family=family, backlog=self._most, dualstack_ipv6=both)
        try:
            self._listener = make((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return self.start(ALL, port)
            self._listener = make((host, 0))
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), name="rpc-accept", daemon=True)
        self._accepting.start()
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """The address that it listens on; `ALL` for every one. Call it between start() and stop()."""
        assert self._listener is not None
        return str(self._listener.getsockname()[0])

    def stop(self) -> None:
        """Close every connection and end the threads. Do not call it from a handler.

        Waits a few seconds for calls that are being answered, then abandons their (daemon) threads.
        """
        if self._listener is None:
            return
        with self._lock:
            ended = dict(self._connections)  # a thread may still run after it has removed its connection
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self._accepting.join()
        self._listener.close()
        with self._lock:
            ended |= self._connections
        for connection in ended:
            connection.end()
        deadline = time.monotonic() + LEAVE
        for connection in ended:
            connection.thread.join(max(0.0, deadline - time.monotonic()))

    # The accepting thread

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:  # stopped; or it would fail again at once, without end
                if not self._stopping.is_set():
                    self._count("accept_failed")
                    self._stopping.wait(PAUSE)
                continue
            if not self._admit(sock, address[0]):
                sock.close()

    def _admit(self, sock: socket.socket, address: str) -> bool:
        if self._allowed is not None and normal(address) not in self._allowed:
            self._count("refused_address")
            return False
        if not self._make_room():
            return False
        with contextlib.suppress(OSError):  # disconnected already; the next read reports it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock)
        connection.thread = threading.Thread(target=self._serve, args=(connection,), name="rpc-connection", daemon=True)
        with self._lock:
            self._connections[connection] = None
        try:
            connection.thread.start()
        except RuntimeError:  # the process may not start more threads
            self._leave(connection, "too_many")
        return True

    def _make_room(self) -> bool:
        with self._lock:
            if len(self._connections) < self._most:
                return True
            gone = next((one for one in self._connections if one.busy and one.hung_up()), None)
            if gone is None:
                self.counts["too_many"] += 1
                # the unproven one that has had most time: silent clients must not lock out the others
                gone = next((one for one in self._connections if not one.proven), None)
            if gone is None:
                return False
            del self._connections[gone]
        gone.end()
        return True

    # A connection's own thread

    def _serve(self, connection: _Connection) -> None:
        why: str | None = None
        try:
            if peer_user(connection.sock) not in self._users:
                why = "refused_user"
                return
            channel = self._shake_hands(connection, Stream(connection.sock, self._stall))
            seals = None if self._make_hash is None else bulk.Seals(channel.bulk_key, self._make_hash)
            while (call := _next_call(Stream(connection.sock, IDLE), channel.receiver)) is not None:
                connection.busy = True
                self._reply(connection, channel, seals, call)
                connection.busy = False
        except TimeoutError:
            why = "timed_out"
        except wire.WireError as error:
            why = _refusal(error) if connection.proven else "refused_handshake"
        except OSError:
            why = "cut" if connection.proven else "refused_handshake"
        finally:
            self._leave(connection, why)

    def _shake_hands(self, connection: _Connection, stream: Stream) -> wire.Channel:
        """The client's nonce, ours, its proof, and only then ours."""
        hello, proof, own = bytearray(wire.HELLO_BYTES), bytearray(wire.PROOF_BYTES), os.urandom(wire.NONCE_BYTES)
        stream.receive([memoryview(hello)], connection.deadline)
        channel = self._endpoint.pair(own, wire.read_hello(bytes(hello)))
        stream.send([memoryview(wire.hello(own))], connection.deadline)
        stream.receive([memoryview(proof)], connection.deadline)
        channel.check(bytes(proof))
        connection.proven = True
        self._count("accepted")
        stream.send([memoryview(channel.proof)], connection.deadline)
        return channel

    def _reply(self, connection: _Connection, channel: wire.Channel, seals: bulk.Seals | None, call: Call) -> None:
        views: Sequence[memoryview] = ()
        try:
            reply = self._in_turn(connection, call)
            views = [view.cast("B") for view in reply.bulk]
            result = Result(True, reply.answer, sum(map(len, views)))
            if result.bulk and seals is None:
                raise ValueError("this server sends no bulk bytes")
            frame = channel.sender.frame(result.encode())
        except ConnectionAbortedError:
            raise
        except BaseException as error:  # SystemExit too would end only this thread
            frame, views = channel.sender.frame(Result.failure(error).encode()), ()
        self._count("answered")
        stream = Stream(connection.sock, self._stall)
        stream.send([memoryview(frame)])
        if seals is not None:
            bulk.send(stream, views, seals, self._go_on)

    def _in_turn(self, connection: _Connection, call: Call) -> Reply:
        while not self._turns.acquire(timeout=_TURN):
            if connection not in self._connections:  # its place was given to another client
                raise ConnectionAbortedError("nobody waits for the reply")
        try:
            return self._handle(call)
        finally:
            self._turns.release()

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise ConnectionAbortedError("the server stops")

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1

    def _leave(self, connection: _Connection, why: str | None) -> None:
        with self._lock:
            # count before the client can notice; a connection that this server closes has not failed
            if why is not None and connection in self._connections and not self._stopping.is_set():
                self.counts[why] += 1
            self._connections.pop(connection, None)
        connection.sock.close()


class _Connection:
    thread: threading.Thread

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.deadline = time.monotonic() + HANDSHAKE  # of the whole handshake, however slowly bytes arrive
        self.proven = self.busy = False

    def end(self) -> None:
        """Wake its thread from any wait on the socket."""
        with contextlib.suppress(OSError):  # ended already
            self.sock.shutdown(socket.SHUT_RDWR)

    def hung_up(self) -> bool:
        """Return whether the client has closed its side."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):
            poll.register(self.sock, select.POLLRDHUP)
            return bool(poll.poll(0))
        return True  # closed here already


def _next_call(stream: Stream, receiver: wire.Receiver) -> Call | None:
    """Return the next call, or None if the client has disconnected between two calls."""
    deadline = time.monotonic() + IDLE
    while (body := receiver.next()) is None:
        try:
            data = stream.receive_some(receiver.wanted, deadline)
        except ConnectionResetError:
            data = b""
        if not data:
            receiver.end()
            return None
        receiver.feed(data)
    return Call.decode(body, receiver.size)


def _refusal(error: wire.WireError) -> str:
    if isinstance(error, wire.Oversized):
        return "oversized"
    return "replayed" if isinstance(error, wire.Replayed) else "malformed"
