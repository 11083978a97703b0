"""Where beats live on a node, and the names of the environment variables by which a trainer finds them.

Launcher, agent, wrapper and trainer must agree without talking to each other, so that they all ask here. The folder
is node memory (`/dev/shm`): a beat costs no disk and no network, and dies with the node, as it should.

Everyone who uses the folder holds a shared `flock` on it. A folder on which an exclusive lock can be had is used by
nobody, so what an earlier attempt left behind is told from a living one without a pid file or a guess.

Imports stay few: the wrapper of every rank pays for them at its start.
"""
# pathlib and contextlib would double the start-up time of every rank's wrapper
# ruff: noqa: PTH100, PTH102, PTH106, PTH112, PTH116, PTH118, PTH119, PTH120, PTH208, SIM105

from __future__ import annotations

import fcntl
import os
import stat
from zlib import crc32

RUN_DIR = "TRANSOM_RUN_DIR"
ATTEMPT = "TRANSOM_ATTEMPT"
ATTEMPT_DIR = "TRANSOM_ATTEMPT_DIR"
LAUNCH = "TRANSOM_LAUNCH"
BEAT_DIR = "TRANSOM_BEAT_DIR"
WORLD_SIZE = "TRANSOM_WORLD_SIZE"
"""How many ranks were launched, where each rank is a task of Slurm's; compared at the first heartbeat (beats.world)."""
CHECKPOINT_DIR = "TRANSOM_CHECKPOINT_DIR"
MEMORY, AGENTS = "TRANSOM_MEMORY", "agent"
"""Who keeps the node's snapshots: with this value its agent; else the ranks start a process for that themselves."""

ROLE = "TRANSOM_ROLE"

FLIGHT = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
"""Where torch's flight recorder dumps to, by its older name, which every version knows, and by its newer one."""

AUTO_BEAT_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "auto")
"""Put in front of PYTHONPATH, this folder makes an unchanged trainer beat."""


def node_name() -> str:
    """This node as Slurm calls it (SLURMD_NODENAME), else the host's short name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def beats_dir(attempt_dir: str, node: str) -> str:
    """Path of the node's beats folder for the attempt that lives in `attempt_dir`; it is not made here.

    The attempt's name alone would not do: two clusters with a machine in common both have a job 1.
    The first base that is a writable folder and where the name is free or already ours: a name in a world-writable
    folder may have been taken by somebody else, whose folder must not be used. Raises OSError when there is none.
    """
    name = _beats_name(attempt_dir, node)
    for base in _bases():
        path = f"{base}/{name}"
        if os.access(base, os.W_OK | os.X_OK) and (_is_private(path) or not os.path.lexists(path)):
            return path
    raise OSError(f"no folder for beats: tried {name} in {', '.join(_bases())}")


def beats_dirs(attempt_dir: str) -> list[str]:
    """The attempt's beats folders on this machine: one, or none, or several where it plays several nodes."""
    start, found = _beats_name(attempt_dir, ""), []
    for base in _bases():
        try:
            names = os.listdir(base)
        except OSError:
            continue
        found += [f"{base}/{name}" for name in sorted(names) if name.startswith(start)]
    return [path for path in found if _is_private(path)]


def _beats_name(attempt_dir: str, node: str) -> str:
    attempt_dir = os.path.abspath(attempt_dir)
    place = crc32(os.fsencode(attempt_dir))
    return f"transom-{os.getuid()}-{os.path.basename(attempt_dir)}-{place:08x}-{node}"


def private_folder(name: str) -> str:
    """A folder of this user alone in node memory, made if need be; a name somebody else has taken is not used."""
    for base in _bases():
        path = f"{base}/{name}"
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        if _is_private(path):
            return path
    raise OSError(f"no private folder {name} in {', '.join(_bases())}")


def private_folder_there(name: str) -> str | None:
    """The one that `private_folder` has made, by whichever process."""
    return next((path for base in _bases() if _is_private(path := f"{base}/{name}")), None)


def flight_prefix(beats_dir: str, launch: int) -> str:
    """What the flight recorder's files of a launch begin with; torch adds the rank. They go with the beats folder.

    Plain files there whose names do not begin with `rank-` are left alone by whoever reads beats.
    """
    return f"{beats_dir}/flight-{launch}-"


def mark_torchrun(beats_dir: str, launch: int, node_id: str) -> None:
    """Leave word of which log is this node's: under torchrun it is one a node, by the node's number in the step."""
    os.close(os.open(f"{beats_dir}/torchrun-{launch}-{node_id}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def torchrun_nodes(beats_dir: str, launch: int) -> list[int]:
    """The node's numbers in the step of a launch under torchrun: one, or none where there is no torchrun."""
    start = f"torchrun-{launch}-"
    try:
        names = os.listdir(beats_dir)
    except OSError:
        return []
    return sorted(int(n[len(start) :]) for n in names if n.startswith(start) and n[len(start) :].isdecimal())


def flush_file(beats_dir: str, launch: int) -> str:
    """Where the node's agent tells a launch's ranks to make one more checkpoint (beats.flush)."""
    return f"{beats_dir}/flush-{launch}"


def listen_prefix(beats_dir: str, launch: int) -> str:
    """What the files begin with in which the ranks of a launch say that they listen for that; the rank follows."""
    return f"{beats_dir}/listen-{launch}-"


def own_launch() -> int:
    """This process's launch, by its environment. Raises ValueError for what is no number."""
    return int(os.environ.get(LAUNCH) or 0)


def own_rank() -> int:
    """This process's rank, by its environment. Raises ValueError for what is no number."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def enter(path: str) -> int:
    """Make the beats folder if need be (0700) and hold it: a descriptor with a shared lock, to be kept open.

    Raises OSError when the folder is not ours alone.
    """
    while True:
        if not os.path.isdir(path):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
        if not _is_private(path):
            raise PermissionError(f"{path} is not a private folder of this user")
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.stat(path), os.fstat(held)):
                return held
        except FileNotFoundError:
            pass
        os.close(held)  # swept away between mkdir and lock


def sweep(node: str, keep: str) -> list[str]:
    """Remove what this user's dead attempts left on this node; `keep` and everything still held stay. Returns paths."""
    prefix, suffix = f"transom-{os.getuid()}-", f"-{node}"
    removed = []
    for base in _bases():
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names:
            path = f"{base}/{name}"
            if name.startswith(prefix) and name.endswith(suffix) and path != keep and discard(path):
                removed.append(path)
    return removed


def discard(path: str) -> bool:
    """Remove a beats folder that nobody holds; False when it is held, is not ours, or is gone."""
    if not _is_private(path):
        return False
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir(held):
            os.unlink(name, dir_fd=held)
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def _bases() -> list[str]:
    bases = ["/dev/shm", os.environ.get("TMPDIR") or "/tmp", "/tmp"]
    return list(dict.fromkeys(base.rstrip("/") or "/" for base in bases))


def _is_private(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
