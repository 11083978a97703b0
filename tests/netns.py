"""A network of nodes on one machine, with faults of single links: a namespace per node, and a switch.

Needs root, `ip` and `tc`. The switch has its own namespace, so the machine's network is not affected. `Network` is a
context manager. Faults have a direction, from one node to another, and last until `heal`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

from transom_cli.sandbox.network import NOBODY, run, why_not

__all__ = ["NOBODY", "Network", "why_not"]

_NUMBERS = itertools.count()  # of this process's networks


class Network:
    """By node: `addresses`, `spaces` (namespaces), `prefixes` (the command that runs something there), `ports` of the
    switch."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        name = f"tsm{os.getpid()}-{next(_NUMBERS)}"
        self.switch = f"{name}-sw"
        self.spaces = {node: f"{name}-{i}" for i, node in enumerate(nodes)}
        self.ports = {node: f"p{i}" for i, node in enumerate(nodes)}
        self.addresses = {node: f"10.77.{i // 250}.{i % 250 + 1}" for i, node in enumerate(nodes)}
        self.prefixes = {node: ("ip", "netns", "exec", space) for node, space in self.spaces.items()}
        self._shaped: dict[str, int] = {}

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def drop(self, src: str, dst: str) -> None:
        """Drop silently what src sends to dst: it is addressed to hardware that does not exist."""
        run("ip", "-n", self.spaces[src], "neigh", "replace", self.addresses[dst], "lladdr", NOBODY,
             "dev", "eth0", "nud", "permanent")  # fmt: skip

    def lose(self, src: str, dst: str, probability: float) -> None:
        """Drop each packet from src to dst with this probability. Needs `iptables`."""
        run("ip", "netns", "exec", self.spaces[src], "iptables", "-A", "OUTPUT", "-d", self.addresses[dst], "-m",
             "statistic", "--mode", "random", "--probability", str(probability), "-j", "DROP")  # fmt: skip

    def throttle(self, src: str, dst: str, rate: str) -> None:
        """Limit what src sends to dst to `rate` ("20mbit")."""
        space = self.spaces[src]
        if src not in self._shaped:
            run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "0")
        number = self._shaped[src] = self._shaped.get(src, 0) + 1
        run("tc", "-n", space, "class", "add", "dev", "eth0", "parent", "1:", "classid", f"1:{number:x}", "htb",
             "rate", rate, "burst", "16k", "cburst", "16k", "quantum", "1600")  # fmt: skip
        run("tc", "-n", space, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32",
             "match", "ip", "dst", f"{self.addresses[dst]}/32", "flowid", f"1:{number:x}")  # fmt: skip

    def heal(self) -> None:
        for node, space in self.spaces.items():
            if self._shaped.pop(node, 0):
                run("tc", "-n", space, "qdisc", "del", "dev", "eth0", "root")
            run("ip", "-n", space, "neigh", "flush", "dev", "eth0", "nud", "permanent")
            if shutil.which("iptables"):
                run("ip", "netns", "exec", space, "iptables", "-F", "OUTPUT")

    def _make(self) -> None:
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "sw", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "sw", "up")
        for node, space in self.spaces.items():
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", self.ports[node], "netns",
                 self.switch)  # fmt: skip
            run("ip", "-n", self.switch, "link", "set", self.ports[node], "master", "sw", "up")
            run("ip", "-n", space, "addr", "add", f"{self.addresses[node]}/16", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", space, "link", "set", device, "up")

    def _remove(self) -> None:
        for space in (*self.spaces.values(), self.switch):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
