"""Who is in a group with a probe process, and under which addresses it talks to them and they to it."""

from __future__ import annotations

import contextlib
import socket

from transom_cli.health.probe.shapes import Group

Member = tuple[str, int]  # node, number of the device


def members_of(group: Group, index: int) -> tuple[Member, ...]:
    """In the order of their ranks. With rails, device `index` of each node; else all devices of all nodes."""
    devices = (index,) if group.rails else range(group.devices)
    return tuple((node, device) for node in group.nodes for device in devices)


def source_address(address: str) -> str:
    """The address of ours from which the system would talk to that one; nothing is sent. OSError without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def addresses() -> tuple[str, ...]:
    """Under which others may reach this host, best first: that of its default route, or its name's; its loopback."""
    found = []
    for address in ("192.0.2.1", "2001:db8::1"):  # for documentation: nobody's, so that the default route is asked
        with contextlib.suppress(OSError):
            found.append(source_address(address))
    if not found:
        with contextlib.suppress(OSError):
            known = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
            found += [str(entry[4][0]) for entry in known]
    own = [address for address in dict.fromkeys(found) if not address.startswith("127.") and address != "::1"]
    return (*own, "127.0.0.1")
