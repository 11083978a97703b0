"""Faults of file systems.

- A full disk: a small tmpfs, filled completely.
- A shared file system that hangs or becomes read-only: a folder that `disk_server` serves through FUSE.
- Nodes that see changes in a shared folder late, each independently, like clients of a network file system
  (`stale_view`).
"""

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import zlib
from pathlib import Path

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox import processes
from transom_cli.sandbox.cluster import Sandbox, wait_until
from transom_cli.sandbox.daemons import NFS
from transom_cli.sandbox.fault_processes import kill_node, restore_node
from transom_cli.sandbox.processes import Proc
from transom_cli.sandbox.state import State
from transom_cli.sandbox.tools import fusermount, mounted_by_fuse, unmount
from transom_cli.start import own

BALLAST = ".transom-ballast"
_SMALL = 2**30  # a larger file system may be a real disk, which is never filled


def small_disk(sb: Sandbox, where: Path, size_mb: int) -> None:
    """Mount a tmpfs of `size_mb` MiB on the empty folder `where`, until `free_disk(unmount=True)` or `down`."""
    where.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        raise NotPermitted(
            f"Cannot mount a small disk on {where}",
            "mounting a tmpfs needs root",
            "run this sandbox as root, or choose a folder on its own small file system (up to 1 GiB)",
        )
    if any(where.iterdir()):
        raise UsageError(
            f"Cannot mount a small disk on {where}", "the folder is not empty, and its files would be hidden"
        )
    mode = oct(where.stat().st_mode & 0o7777)[2:]
    owner = where.stat()
    options = f"size={size_mb}m,mode={mode},uid={owner.st_uid},gid={owner.st_gid}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "transom-small-disk", str(where)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise NotPermitted(f"Cannot mount a small disk on {where}", done.stderr.strip())
    sb.change(lambda known: known.disks.append(str(where)))


