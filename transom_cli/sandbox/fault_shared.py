"""A shared file system that hangs or turns read-only: a folder served by a process of ours, see `disk_server`."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox import belonging, procs
from transom_cli.sandbox.cluster import Sandbox, wait_until
from transom_cli.sandbox.mounts import fusermount, mounted_by_fuse, unmount
from transom_cli.sandbox.procs import Proc

_MARK_DISK = "TRANSOM_SANDBOX_DISK"  # in a server's environment: the folder that it serves


def share_disk(sb: Sandbox, where: Path) -> None:
    """From now on ``where`` is a file system of its own, on which the faults below can be made, until `unshare_disk`.

    What is in the folder stays in it. Files that are open in it already are not reached by the faults.
    Raises NotPermitted where FUSE cannot be used.
    """
    where = where.expanduser().absolute()
    if str(where) in served(sb):
        return
    check_fuse(where)
    where.mkdir(parents=True, exist_ok=True)
    _flag(sb, where).unlink(missing_ok=True)
    log = sb.dir / "log" / f"disk-{_key(where)}.log"
    argv = [
        "setsid", "--fork", sys.executable, "-m", "transom_cli.sandbox.disk_server", str(where), str(_flag(sb, where)),
    ]  # fmt: skip
    env = {**os.environ, belonging.MARK: sb.cluster, _MARK_DISK: str(where)}
    with log.open("ab") as words:
        subprocess.run(argv, env=env, cwd="/", check=True, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
    sb.change(lambda known: known.mounts.append(str(where)))
    if not wait_until(lambda: mounted_by_fuse(where), 15.0, every_s=0.02):
        said = log.read_text(errors="replace").strip()
        unshare_disk(sb, where)
        raise NotPermitted(f"Cannot mount a file system on {where}", said or "FUSE did not answer", f"less {log}")


def unshare_disk(sb: Sandbox, where: Path) -> None:
    """Undo `share_disk`; also when it hangs, is read-only, or its server is dead."""
    where = where.expanduser().absolute()
    if str(where) not in sb.mounts():
        raise UsageError(f"{where} is no shared disk of this sandbox", f"those are: {', '.join(sb.mounts()) or 'none'}")
    writable_disk(sb, where)
    cont_disk(sb, where)
    unmount(where)
    wait_until(lambda: not _servers(sb, where), 5.0, every_s=0.02)
    for server in _servers(sb, where):
        procs.signal_one(server.ident, signal.SIGKILL)
    sb.change(lambda known: known.mounts.remove(str(where)))


def stall_disk(sb: Sandbox, where: Path) -> None:
    """The file system hangs: every call waits, and what waits in one cannot be killed. Shared first if need be."""
    share_disk(sb, where)
    for server in _servers(sb, where):
        procs.signal_one(server.ident, signal.SIGSTOP)


def cont_disk(sb: Sandbox, where: Path) -> None:
    """Undo `stall_disk`: what waited goes on."""
    for server in _servers(sb, where):
        procs.signal_one(server.ident, signal.SIGCONT)


def readonly_disk(sb: Sandbox, where: Path) -> None:
    """Nothing can be changed any more, not even through files that are open for it. Shared first if need be."""
    share_disk(sb, where)
    _flag(sb, where).touch()


def writable_disk(sb: Sandbox, where: Path) -> None:
    """Undo `readonly_disk`."""
    _flag(sb, where).unlink(missing_ok=True)


def served(sb: Sandbox) -> dict[str, str]:
    """By folder, each shared disk that lives: `stalled`, `read-only` or `sound`."""
    told = {}
    for server in _servers(sb):
        where = server.environ[_MARK_DISK]
        told[where] = "stalled" if server.state in "Tt" else "sound"
        if told[where] == "sound" and _flag(sb, Path(where)).exists():
            told[where] = "read-only"
    return told


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
    found = [p for p in belonging.of_sandbox(sb.cluster) if _MARK_DISK in p.environ and p.comm != "setsid"]
    if where is None:
        return found
    return [p for p in found if p.environ[_MARK_DISK] == str(where.expanduser().absolute())]


def _flag(sb: Sandbox, where: Path) -> Path:
    return sb.dir / "run" / f"disk-{_key(where)}.readonly"


def _key(where: Path) -> str:
    return f"{zlib.crc32(os.fsencode(where.expanduser().absolute())):08x}"
