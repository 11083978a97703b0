"""Modes of what transom creates in a run directory. Standard library only.

A folder of mode 2750 is shared (`run.share`): what is created in it belongs to its group, which can read it. Everywhere
else, and for secrets, only the owner has permissions.
"""
# Ranks import this, and pathlib's import takes long.
# ruff: noqa: PTH101, PTH102, PTH112, PTH116, PTH120

import os
import stat

_MOST = 1024
SHARED = 0o2750


_known: dict[str, bool] = {}  # a folder gets its mode when it is created


def is_shared(folder: str) -> bool:
    """Return whether the group of the folder may read what is created in it."""
    if folder not in _known:
        try:
            mode = os.stat(folder).st_mode
        except OSError:
            return False
        if len(_known) >= _MOST:
            _known.clear()
        _known[folder] = stat.S_IMODE(mode) == SHARED
    return _known[folder]


def open_to_group(descriptor: int, path: str | os.PathLike[str]) -> None:
    """Let the group read an own file that is open in a shared folder, whatever the umask was. Raises OSError."""
    if is_shared(os.path.dirname(os.fspath(path))):
        found = os.fstat(descriptor)
        mode = stat.S_IMODE(found.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH) | stat.S_IRGRP
        if found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(descriptor, mode)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and those above it unless they exist: 0700, or 2750 in a shared folder. Raises OSError."""
    name = os.fspath(path)
    above = os.path.dirname(name)
    if above and not os.path.lexists(above):
        make_folder(above)
    try:
        os.mkdir(name, 0o700)
    except FileExistsError:
        if not os.path.isdir(name):
            raise
        return
    if is_shared(above):
        os.chmod(name, SHARED)


def close_to_writers(path: str | os.PathLike[str]) -> None:
    """Give a file that Slurm created in a shared folder, with the job's umask, the mode of transom's own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        open_to_group(descriptor, path)
    except OSError:
        return
    finally:
        os.close(descriptor)
