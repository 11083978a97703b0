"""Where the members of a group meet: each probe process keeps a board that others read and write over TCP.

torch has such a store too, but it asks the name service for the names of those who connect, which takes 5 s for each
where that does not answer: a node would be blamed for its name service. Here every call ends in its time.

A request is a line of JSON, {"set": key, "value": hex} or {"get": [keys], "wait": seconds}; the answer to the latter,
{"values": [hex or null]}, comes when all keys are there, or when the time is over.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Sequence
from typing import Any, Protocol

QUIET = 1.0  # seconds beyond the time of a request that its answer may be on its way


class Board(Protocol):
    """seen_from: the address of this host from which it reads and writes."""

    seen_from: str

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, keys: Sequence[str], wait: float) -> list[bytes | None]:
        """Their values as soon as all are there, at the latest after `wait` seconds; None for those that are not."""


class OwnBoard:
    """This process's, served on `port` of all addresses until the process ends."""

    seen_from = "127.0.0.1"

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._news = threading.Condition()
        handler = type("Handler", (_Handler,), {"board": self})
        server = _Server(("", 0), handler)
        self.port: int = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def set(self, key: str, value: bytes) -> None:
        with self._news:
            self._values[key] = value
            self._news.notify_all()

    def get(self, keys: Sequence[str], wait: float) -> list[bytes | None]:
        with self._news:
            self._news.wait_for(lambda: all(key in self._values for key in keys), wait)
            return [self._values.get(key) for key in keys]


class TheirBoard:
    """Another process's, over one connection. OSError when it cannot be reached, or does not answer in time."""

    def __init__(self, host: str, port: int, patience: float) -> None:
        self._patience = patience
        self._socket = socket.create_connection((host, port), timeout=patience)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.seen_from: str = self._socket.getsockname()[0]
        self._lines = self._socket.makefile("rb")
        self._turn = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        self._ask({"set": key, "value": value.hex()}, self._patience)

    def get(self, keys: Sequence[str], wait: float) -> list[bytes | None]:
        values = self._ask({"get": list(keys), "wait": wait}, wait + QUIET)["values"]
        return [None if value is None else bytes.fromhex(value) for value in values]

    def close(self) -> None:
        """A call that another thread is in ends with an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _ask(self, message: dict[str, Any], patience: float) -> Any:
        with self._turn:
            self._socket.settimeout(patience)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the other side has closed the connection")
        return json.loads(line)


class _Server(socketserver.ThreadingTCPServer):
    """For IPv6 and IPv4 alike where the host has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True
    request_queue_size = 1024  # all may come at once

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever broke off, or talked of something else, knows best why."""


class _Handler(socketserver.StreamRequestHandler):
    board: OwnBoard
    disable_nagle_algorithm = True

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            told: dict[str, Any] = {}
            if "set" in asked:
                self.board.set(asked["set"], bytes.fromhex(asked["value"]))
            else:
                values = self.board.get(asked["get"], float(asked["wait"]))
                told["values"] = [None if value is None else value.hex() for value in values]
            self.wfile.write(json.dumps(told).encode() + b"\n")
