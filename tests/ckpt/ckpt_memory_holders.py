"""Getting at the snapshot daemon of a directory, for tests: its process, and the memory that it keeps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from pathlib import Path
from typing import NoReturn

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.snapshot.client import SOCKET, folder_prefix
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.local import connect


def daemon_path(directory: Path) -> str:
    """Where the newest daemon of that directory listens, found by its name: the directory may be gone."""
    folders = Path("/dev/shm").glob(f"{folder_prefix(directory)}-*")
    return f"{max(folders, key=lambda path: path.stat().st_mtime, default=directory)}/{SOCKET}"


def holder_pid(directory: Path) -> int:
    """Of the process that listens for that directory. Raises OSError where there is none."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with line:
        line.connect(daemon_path(directory))
        raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[0])


def end_holder(directory: Path) -> None:
    with contextlib.suppress(OSError, RpcError):
        line = connect(daemon_path(directory))
        line.call("end")
        line.close()


def memory_of(pid: int) -> list[Path]:
    """The snapshots' memory that a daemon keeps, as files that the same user can open and write."""
    found: dict[int, Path] = {}  # by inode: a mapping has a descriptor of its own
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:transom-snapshot"):
                found[link.stat().st_ino] = link
    return sorted(found.values(), key=lambda link: int(link.name))


def die() -> NoReturn:
    """As kill -9 from outside: nothing is put in order."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def abandon(trainer: Checkpointer) -> None:
    """Leave it as a kill would: nothing more is saved, and its daemon keeps what it has."""
    trainer._saver.settle()
    trainer._saver.wait_durable()
    trainer._saver._background.close()
    trainer._saver._stager.close()
    trainer._snapshots.close(durable=False)
