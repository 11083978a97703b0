"""Repeats one call on many servers, over a connection to each, in one thread.

A server that answers is called again at once, so a call should wait on the server until there is something to say. A
thousand servers cost one thread and one descriptor each. A connection that fails is made again after a pause.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable

from transom_cli.rpc import wire
from transom_cli.rpc.verbs import Call, Fields, Result

CONNECT = 3.0  # seconds from the connection to the server's proof
REPLY = 10.0  # seconds for a reply
PAUSES = (0.25, 5.0)  # seconds before a connection is made again: the first pause, doubled up to the longest
AT_ONCE = 128  # connections made at the same time
SWEEP = 0.25  # seconds between two looks for connections to make and to give up
_PIECE = 1 << 16

Where = Callable[[str], "tuple[str, int] | None"]


class Poller:
    """Calls ``names`` until `stop`.

    Args:
        where: a server's IP address and port; None if unknown yet. Called in this thread, as are the next two.
        request: the next call to this server; None to pause until `SWEEP` seconds later.
        answered: gets each answer. After an error the connection is made again, following a pause.
    """

    def __init__(
        self,
        secret: bytes,
        names: Iterable[str],
        identity: Callable[[str], str],
        where: Where,
        request: Callable[[str], Call | None],
        answered: Callable[[str, Fields], None],
    ) -> None:
        self._secret, self._identity, self._where = secret, identity, where
        self._request, self._answered = request, answered
        self._selector = selectors.DefaultSelector()
        self._lines: dict[str, _Line] = {}
        self._idle: dict[str, tuple[float, float]] = dict.fromkeys(names, (0.0, PAUSES[0]))  # when due, next pause
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rpc-poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and end the thread."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(CONNECT)

    def _run(self) -> None:
        swept = float("-inf")
        while not self._end.is_set():
            now = time.monotonic()
            if now - swept >= SWEEP:
                swept = now
                self._sweep(now)
            for key, _ in self._selector.select(SWEEP):
                self._advance(key.data)
        for line in self._lines.values():
            line.sock.close()
        self._selector.close()

    def _sweep(self, now: float) -> None:
        for line in [one for one in self._lines.values() if now >= one.deadline]:
            self._drop(line)
        for line in [one for one in self._lines.values() if one.paused]:
            self._call(line)
        making = sum(one.channel is None or not one.proven for one in self._lines.values())
        for name, (due, pause) in list(self._idle.items()):
            if making >= AT_ONCE:
                return
            if now >= due:
                making += self._connect(name, now, pause)

    def _connect(self, name: str, now: float, pause: float) -> bool:
        self._idle[name] = now + pause, min(PAUSES[1], 2 * pause)
        address = self._where(name)
        if address is None:
            self._idle[name] = now + pause, pause  # it is starting
            return False
        try:
            line = _Line(name, address, wire.Endpoint(wire.CLIENT, self._secret, self._identity(name)), now)
        except OSError:
            return False
        self._idle.pop(name)
        self._lines[name] = line
        line.pause = min(PAUSES[1], 2 * pause)
        self._selector.register(line.sock, selectors.EVENT_WRITE, line)
        return True

    def _advance(self, line: _Line) -> None:
        try:
            if line.connecting:
                line.greet()
                self._selector.modify(line.sock, selectors.EVENT_READ, line)
                return
            for answer in line.receive():
                if answer == {}:
                    raise ConnectionAbortedError("the call failed")  # do not repeat it at once, without end
                if answer is not None:
                    line.pause = PAUSES[0]
                    self._answered(line.name, answer)
                self._call(line)
        except (OSError, wire.WireError):
            self._drop(line)

    def _call(self, line: _Line) -> None:
        call = self._request(line.name)
        line.paused = call is None
        try:
            if call is None:
                line.deadline = float("inf")
            else:
                line.call(call)
        except (OSError, wire.WireError):
            self._drop(line)

    def _drop(self, line: _Line) -> None:
        if self._lines.get(line.name) is not line:
            return
        del self._lines[line.name]
        self._selector.unregister(line.sock)
        line.sock.close()
        self._idle[line.name] = time.monotonic() + line.pause, line.pause


class _Line:
    """A connection: connecting, then the handshake of `wire`, then one call after the other."""

    def __init__(self, name: str, address: tuple[str, int], endpoint: wire.Endpoint, now: float) -> None:
        """Raises OSError."""
        self.name, self.deadline, self.pause = name, now + CONNECT, PAUSES[0]
        self.connecting, self.proven, self.paused = True, False, False
        self.channel: wire.Channel | None = None
        self._endpoint, self._nonce = endpoint, os.urandom(wire.NONCE_BYTES)
        self._received = bytearray()
        self.sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        try:
            self.sock.connect(address)
        except BlockingIOError:
            pass
        except BaseException:
            self.sock.close()
            raise

    def greet(self) -> None:
        """Send our nonce as soon as the connection is there. Raises OSError."""
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self.connecting = False
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(wire.hello(self._nonce))

    def call(self, call: Call) -> None:
        assert self.channel is not None
        self.deadline = time.monotonic() + REPLY
        self._send(self.channel.sender.frame(call.encode()))

    def receive(self) -> list[Fields | None]:
        """Return what has arrived: None for the server's proof, {} for an error of the call.

        Raises OSError and WireError.
        """
        try:
            data = self.sock.recv(_PIECE)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the peer closed the connection")
        if self.channel is not None and self.proven:
            return self._replies(data)
        self._received += data
        if self.channel is None and len(self._received) >= wire.HELLO_BYTES:
            hello, self._received = bytes(self._received[: wire.HELLO_BYTES]), self._received[wire.HELLO_BYTES :]
            self.channel = self._endpoint.pair(self._nonce, wire.read_hello(hello))
            self._send(self.channel.proof)
        if self.channel is None or len(self._received) < wire.PROOF_BYTES:
            return []
        self.channel.check(bytes(self._received))  # a server sends nothing more before the first call
        self.proven = True
        return [None]

    def _replies(self, data: bytes) -> list[Fields | None]:
        assert self.channel is not None
        self.channel.receiver.feed(data)
        found: list[Fields | None] = []
        while (body := self.channel.receiver.next()) is not None:
            result = Result.decode(body)
            found.append(result.answer if result.ok else {})
        return found

    def _send(self, data: bytes) -> None:
        """A message of at most some kilobytes fits into the socket's buffer, unless the server reads nothing."""
        if self.sock.send(data) != len(data):
            raise TimeoutError("the server does not read")
