"""A disk that is full: a small tmpfs, filled to its last byte."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox.cluster import Sandbox

BALLAST = ".transom-ballast"
_SMALL = 2**30  # a larger file system is somebody's real disk: never filled


def small_disk(sb: Sandbox, where: Path, size_mb: int) -> None:
    """Mount a tmpfs of ``size_mb`` MiB on the empty folder ``where``, until `free_disk(unmount=True)` or `down`."""
    where.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        raise NotPermitted(
            f"Cannot mount a small disk on {where}",
            "mounting a tmpfs needs root",
            "Run this sandbox as root, or choose a folder on a small file system of its own (up to 1 GiB).",
        )
    if any(where.iterdir()):
        raise UsageError(f"Cannot mount a small disk on {where}", "the folder is not empty, its files would be hidden")
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
    """Fill the small file system that ``where`` is on, mounting one there first if need be. Returns bytes written.

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
    """Undo `fill_disk`: there is space again. With ``unmount`` a disk of ours goes, with all that is on it."""
    where = where.expanduser().absolute()
    (where / BALLAST).unlink(missing_ok=True)
    if unmount and str(where) in sb.disks():
        done = subprocess.run(["umount", str(where)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UsageError(f"Cannot unmount {where}", done.stderr.strip(), f"fuser -vm {where}")
        sb.change(lambda known: known.disks.remove(str(where)))
