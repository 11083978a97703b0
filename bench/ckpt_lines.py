"""Measure the transfer between two processes over loopback: GB (10^9 bytes) per second. No torch.

    python bench/ckpt_lines.py [--bytes 1073741824] [--repeats 5]

`socket`: only sendall and recv_into, in pieces of the same size. `line`: the same bytes over a connection between
snapshot daemons, each piece authenticated and verified. `two lines`: two threads of one process use one daemon at the
same time. Medians.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection

from transom_cli.ckpt.snapshot.peers import make_hash
from transom_cli.rpc.bulk import PIECE
from transom_cli.rpc.client import Client
from transom_cli.rpc.server import Server
from transom_cli.rpc.verbs import Call, Reply

SECRET, WHO, HERE = bytes(32), "bench", "127.0.0.1"
PATIENCE = 120.0


def touched(size: int) -> memoryview:
    """Anonymous memory, on huge pages where the kernel gives them, with something in each page."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    block = os.urandom(1 << 20)
    for at in range(0, size, len(block)):
        memory[at : at + len(block)] = block[: size - at]
    return memoryview(memory)


def answer(size: int, ports: Connection) -> None:
    """The other process: a holder, and a plain socket that sends all for each byte that it gets."""
    memory = touched(size)

    def handle(call: Call) -> Reply:
        return Reply(bulk=[memory[: size // 2 if call.verb == "half" else size]])

    plain = socket.create_server((HERE, 0))
    server = Server(SECRET, WHO, frozenset({HERE}), handle, make_hash=make_hash)
    ports.send((server.start(HERE), plain.getsockname()[1]))
    peer, _ = plain.accept()
    while peer.recv(1):
        for at in range(0, size, PIECE):
            peer.sendall(memory[at : at + PIECE])


def read_plain(sock: socket.socket, into: memoryview) -> None:
    sock.sendall(b"1")
    at = 0
    while at < len(into):
        at += sock.recv_into(into[at : at + PIECE], 0, socket.MSG_WAITALL)


def speed(size: int, repeats: int, act: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats + 1):  # the first is not counted
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return size / statistics.median(times[1:]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="[1073741824]")
    parser.add_argument("--repeats", type=int, default=5, help="[5]")
    args = parser.parse_args()
    size: int = args.bytes
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer, args=(size, theirs), daemon=True)
    process.start()
    port, plain = ours.recv()
    into = touched(size)
    halves = [into[: size // 2], into[size // 2 :]]
    with socket.create_connection((HERE, plain)) as sock, ThreadPoolExecutor(2) as pool:
        print(f"socket     {speed(size, args.repeats, partial(read_plain, sock, into)):.2f} GB/s")
        lines = [Client.connect(HERE, port, SECRET, WHO, PATIENCE, make_hash=make_hash) for _ in halves]
        ask = partial(lines[0].call, "all", PATIENCE, into)
        print(f"line       {speed(size, args.repeats, ask):.2f} GB/s")

        def both() -> None:
            list(pool.map(lambda line, half: line.call("half", PATIENCE, half), lines, halves))

        print(f"two lines  {speed(size, args.repeats, both):.2f} GB/s together")


if __name__ == "__main__":
    main()
