"""A node behind a slow link: everything that it sends and receives arrives some milliseconds late.

This kernel has no netem, so the node's interface becomes a tap device, and two threads carry each frame between it and
the link, `seconds` late. Frames must be complete, with their checksums, so offloads of the link are switched off.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import from_tests  # noqa: F401
from netns import Network

_TUNSETIFF, _TAP = 0x400454CA, 0x0002 | 0x1000  # IFF_TAP, IFF_NO_PI
_SIOCETHTOOL = 0x8946
_OFF = (0x17, 0x19, 0x1F, 0x24, 0x2C)  # ETHTOOL_STXCSUM, SSG, STSO, SGSO, SGRO
_CLONE_NEWNET = 0x40000000
_EVERY = 0x0003  # ETH_P_ALL
_WIRE = ("addr flush dev eth0", "link set eth0 down", "link set eth0 name wire0", "link set wire0 up promisc on")
_BACK = ("link del eth0", "link set wire0 down", "link set wire0 name eth0", "link set eth0 up promisc off")

T = TypeVar("T")


class Delay:
    """Until `end`. The node's other faults of the network are kept off its interface meanwhile."""

    def __init__(self, network: Network, node: str, seconds: float) -> None:
        self._network, self._node, self._seconds = network, node, seconds
        self._over = threading.Event()
        self._address = network.addresses[node]
        self._do = ["ip", "-n", network.spaces[node]]
        for words in _WIRE:
            subprocess.run([*self._do, *words.split()], check=True)
        _inside(network.switch, lambda: _offload(network.ports[node], 0))
        self._tap, self._wire = _inside(network.spaces[node], self._made)
        hardware = self._hardware()
        subprocess.run([*self._do, "link", "set", "eth0", "address", hardware, "up"], check=True)
        subprocess.run([*self._do, "addr", "add", f"{self._address}/16", "dev", "eth0"], check=True)
        self._carry(lambda: os.read(self._tap, 65536), self._wire.send)
        self._carry(lambda: self._wire.recv(65536), lambda frame: os.write(self._tap, frame))

    def end(self) -> None:
        self._over.set()
        for close in (lambda: os.close(self._tap), self._wire.close):
            with contextlib.suppress(OSError):
                close()
        _inside(self._network.switch, lambda: _offload(self._network.ports[self._node], 1))
        for words in (*_BACK, f"addr add {self._address}/16 dev eth0"):
            subprocess.run([*self._do, *words.split()], check=False, capture_output=True)

    def _made(self) -> tuple[int, socket.socket]:
        tap = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP))
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY))
        wire.bind(("wire0", 0))
        return tap, wire

    def _hardware(self) -> str:
        """The wire's own address: the tap takes it over, so that the switch and the others know it."""
        words = [*self._do, "-o", "link", "show", "wire0"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        return said[said.index("link/ether") + 1]

    def _carry(self, take: Callable[[], bytes], give: Callable[[bytes], object]) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def taking() -> None:
            with contextlib.suppress(OSError):
                while not self._over.is_set():
                    frame = take()
                    waiting.put((time.monotonic() + self._seconds, frame))

        def giving() -> None:
            while not self._over.is_set():
                at, frame = waiting.get()
                time.sleep(max(0.0, at - time.monotonic()))
                with contextlib.suppress(OSError):
                    give(frame)

        for work in (taking, giving):
            threading.Thread(target=work, daemon=True).start()


def why_not() -> str:
    return "" if Path("/dev/net/tun").exists() else "no /dev/net/tun"


def _inside(space: str, do: Callable[[], T]) -> T:
    """In this network namespace: in a thread of its own, which enters it and ends there."""
    done: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            with Path(f"/run/netns/{space}").open("rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            done.put(do())
        except BaseException as error:  # raised in the caller's thread
            done.put(error)

    threading.Thread(target=work, daemon=True).start()
    found = done.get(timeout=10.0)
    if isinstance(found, BaseException):
        raise found
    return found


def _offload(device: str, on: int) -> None:
    """Without it frames go out whole, no longer than the wire's, with checksums."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for what in _OFF:
            value = ctypes.create_string_buffer(struct.pack("II", what, on))
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            with contextlib.suppress(OSError):  # one that the device has not got
                fcntl.ioctl(asker, _SIOCETHTOOL, request)
