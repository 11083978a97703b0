"""Asks NCCL's RAS, which runs in each trainer since NCCL 2.24, how far the ranks are in their communicators.

RAS listens on localhost:28028, or where NCCL_RAS_ADDR says. It takes lines of text, and closes the connection after the
answer to `VERBOSE STATUS`. An NCCL that cannot write JSON (before 2.28) refuses that line and answers with text.
One process answers for the whole job, so two nodes ask: those of the first rank and the last one.
"""

import os
import socket
import time
from collections.abc import Collection

from transom_cli.supervise.agent import procfs

PORT = 28028
MOST = 8 << 20  # bytes of an answer
LEG = 3  # seconds that RAS waits for each process
_LISTENS = "0A"  # proc(5), tcp
_ASK = f"CLIENT PROTOCOL 2\nTIMEOUT {LEG}\nSET FORMAT json\nVERBOSE STATUS\n".encode()


def ask(ranks: Collection[tuple[int, int]], deadline: float) -> bytes:
    """Return the answer, until `deadline` (time.monotonic). b"" if no rank listens, or if other nodes ask.

    Args:
        ranks: the ranks of this node, and their process IDs.
    """
    env = procfs.environ(min(ranks)[1]) if ranks else {}
    numbers = {rank for rank, _ in ranks}
    host, _, port = env.get("NCCL_RAS_ADDR", "").rpartition(":")
    number = int(port) if port.isdecimal() and len(port) < 6 else PORT
    if not numbers & {0, _size(env) - 1} or not _is_ours(number, [pid for _, pid in ranks]):
        return b""
    answer = b""
    try:
        with socket.create_connection((host.strip("[]") or "localhost", number), _left(deadline)) as link:
            link.sendall(_ASK)
            while len(answer) < MOST:
                link.settimeout(_left(deadline))
                data = link.recv(1 << 16)
                if not data:
                    break
                answer += data
    except OSError:
        pass  # what has arrived is still of use
    return answer


def _left(deadline: float) -> float:
    return max(0.05, deadline - time.monotonic())


def world(pids: Collection[int]) -> int:
    """Return how many ranks the job of these has; 0 if unknown."""
    return _size(procfs.environ(min(pids))) if pids else 0


def _size(env: dict[str, str]) -> int:
    size = env.get("WORLD_SIZE", env.get("SLURM_NTASKS", ""))
    return int(size) if size.isdecimal() and len(size) < 9 else 0


def _is_ours(port: int, pids: Collection[int]) -> bool:
    """Whether one of these processes listens there: another job on this node may have been first."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as file:  # noqa: PTH123
                rows = [line.split() for line in file]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if len(row) > 9 and row[3] == _LISTENS and row[1].endswith(f":{port:04X}")}
    links = {f"socket:[{inode}]" for inode in inodes}
    return bool(links) and any(link in links for pid in pids for link in _links(pid))


def _links(pid: int) -> list[str]:
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115
    except OSError:
        pass  # it ends, or is not ours to read
    return found
