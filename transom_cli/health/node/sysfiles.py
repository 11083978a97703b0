"""The kernel's own small files, in /proc and /sys: they are there, or they are not; nothing here raises."""

from __future__ import annotations

import os
from pathlib import Path

SYSFS = "TRANSOM_SYSFS"
"""Environment variable: another folder is read in the place of /sys, as a recorded or a composed machine has it."""


def sysfs(*parts: str) -> Path:
    return Path(os.environ.get(SYSFS) or "/sys", *parts)


def read_text(path: str | Path) -> str:
    """The whole file, stripped; empty when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, 65536):  # /proc gives a page at a time
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def read_number(path: str | Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def names(folder: str | Path) -> tuple[str, ...] | None:
    """What is in the folder, sorted; None when there is no such folder, or it cannot be read."""
    try:
        return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 - names, not Path objects
    except OSError:
        return None
