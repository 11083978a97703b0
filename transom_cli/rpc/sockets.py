"""TCP ports and peers of this host: a port that nobody can guess, and the user at the other end of a connection."""

import contextlib
import ipaddress
import secrets
import socket
import struct
from pathlib import Path

PORTS = range(10000, 32768)  # below those that the kernel gives to connections (ip_local_port_range)
_TRIES = 100
_TABLES = ("tcp", "tcp6")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def free_port() -> int:
    """Return a random port that no program uses on any address of this host. Raises OSError if it finds none."""
    for _ in range(_TRIES):
        port = secrets.choice(PORTS)
        if is_free(port):
            return port
    with _listen(0) as sock:  # somebody holds most of them
        return int(sock.getsockname()[1])


def is_free(port: int) -> bool:
    """Return whether a program could listen on the port now. Ended connections of an earlier one do not count."""
    try:
        _listen(port).close()
    except OSError:
        return False
    return True


def _listen(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def normal(address: str) -> Address:
    """Return one form per address: without interface name, and IPv4 if it came through an IPv6 socket."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def peer_user(sock: socket.socket, tables: str = "/proc/net") -> int | None:
    """Return the user at the other end of a TCP connection, from the kernel's list of this host's sockets.

    0 is root, or a socket that its process has closed. None: the other end is on another host, or the list is
    unreadable. Raises OSError if the connection is gone.
    """
    here, there = sock.getsockname(), sock.getpeername()
    if not _on_this_host(normal(there[0])):
        return None
    ends = {(f"{theirs}:{there[1]:04X}", f"{ours}:{here[1]:04X}") for theirs, ours in _pairs(there[0], here[0])}
    for name in _TABLES:
        with contextlib.suppress(OSError), Path(tables, name).open() as table:
            for line in table:
                fields = line.split(maxsplit=8)
                if tuple(fields[1:3]) in ends:
                    return int(fields[7])
    return None


def _on_this_host(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return address.is_link_local  # which binds with its interface only: let the list decide
    return True


def _pairs(there: str, here: str) -> list[tuple[str, str]]:
    """Both addresses as the list shows them: a client may use an IPv6 socket for an IPv4 address."""
    found = [normal(address).packed for address in (there, here)]
    forms = [found] if len(found[0]) == 16 else [found, [bytes(10) + b"\xff\xff" + one for one in found]]
    return [(_hex(theirs), _hex(ours)) for theirs, ours in forms]


def _hex(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
