"""Two or more gloo ranks, each a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from rank_server import Forked


def two_ranks(worker: str, *words: str) -> list[tuple[str, str]]:
    """Run a program of this folder as ranks 0 and 1, which must end well. Returns stdout and stderr of each."""
    return several_ranks(2, worker, *words)


def several_ranks(
    size: int, worker: str, *words: str, codes: tuple[int, ...] = (0,), popen: type[subprocess.Popen[str]] = Forked
) -> list[tuple[str, str]]:
    """The same for `size` ranks, which must all end with one of the exit codes. popen: how to start a rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        popen(
            [sys.executable, str(Path(__file__).with_name(worker)), *words],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        done = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode in codes for rank in ranks), "\n".join(err for _, err in done)
    return done
