"""A firewall around a sandbox, made of a network namespace. Needs root, `ip` and `tc`."""

import os
import shutil
import subprocess

LOOPBACK = "127.0.0.1"
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
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        for address in (self.controller, self.nodes):
            run("ip", "-n", self.space, "addr", "add", f"{address}/29", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", self.space, "link", "set", device, "up")
        run("ip", "addr", "add", f"{self.outside}/29", "dev", self._link)
        run("ip", "link", "set", self._link, "up")
        run("ip", "neigh", "replace", self.nodes, "lladdr", NOBODY, "dev", self._link, "nud", "permanent")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.space], check=False, capture_output=True)


def run(*command: str) -> None:
    """Run a command. Raises RuntimeError with its error output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
