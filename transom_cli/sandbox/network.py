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

LOOPBACK = "127.0.0.1"
_NUMBERS = itertools.count()  # of this process's networks
NOBODY = "02:00:00:00:00:fe"  # a hardware address that no node has


def why_not() -> str:
    """Return why no network can be created on this machine, or ""."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"no {' and no '.join(missing)} (package iproute2)"
    name = f"try{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    pair = ["ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1"]
    tried = subprocess.run(pair, capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], check=False)
    return f"no virtual links: {tried.stderr.strip()}" if tried.returncode else ""


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
        _run("ip", "-n", self.spaces[src], "neigh", "replace", self.addresses[dst], "lladdr", NOBODY,
             "dev", "eth0", "nud", "permanent")  # fmt: skip

    def lose(self, src: str, dst: str, probability: float) -> None:
        """Drop each packet from src to dst with this probability. Needs `iptables`."""
        _run("ip", "netns", "exec", self.spaces[src], "iptables", "-A", "OUTPUT", "-d", self.addresses[dst], "-m",
             "statistic", "--mode", "random", "--probability", str(probability), "-j", "DROP")  # fmt: skip

    def throttle(self, src: str, dst: str, rate: str) -> None:
        """Limit what src sends to dst to `rate` ("20mbit")."""
        space = self.spaces[src]
        if src not in self._shaped:
            _run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "0")
        number = self._shaped[src] = self._shaped.get(src, 0) + 1
        _run("tc", "-n", space, "class", "add", "dev", "eth0", "parent", "1:", "classid", f"1:{number:x}", "htb",
             "rate", rate, "burst", "16k", "cburst", "16k", "quantum", "1600")  # fmt: skip
        _run("tc", "-n", space, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32",
             "match", "ip", "dst", f"{self.addresses[dst]}/32", "flowid", f"1:{number:x}")  # fmt: skip

    def heal(self) -> None:
        for node, space in self.spaces.items():
            if self._shaped.pop(node, 0):
                _run("tc", "-n", space, "qdisc", "del", "dev", "eth0", "root")
            _run("ip", "-n", space, "neigh", "flush", "dev", "eth0", "nud", "permanent")
            if shutil.which("iptables"):
                _run("ip", "netns", "exec", space, "iptables", "-F", "OUTPUT")

    def _make(self) -> None:
        _run("ip", "netns", "add", self.switch)
        _run("ip", "-n", self.switch, "link", "add", "sw", "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "sw", "up")
        for node, space in self.spaces.items():
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", self.ports[node], "netns",
                 self.switch)  # fmt: skip
            _run("ip", "-n", self.switch, "link", "set", self.ports[node], "master", "sw", "up")
            _run("ip", "-n", space, "addr", "add", f"{self.addresses[node]}/16", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", device, "up")

    def _remove(self) -> None:
        for space in (*self.spaces.values(), self.switch):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


class Wall:
    """A firewall around a cluster: its daemons have a network namespace of their own.

    From outside, slurmctld answers at `controller`, and packets to `nodes` are dropped. From inside, all of `outside`
    can be reached. Addresses follow from the cluster's unique name.
    """

    def __init__(self, cluster: str) -> None:
        token = cluster[-8:]
        self.space, self._link = f"wall-{token}", f"w{token}"
        second, third = int(token[:2], 16), int(token[2:4], 16) & ~7
        self.outside, self.controller, self.nodes = (f"10.79.{second}.{third + i}" for i in (1, 2, 3))

    @property
    def prefix(self) -> list[str]:
        """The command prefix that starts a daemon inside."""
        return ["nsenter", f"--net=/run/netns/{self.space}"]

    def build(self) -> None:
        _run("ip", "netns", "add", self.space)
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        for address in (self.controller, self.nodes):
            _run("ip", "-n", self.space, "addr", "add", f"{address}/29", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", self.space, "link", "set", device, "up")
        _run("ip", "addr", "add", f"{self.outside}/29", "dev", self._link)
        _run("ip", "link", "set", self._link, "up")
        _run("ip", "neigh", "replace", self.nodes, "lladdr", NOBODY, "dev", self._link, "nud", "permanent")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.space], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
