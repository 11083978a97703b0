"""Where heartbeats live on a node, and the environment variables by which a trainer finds them.

Launcher, agent, wrapper and trainer must agree without communicating, so all of them use this module. The directory is
in node memory (`/dev/shm`): a heartbeat costs no disk and no network, and is gone with the node.

Its name ends with a random suffix that the launcher keeps in the attempt's directory, which is private. In /dev/shm and
/tmp, other users can take any name that they can guess, and the run would be blind.

Every user of the directory holds a shared `flock` on it. If an exclusive lock can be had, nobody uses the directory. So
leftovers of an earlier attempt are distinguished from a living one without a PID file or a guess.

Imports stay few: the wrapper of every rank pays for them at its start.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from zlib import crc32

# pathlib and contextlib would double the start-up time of every rank's wrapper
# ruff: noqa: PTH100, PTH102, PTH106, PTH108, PTH112, PTH116, PTH118, PTH119, PTH120, PTH208, SIM105


RUN_DIR = "TRANSOM_RUN_DIR"
ATTEMPT = "TRANSOM_ATTEMPT"
ATTEMPT_DIR = "TRANSOM_ATTEMPT_DIR"
LAUNCH = "TRANSOM_LAUNCH"
BEAT_DIR = "TRANSOM_BEAT_DIR"
BEAT_PLACE = "TRANSOM_BEAT_PLACE"
"""Device and inode of that directory: a container with a /dev/shm of its own may have another of the same name."""
WORLD_SIZE = "TRANSOM_WORLD_SIZE"
"""How many ranks were launched, if each rank is a Slurm task; checked at the first heartbeat (world_size)."""
CHECKPOINT_DIR = "TRANSOM_CHECKPOINT_DIR"
MEMORY, AGENTS = "TRANSOM_MEMORY", "agent"
"""With this value, the node's agent runs its snapshot daemon; otherwise the ranks start one themselves."""

ROLE = "TRANSOM_ROLE"
RANK_PID = "TRANSOM_RANK_PID"
"""Set by automatic heartbeats in a process that trains: Pythons that it starts are no ranks."""

FLIGHT = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
"""Where torch's flight recorder dumps to: the older name, which every version knows, and the newer one."""

SUFFIX = "beats.suffix"
"""File in an attempt's directory: the random part of the names of its heartbeat directories."""

RANK_MONITOR = "FT_RANK_MONITOR_IPC_SOCKET"
"""Where the client of nvidia-resiliency-ext in a trainer reports; the node's agent answers (agent.rank_monitor)."""

NOWHERE = "/dev/null"
"""Stands for the heartbeat directory of a node that can have none: nothing can be below it."""

FROM_SCRATCH = "from-scratch-"  # and a rank, beside its exit record: its standby was of no use
WAITING = "TRANSOM_STANDBY"  # a standby's three descriptors, and the file of modules
RECOVERABLE = "TRANSOM_RECOVERABLE"  # set if the launcher orders survivors to enter their training again
REPLICAS = "TRANSOM_REPLICAS"  # the ranks that train at the start of a launch; the others join them (replicas)
ONLY = "TRANSOM_ONLY"  # among a standby's variables: the ranks that begin
HOSTS = "TRANSOM_HOSTS"  # and the nodes of the launch, in the order of the ranks, if a spare has replaced one of them
LEARN = "TRANSOM_STANDBY_LEARN"  # the file to which rank 0 writes the modules that it has imported
AUTO_BEAT_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "auto")
"""In front of PYTHONPATH, this directory makes an unchanged trainer send heartbeats."""


