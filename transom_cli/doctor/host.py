"""What `transom doctor --site` looks at on this host: each reader, and beside it the pure judge of what it read."""

import contextlib
import grp
import os
import pwd
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.health.system import Mount, mount_of, read_mount_table, read_number
from transom_cli.plural import several
from transom_cli.slurm.port import Node

PATIENCE = 10.0  # seconds for a program
CONNECT = 2.0  # seconds for a connection to a slurmd
SAMPLE = 8  # nodes whose slurmd is tried
FILES = 2000  # files whose age is read
_DAY = 86400.0


def output_of(*argv: str) -> str:
    """Return what a program prints; "" if it cannot be started, or does not end in time."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        return done.stdout
    return ""


# --- slurmds ---


def sample(nodes: Sequence[Node]) -> list[Node]:
    """Return some nodes that Slurm calls good, from all over the cluster."""
    good = [node for node in nodes if not node.not_responding and node.state in ("idle", "mixed", "allocated")]
    return good[:: max(1, len(good) // SAMPLE)][:SAMPLE]


def read_reach(nodes: Sequence[Node]) -> dict[str, bool]:
    """Return by name whether each node's slurmd accepts a connection from here."""

    def connects(node: Node) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((node.address or node.name, node.port), CONNECT).close()
            return True
        return False

    with ThreadPoolExecutor(SAMPLE) as pool:
        return dict(zip((node.name for node in nodes), pool.map(connects, nodes), strict=True))


def of_reach(reached: Mapping[str, bool], where: str) -> Symptom:
    about = f"from {where}"
    count, missed = len(reached), [name for name, good in reached.items() if not good]
    if not count:
        return Symptom(about, Grade.NOTE, "no node is up whose slurmd could be tried")
    if not missed:
        return Symptom(about, Grade.OK, f"reaches the slurmds of {several(count, 'node')} of {count}")
    if len(missed) < count:
        words = f"does not reach the slurmds of {', '.join(missed)} ({count - len(missed)} of {count} answer)"
        return Symptom(about, Grade.WARN, words, "if these nodes are up, ask the site about the ports of their slurmds")
    words = f"reaches no slurmd ({count} tried): a silent node is only excluded unless Slurm calls it down"
    if where == "this host":
        hint = 'to probe nodes, run the operator inside the cluster: operator.where = "job"'
        return Symptom(about, Grade.NOTE, words, hint)
    return Symptom(about, Grade.WARN, words, "ask the site to open the slurmds' ports (SlurmdPort) between nodes")


# --- the user ---

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
_EXPORTS = ("SBATCH_EXPORT", "SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV")


def read_groups() -> list[str]:
    names = []
    for gid in dict.fromkeys((os.getegid(), *os.getgroups())):
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(gid).gr_name)
    return names


def of_groups(names: Sequence[str]) -> Symptom:
    odd = [name for name in names if not _PLAIN.fullmatch(name)]
    if not odd:
        return Symptom("groups", Grade.OK, f"{several(len(names), 'group')}, all with plain names")
    words = f"names with blanks or odd characters: {', '.join(map(repr, odd))}; Slurm prints them unquoted"
    return Symptom("groups", Grade.OK, f"{words}, and transom reads that")


def of_exports(environ: Mapping[str, str]) -> Symptom:
    """Judge the variables that decide what a job and its steps inherit (sbatch(1), srun(1))."""
    limits = {name: environ[name] for name in _EXPORTS if name in environ}
    if all(value.upper() == "ALL" or value.upper().startswith("ALL,") for value in limits.values()):
        return Symptom("environment", Grade.OK, "jobs and steps inherit the environment (no export variable limits it)")
    words = f"{', '.join(f'{n}={v}' for n, v in limits.items())}: jobs or steps do not inherit this shell's environment"
    hint = "name what the training needs in job.setup and job.env; transom passes its own variables itself"
    return Symptom("environment", Grade.NOTE, words, hint)


# --- the file systems ---

