"""Where a node's snapshot daemon listens, and how a process connects to it or starts it."""

import os
import subprocess
import threading
import time
from pathlib import Path
from zlib import crc32

from transom_cli.heartbeat import paths
from transom_cli.rpc.errors import Unreachable
from transom_cli.rpc.local import Client, connect
from transom_cli.start import own

SOCKET = "memory"  # in the node's beats folder
LINGER = "TRANSOM_MEMORY_LINGER"
START = 20.0  # seconds for a daemon to start on a busy node

# The variables by which a launch's processes are recognized (agent.processes): a daemon outlives the launch that
# started it.
_NOT_INHERITED = frozenset(
    {paths.ROLE, paths.ATTEMPT_DIR, paths.LAUNCH, paths.BEAT_DIR, paths.BEAT_PLACE, paths.ATTEMPT}
)


def agents_path(beats_dir: str) -> str:
    """Return where the daemon of a node's agent listens."""
    return f"{beats_dir}/{SOCKET}"


def own_path(directory: Path, token: str) -> str:
    """Return where a daemon listens that ranks start: one per checkpoints directory, user and host.

    token: the directory's (`rendezvous.token`). Others cannot read it, so they cannot take the name.
    """
    return f"{paths.private_folder(folder_prefix(directory), token[:16])}/{SOCKET}"


def living_path(directory: Path, token: str) -> str | None:
    """Return `own_path` if such a daemon has been there. Creates nothing."""
    folder = paths.private_folder_there(folder_prefix(directory), token[:16])
    return None if folder is None else f"{folder}/{SOCKET}"


def folder_prefix(directory: Path) -> str:
    return f"transom-{os.getuid()}-memory-{crc32(os.fsencode(directory)):08x}"


def start(path: str, *more: str) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own, out of reach of Ctrl-C. If one listens already, it ends at once.

    It has none of our streams, because a reader of those would wait for it. Its log is beside its socket.
    """
    env = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    env.setdefault("MALLOC_ARENA_MAX", "2")  # with an arena for each of many short threads, its memory would grow
    paths.make_private(os.path.dirname(path))  # noqa: PTH120 - a daemon that has just ended has removed it
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            own("transom_cli.ckpt.snapshot.daemon", "--socket", path, *more),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, env=env,
        )  # fmt: skip
    finally:
        os.close(log)


def reach(path: str, patience: float) -> Client:
    """Connect within `patience` seconds. Raises Unreachable."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return connect(path)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise Unreachable("No snapshot daemon runs on this node", error.strerror or str(error)) from error
        time.sleep(0.02)


def reach_or_start(path: str) -> Client:
    """Connect, and start a daemon if necessary. Raises Unreachable.

    A daemon that is just ending keeps the next one from starting. Then this starts one again.
    """
    linger = os.environ.get(LINGER)
    starting: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + START
    while True:
        try:
            return connect(path)
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() >= deadline:
            raise Unreachable(f"The snapshot daemon did not start within {START:g} s", why)
        if starting is None or starting.poll() is not None:
            try:
                starting = start(path, *(["--linger", linger] if linger else []))
            except OSError as error:
                raise Unreachable("Cannot start a snapshot daemon", error.strerror or str(error)) from error
            threading.Thread(target=starting.wait, daemon=True).start()  # leave no zombie
        time.sleep(0.02)
