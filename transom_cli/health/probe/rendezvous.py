"""Where the members of a group meet: each probe process runs a key-value store that others use over TCP.

torch has such a store too, but it resolves the names of connecting hosts, which takes 5 s each if the name service does
not answer: a node would be accused because of its name service. Every call here has a deadline.

A request is a line of JSON: {"set": key, "value": hex} or {"get": [keys], "wait": seconds}. The answer to a get,
{"values": [hex or null]}, comes when all keys exist or the time is over. The first line of a connection is the store's
password, which the probe processes get from the health run: other programs of the network set no keys.
"""

import contextlib
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from transom_cli.health.probe.messages import Device, Group

_PASSWORD = 64  # bytes of a password's line at most
TRANSFER = 1.0  # seconds beyond a request's own time for its answer to arrive


def members_of(group: Group, index: int) -> tuple[Device, ...]:
    """Return the group's members in rank order: with rails, device `index` of each node; otherwise all devices."""
    devices = (index,) if group.rails else range(group.devices)
    return tuple((node, device) for node in group.nodes for device in devices)


def source_address(address: str) -> str:
    """Return our own address on the route to `address`, without sending anything. Raises OSError without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def addresses() -> tuple[str, ...]:
    """Return addresses of this host, best first: of its default route, else of its name; then the loopback."""
    found = []
    for address in ("192.0.2.1", "2001:db8::1"):  # documentation addresses: routed by the default route
        with contextlib.suppress(OSError):
            found.append(source_address(address))
    if not found:
        with contextlib.suppress(OSError):
            known = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
            found += [str(entry[4][0]) for entry in known]
    own = [address for address in dict.fromkeys(found) if not address.startswith("127.") and address != "::1"]
    return (*own, "127.0.0.1")


class Store(Protocol):
    """seen_from: the address of this host that the store's host sees."""

    seen_from: str

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, keys: Sequence[str], wait: float) -> list[bytes | None]:
        """Return the values once all exist, at the latest after `wait` seconds; None for those that do not."""


class OwnStore:
    """This process's store, served on `port` of all addresses until the process ends."""

    seen_from = "127.0.0.1"

    def __init__(self) -> None:
        self.password = secrets.token_hex(16)
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        handler = type("Handler", (_Handler,), {"store": self})
        server = _Server(("", 0), handler)
        self.port: int = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, keys: Sequence[str], wait: float) -> list[bytes | None]:
        with self._changed:
            self._changed.wait_for(lambda: all(key in self._values for key in keys), wait)
            return [self._values.get(key) for key in keys]


class RemoteStore:
    """Another process's store, over one connection. Raises OSError if it does not answer in time."""

    def __init__(self, host: str, port: int, password: str, timeout: float) -> None:
        self._timeout = timeout
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(f"{password}\n".encode())
        self.seen_from: str = self._socket.getsockname()[0]
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        self._call({"set": key, "value": value.hex()}, self._timeout)

    def get(self, keys: Sequence[str], wait: float) -> list[bytes | None]:
        values = self._call({"get": list(keys), "wait": wait}, wait + TRANSFER)["values"]
        return [None if value is None else bytes.fromhex(value) for value in values]

    def close(self) -> None:
        """Close the connection; a call in another thread ends with an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _call(self, message: dict[str, Any], timeout: float) -> Any:
        with self._lock:
            self._socket.settimeout(timeout)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the other side closed the connection")
        return json.loads(line)


class _Server(socketserver.ThreadingTCPServer):
    """Serves IPv6 and IPv4 alike, if the host has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True
    request_queue_size = 1024  # all members may come at once

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or send something else."""


class _Handler(socketserver.StreamRequestHandler):
    store: OwnStore
    disable_nagle_algorithm = True

    def handle(self) -> None:
        password = self.rfile.readline(_PASSWORD).decode(errors="replace").rstrip("\n")
        if not secrets.compare_digest(password.encode(), self.store.password.encode()):
            return
        for line in self.rfile:
            request = json.loads(line)
            answer: dict[str, Any] = {}
            if "set" in request:
                self.store.set(request["set"], bytes.fromhex(request["value"]))
            else:
                values = self.store.get(request["get"], float(request["wait"]))
                answer["values"] = [None if value is None else value.hex() for value in values]
            self.wfile.write(json.dumps(answer).encode() + b"\n")