_PURGED = re.compile(r"scratch|flash|burst|purge|no-?backup|volatile|(?<![a-z])te?mp(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Root:
    """The folder of run directories. oldest: seconds since the last use of its oldest file, None if it is empty."""

    path: str
    mount: Mount | None
    oldest: float | None = None


def read_root(root: Path) -> Root:
    there = next(path for path in (root, *root.parents) if path.exists()).resolve()
    now, ages = time.time(), []
    for number, path in enumerate(_walk(there if there == root.resolve() else Path())):
        if number >= FILES:
            break
        with contextlib.suppress(OSError):
            found = path.lstat()
            ages.append(now - max(found.st_mtime, found.st_atime, found.st_ctime))
    return Root(str(root), mount_of(str(there), read_mount_table()), max(ages, default=None))


def _walk(folder: Path) -> Iterator[Path]:
    for path in _entries(folder) if folder != Path() else ():
        yield path
        yield from _entries(path)


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def of_purge(root: Root) -> Symptom:
    where = f"{root.path} on {root.mount.kind if root.mount else 'an unknown file system'}"
    named = _PURGED.search(f"{root.path} {root.mount.source if root.mount else ''}")
    days = int((root.oldest or 0.0) / _DAY)
    if days >= 90:
        return Symptom("purge", Grade.OK, f"{where}: a file there was not used for {days} days and is not purged")
    hint = "ask the site; if old files are purged, set `root` and `checkpoint.directory` to a project file system, or "
    hint += "copy checkpoints elsewhere (Checkpointer(also=...))"
    if named:
        words = f"{where}: the name (`{named[0]}`) suggests that old files are purged, also checkpoints"
        return Symptom("purge", Grade.WARN, words, hint)
    return Symptom("purge", Grade.NOTE, f"{where}: unknown whether old files are purged", hint)


@dataclass(frozen=True)
class Quota:
    """Of one file system: blocks of 1 KiB and files, used and at most. 0: no limit."""

    used: int
    most: int
    files: int
    most_files: int


def read_quota(mount: Mount | None) -> Quota | None:
    return None if mount is None else quota_of(output_of("quota", "--no-wrap", "--raw-grace"), mount.source)


def quota_of(text: str, source: str) -> Quota | None:
    """Parse quota(1), with --no-wrap and --raw-grace: a line per file system, an asterisk behind what is exceeded."""
    for line in text.splitlines():
        if line.strip().startswith(f"{source} "):
            numbers = [int(found) for found in re.findall(r"(\d+)\*?(?= |$)", line.strip()[len(source) :])]
            if len(numbers) == 8:
                used, soft, hard, _, files, soft_files, hard_files, _ = numbers
                return Quota(used, soft or hard, files, soft_files or hard_files)
    return None


def of_quota(home: Mount | None, quota: Quota | None, free: int) -> Symptom:
    kind = home.kind if home else "an unknown file system"
    if quota is None or not (quota.most or quota.most_files):
        words = f"home is on {kind}, {free >> 30:,} GiB free; no quota is known"
        return Symptom("home quota", Grade.OK if quota else Grade.NOTE, words, "" if quota else "ask the site")
    shares = [u / m for u, m in ((quota.used, quota.most), (quota.files, quota.most_files)) if m]
    words = f"home is on {kind}, {max(shares):.0%} of the quota is used"
    if quota.most:
        words += f" ({quota.used >> 20:,} of {quota.most >> 20:,} GiB)"
    if max(shares) < 0.9:
        return Symptom("home quota", Grade.OK, words)
    hint = "free some space; what transom keeps in ~/.transom can be moved with TRANSOM_STATE_DIR"
    return Symptom("home quota", Grade.WARN, f"{words}; transom keeps the list of runs there", hint)


# --- limits of this host ---


@dataclass(frozen=True)
class Limits:
    """What the user's processes here may take; None: no limit. tasks: processes and threads. memory: bytes."""

    tasks: float | None
    memory: float | None


def read_limits() -> Limits:
    """Read the limits of this shell, and of its cgroup (v2) and those above."""
    tasks, memory = [_limit(resource.RLIMIT_NPROC)], [_limit(resource.RLIMIT_AS)]
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
        folder = Path("/sys/fs/cgroup") / own.lstrip("/")
        for place in (folder, *folder.parents):
            tasks.append(read_number(place / "pids.max"))
            memory.append(read_number(place / "memory.max"))
    return Limits(min(filter(None, tasks), default=None), min(filter(None, memory), default=None))


def _limit(which: int) -> float | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else float(soft)


TASKS, MEMORY = 256, 256 << 20  # an operator of 100 runs: 203 threads, 64 MB (docs/administrators.md)


def of_limits(limits: Limits) -> Symptom:
    found = [f"{limits.tasks:,.0f} processes and threads"] if limits.tasks is not None else []
    found += [f"{limits.memory / (1 << 20):,.0f} MiB of memory"] if limits.memory is not None else []
    words = f"your processes here may take {' and '.join(found) or 'what they need'}"
    few = limits.tasks is not None and limits.tasks < TASKS
    little = limits.memory is not None and limits.memory < MEMORY
    if not (few or little):
        return Symptom("host limits", Grade.OK, words)
    words += f"; an operator of 100 runs takes 203 threads and 64 MB ({TASKS} and {MEMORY >> 20} MiB are enough)"
    hint = 'ask the site for more, or run the operator as a job: operator.where = "job"'
    return Symptom("host limits", Grade.WARN, words, hint)


def examine_host(root: Path, environ: Mapping[str, str], nodes: Sequence[Node]) -> Iterator[Symptom]:
    yield of_reach(read_reach(sample(nodes)), "this host")
    yield of_groups(read_groups())
    yield of_exports(environ)
    yield of_purge(read_root(root))
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    if home.is_dir():
        mount = mount_of(str(home.resolve()), read_mount_table())
        yield of_quota(mount, read_quota(mount), shutil.disk_usage(home).free)
    yield of_limits(read_limits())
