"""Mounting through FUSE, and unmounting: with root's own commands, else with FUSE's setuid one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def fusermount() -> str | None:
    return shutil.which("fusermount3") or shutil.which("fusermount")


def unmount(where: Path) -> None:
    """Lazily: who still has a file open keeps it until it is closed. Nothing happens where nothing is mounted."""
    argv = ["umount", "--lazy"] if os.geteuid() == 0 else [fusermount() or "fusermount3", "-u", "-z"]
    subprocess.run([*argv, str(where)], check=False, capture_output=True)


def mounted_by_fuse(where: Path) -> bool:
    lines = Path("/proc/mounts").read_text().splitlines()
    return any(line.split()[1:3] == [str(where), "fuse"] for line in lines)