def node_name() -> str:
    """This node's Slurm name (SLURMD_NODENAME), or the short host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def beats_dir(attempt_dir: str, node: str) -> str:
    """Path of the node's heartbeat directory for the attempt in `attempt_dir`. Does not create it.

    The name contains a checksum of the attempt's path: two clusters that share a machine both have a job 1. Prefers a
    directory of ours that exists, then the first base directory where the name is free. Raises OSError if there is
    none.
    """
    name = _beats_name(attempt_dir, node)
    found = _candidates(name)
    if not found:
        raise OSError(f"{name} is taken by another user, or cannot be created, in each of {', '.join(_bases())}")
    return found[0]


def enter_beats(attempt_dir: str, node: str) -> tuple[str, int]:
    """Create and lock the node's heartbeat directory, in the first base directory where that works.

    Returns its path, and a descriptor to keep open. Raises OSError that says why it works in none.
    """
    failed = []
    for path in _candidates(_beats_name(attempt_dir, node)):
        try:
            return path, enter(path)
        except OSError as error:
            failed.append(f"{path}: {error.strerror}" if error.strerror else str(error))
    raise OSError("; ".join(failed) or f"no heartbeat directory can be created in {', '.join(_bases())}")


def place(path: str) -> str:
    """Return what identifies a directory, whatever its name. Raises OSError."""
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}"


def require_place(path: str, wanted: str) -> None:
    """Raise OSError if `path` is not the directory that was meant. wanted: "" accepts any."""
    if wanted and (not os.path.isdir(path) or place(path) != wanted):
        raise OSError(f"{os.path.dirname(path)} is not the node's: mount it into the container (docs/containers.md)")


def _candidates(name: str) -> list[str]:
    paths = [(f"{base}/{name}", base) for base in _bases()]
    ours = [path for path, _ in paths if _is_private(path)]
    free = [path for path, base in paths if os.access(base, os.W_OK | os.X_OK) and not os.path.lexists(path)]
    return ours or free


def beats_dirs(attempt_dir: str) -> list[str]:
    """The attempt's heartbeat directories on this machine; several if it simulates several nodes."""
    start, found = _beats_prefix(attempt_dir), []
    for base in _bases():
        try:
            names = os.listdir(base)
        except OSError:
            continue
        found += [f"{base}/{name}" for name in sorted(names) if name.startswith(start)]
    return [path for path in found if _is_private(path)]


def _beats_prefix(attempt_dir: str) -> str:
    attempt_dir = os.path.abspath(attempt_dir)
    place = crc32(os.fsencode(attempt_dir))
    return f"transom-{os.getuid()}-{os.path.basename(attempt_dir)}-{place:08x}-"


def _beats_name(attempt_dir: str, node: str) -> str:
    suffix = _suffix(attempt_dir)
    return f"{_beats_prefix(attempt_dir)}{suffix}{'-' if suffix else ''}{node}"