def fill_disk(sb: Sandbox, where: Path, size_mb: int = 16) -> int:
    """Fill the small file system of `where`; mount one there first if needed. Returns bytes written.

    Writers then get "No space left on device" until `free_disk`.
    """
    where = where.expanduser().absolute()
    if not where.is_dir() or shutil.disk_usage(where).total > _SMALL:
        small_disk(sb, where, size_mb)
    written = 0
    fd = os.open(where / BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for block in (b"\0" * 2**20, b"\0" * 4096, b"\0"):
            while True:
                try:
                    written += os.write(fd, block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
    finally:
        os.close(fd)
    return written


def free_disk(sb: Sandbox, where: Path, *, unmount: bool = False) -> None:
    """Undo `fill_disk`. With `unmount`, also unmount our disk; its content is lost."""
    where = where.expanduser().absolute()
    (where / BALLAST).unlink(missing_ok=True)
    if unmount and str(where) in sb.disks():
        done = subprocess.run(["umount", str(where)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UsageError(f"Cannot unmount {where}", done.stderr.strip(), f"fuser -vm {where}")
        sb.change(lambda known: known.disks.remove(str(where)))


_MARK_DISK = "TRANSOM_SANDBOX_DISK"  # in a server's environment: the folder that it serves


def share_disk(sb: Sandbox, where: Path) -> None:
    """Make `where` a file system of its own, for the faults below, until `unshare_disk`.

    The folder keeps its content. Faults do not affect files that are already open. Raises NotPermitted without FUSE.
    """
    where = where.expanduser().absolute()
    if str(where) in served(sb):
        return
    check_fuse(where)
    where.mkdir(parents=True, exist_ok=True)
    _flag(sb, where).unlink(missing_ok=True)
    log = sb.dir / "log" / f"disk-{_key(where)}.log"
    argv = ["setsid", "--fork", *own("transom_cli.sandbox.disk_server", str(where), str(_flag(sb, where)))]
    env = {**os.environ, processes.MARK: sb.cluster, _MARK_DISK: str(where)}
    with log.open("ab") as words:
        subprocess.run(argv, env=env, cwd="/", check=True, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
    sb.change(lambda known: known.mounts.append(str(where)))
    if not wait_until(lambda: mounted_by_fuse(where), 15.0, every_s=0.02):
        said = log.read_text(errors="replace").strip()
        unshare_disk(sb, where)
        raise NotPermitted(f"Cannot mount a file system on {where}", said or "FUSE did not answer", f"less {log}")


def unshare_disk(sb: Sandbox, where: Path) -> None:
    """Undo `share_disk`, even if it hangs, is read-only, or its server is dead."""
    where = where.expanduser().absolute()
    if str(where) not in sb.mounts():
        raise UsageError(
            f"{where} is not a shared disk of this sandbox", f"its shared disks: {', '.join(sb.mounts()) or 'none'}"
        )
    writable_disk(sb, where)
    cont_disk(sb, where)
    unmount(where)
    wait_until(lambda: not _servers(sb, where), 5.0, every_s=0.02)
    for server in _servers(sb, where):
        processes.signal_one(server.ident, signal.SIGKILL)
    sb.change(lambda known: known.mounts.remove(str(where)))


def stall_disk(sb: Sandbox, where: Path) -> None:
    """Hang the file system: every call blocks, and blocked processes cannot be killed. Shares it first if needed."""
    share_disk(sb, where)
    for server in _servers(sb, where):
        processes.signal_one(server.ident, signal.SIGSTOP)


def cont_disk(sb: Sandbox, where: Path) -> None:
    """Undo `stall_disk`: blocked calls continue."""
    for server in _servers(sb, where):
        processes.signal_one(server.ident, signal.SIGCONT)


def readonly_disk(sb: Sandbox, where: Path) -> None:
    """Make the file system read-only, even for files that are open for writing. Shares it first if needed."""
    share_disk(sb, where)
    _flag(sb, where).touch()


def writable_disk(sb: Sandbox, where: Path) -> None:
    """Undo `readonly_disk`."""
    _flag(sb, where).unlink(missing_ok=True)


def served(sb: Sandbox) -> dict[str, str]:
    """Return the state of each live shared disk, by folder: `stalled`, `read-only` or `sound`."""
    found = {}
    for server in _servers(sb):
        where = server.environ[_MARK_DISK]
        found[where] = "stalled" if server.state in "Tt" else "sound"
        if found[where] == "sound" and _flag(sb, Path(where)).exists():
            found[where] = "read-only"
    return found


def check_fuse(where: Path) -> None:
    missing, hint = "", "sudo apt-get install --no-install-recommends fuse3"
    if not Path("/dev/fuse").exists():
        missing, hint = (
            "this machine has no /dev/fuse",
            "modprobe fuse   (in a container: run it with --device /dev/fuse)",
        )
    elif os.geteuid() != 0 and fusermount() is None:
        missing = "without root it needs fusermount3"
    elif importlib.util.find_spec("mfusepy") is None:
        missing, hint = (
            "the Python package mfusepy is not installed",
            "in the clone of transom: pip install '.[sandbox]'",
        )
    if missing:
        raise NotPermitted(f"Cannot mount a file system on {where}", missing, hint)


def _servers(sb: Sandbox, where: Path | None = None) -> list[Proc]:
    found = [p for p in processes.of_sandbox(sb.cluster) if _MARK_DISK in p.environ and p.comm != "setsid"]
    if where is None:
        return found
    return [p for p in found if p.environ[_MARK_DISK] == str(where.expanduser().absolute())]


def _flag(sb: Sandbox, where: Path) -> Path:
    return sb.dir / "run" / f"disk-{_key(where)}.readonly"


def _key(where: Path) -> str:
    return f"{zlib.crc32(os.fsencode(where.expanduser().absolute())):08x}"


def late_files(sb: Sandbox, where: Path, seconds: float, *, nfs: bool = False) -> None:
    """Give every node its own view of this folder, in which changes by others appear after a delay.

    Changes by the node's own processes appear at once; with `nfs`, what an NFS client revalidates, too. It lasts until
    `fresh_files`, even for a node that dies and comes back. The slurmds are restarted, so no job may be running.

    Raises:
        NotPermitted: it is not possible here.
    """
    where = where.expanduser().absolute()
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise NotPermitted(f"Cannot delay {where}", "it needs root and unshare (util-linux) to mount for a node")
    check_fuse(where)
    _check_idle(sb)
    where.mkdir(parents=True, exist_ok=True)
    sb.change(lambda known: known.late.update({str(where): f"{NFS if nfs else ''}{seconds:g}"}))
    _restart_nodes(sb)


def fresh_files(sb: Sandbox, where: Path) -> None:
    """Undo `late_files`."""
    where = where.expanduser().absolute()
    if str(where) not in sb.late():
        raise UsageError(f"{where} has no delay", f"folders with a delay: {', '.join(sb.late()) or 'none'}")
    _check_idle(sb)

    def forget(known: State) -> None:
        del known.late[str(where)]

    sb.change(forget)
    _restart_nodes(sb)


def _check_idle(sb: Sandbox) -> None:
    jobs = sb.slurm("squeue", "-h", "-a", "-o", "%A").split()
    if jobs:
        raise UsageError(
            "The nodes have jobs, which would be lost", f"job {', '.join(jobs)}", "transom sandbox fault heal"
        )


def _restart_nodes(sb: Sandbox) -> None:
    for node in sb.node_names:
        kill_node(sb, node)
    for node in sb.node_names:
        restore_node(sb, node)
