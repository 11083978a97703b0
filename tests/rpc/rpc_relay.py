"""A man in the middle: forwards a connection, flips one byte of it, or stops at one; still holding both ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

_HERE = "127.0.0.1"


class Relay:
    """Between one client and the server at ``port``.

    ``flip`` and ``stop`` are places in what goes to the client (or to the server, with ``to_server``), from 0 at the
    connection's first byte; ``mask`` says which bits are flipped.
    """

    def __init__(
        self, port: int, flip: int | None = None, mask: int = 1, stop: int | None = None, to_server: bool = False
    ) -> None:
        self._target, self._flip, self._mask, self._stop, self._to_server = port, flip, mask, stop, to_server
        self._listener = socket.create_server((_HERE, 0))
        self.port: int = self._listener.getsockname()[1]
        self.passed = [0, 0]  # bytes to the client, to the server
        self.stopped = threading.Event()
        self._over = threading.Event()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._take, daemon=True)]
        self._threads[0].start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            self._ends.append(client)
            server = socket.create_connection((_HERE, self._target))
            self._ends.append(server)
            back = threading.Thread(target=self._pump, args=(server, client, False), daemon=True)
            self._threads.append(back)
            back.start()
            self._pump(client, server, True)

    def _pump(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        ours = to_server == self._to_server
        buffer = bytearray(1 << 16)
        with contextlib.suppress(OSError):
            while count := source.recv_into(buffer):
                place = self.passed[to_server]
                if ours and self._flip is not None and place <= self._flip < place + count:
                    buffer[self._flip - place] ^= self._mask
                if ours and self._stop is not None and self._stop < place + count:
                    target.sendall(buffer[: self._stop - place])
                    self.stopped.set()
                    self._over.wait()
                    return
                self.passed[to_server] += count  # before the other end can have them: a test counts right after
                target.sendall(memoryview(buffer)[:count])
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        for end in [self._listener, *self._ends]:
            end.close()