def _suffix(attempt_dir: str) -> str:
    """The random part of the attempt's names; "" if its launcher has chosen none."""
    for _ in range(2):
        try:
            fd = os.open(f"{attempt_dir}/{SUFFIX}", os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            try:
                os.close(os.open(attempt_dir, os.O_RDONLY))  # makes an NFS client look again
            except OSError:
                return ""
            continue
        try:
            text = os.read(fd, 64).decode("ascii", "replace").strip()
        finally:
            os.close(fd)
        return text if text.isalnum() else ""
    return ""


def private_folder(prefix: str, suffix: str) -> str:
    """A private directory of this user in node memory, created if missing. Raises OSError if the name is taken.

    suffix: what others cannot guess.
    """
    name = f"{prefix}-{suffix}"
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


def private_folder_there(prefix: str, suffix: str) -> str | None:
    """The directory that `private_folder` has created in any process, or None."""
    return next((path for base in _bases() if _is_private(path := f"{base}/{prefix}-{suffix}")), None)


def flight_prefix(beats_dir: str, launch: int) -> str:
    """Prefix of the flight recorder's files of a launch; torch adds the rank. Removed with the heartbeat directory.

    Readers of heartbeats ignore files whose names do not begin with `rank-`.
    """
    return f"{beats_dir}/flight-{launch}-"


def mark_torchrun(beats_dir: str, launch: int, node_id: str) -> None:
    """Note which log belongs to this node: torchrun writes one per node, named by the node's number in the step."""
    os.close(os.open(f"{beats_dir}/torchrun-{launch}-{node_id}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def torchrun_nodes(beats_dir: str, launch: int) -> list[int]:
    """The node's number in the step of a launch under torchrun; empty without torchrun."""
    start = f"torchrun-{launch}-"
    try:
        names = os.listdir(beats_dir)
    except OSError:
        return []
    return sorted(int(n[len(start) :]) for n in names if n.startswith(start) and n[len(start) :].isdecimal())


def request_file(beats_dir: str, launch: int) -> str:
    """Where the node's agent requests a final checkpoint of a launch's ranks (heartbeat.final_checkpoint)."""
    return f"{beats_dir}/flush-{launch}"


def listen_prefix(beats_dir: str, launch: int) -> str:
    """Prefix of the files by which the ranks of a launch listen for requests; the rank follows."""
    return f"{beats_dir}/listen-{launch}-"


def rank_monitor(beats_dir: str) -> str:
    """The socket at which the node's agent answers as NVRx's rank monitor."""
    return f"{beats_dir}/nvrx"


def forget_launches(beats_dir: str, before: int) -> None:
    """Remove what launches before number `before` left in the directory: an attempt may have hundreds."""
    kinds = ("flush", "listen", "flight", "torchrun", "reenter", "hears")
    try:
        names = os.listdir(beats_dir)
    except OSError:
        return
    for name in names:
        kind, _, rest = name.partition("-")
        launch = rest.partition("-")[0]
        if kind in kinds and launch.isdecimal() and int(launch) < before:
            try:
                os.unlink(f"{beats_dir}/{name}")
            except OSError:
                pass


def is_standby() -> bool:
    """Whether this is a standby that runs its script, and no rank yet."""
    return "transom_standby" in sys.modules


def await_rank(before: str) -> None:
    """In a standby that runs its script, wait until it is a rank (heartbeat.standby_script). before: what follows."""
    waiting = sys.modules.get("transom_standby")
    if waiting is not None:
        waiting.await_rank(before)


def own_launch() -> int:
    """This process's launch, from its environment. Raises ValueError if it is no number."""
    return int(os.environ.get(LAUNCH) or 0)


def own_rank() -> int:
    """This process's rank, from its environment. Raises ValueError if it is no number."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def make_private(path: str) -> None:
    """Create a directory (0700) if it is missing. Raises OSError if it is not private to this user."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    if not _is_private(path):
        raise PermissionError(f"{path} is not a private folder of this user")


def say_blind(why: object) -> None:
    """Say on the trainer's stderr that this rank sends no heartbeats."""
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    text = f"transom: no heartbeats from rank {rank} on {node_name()}, so a hang is not detected: {why}\n"
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def enter(path: str) -> int:
    """Create the heartbeat directory if missing (0700), and lock it. Returns a descriptor to keep open.

    Raises OSError if the directory is not private to this user.
    """
    while True:
        make_private(path)
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
        os.close(held)  # removed between mkdir and lock


def sweep(node: str, keep: str) -> list[str]:
    """Remove what this user's dead attempts left on this node, except `keep` and locked directories. Returns paths."""
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
    """Remove a heartbeat directory that nobody uses. False if it is in use, not ours, or gone."""
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
    return [base for base in dict.fromkeys(base.rstrip("/") or "/" for base in bases) if _keeps_ours(base)]


def _keeps_ours(base: str) -> bool:
    """Whether no other user but root can rename or remove what we create there."""
    try:
        found = os.stat(base)
    except OSError:
        return False
    return found.st_uid in (0, os.getuid()) and bool(not found.st_mode & 0o022 or found.st_mode & stat.S_ISVTX)


def _is_private(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
