"""`python -m transom_cli.sandbox.disk_server FOLDER FLAG`: serve FOLDER through FUSE, like a network file system.

It serves the folder that it covers, so nothing moves, and everything is still there after unmounting. While the file
FLAG exists, every change fails with "Read-only file system", even through files that were open before. Stopped with
SIGSTOP, it lets every call block, like a file server that hangs.
"""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy

NAME = "transom-disk"  # what /proc/mounts calls it
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT
_STAT = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_STATFS = (
    "f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_flag", "f_frsize", "f_namemax",
)  # fmt: skip


class Covered(mfusepy.Operations):
    """The folder under the mount. Paths through a descriptor that was opened before lead below the mount."""

    use_ns = True

    def __init__(self, folder: str, flag: Path) -> None:
        self._below = f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}"
        self._flag = str(flag)

    def _may_change(self) -> None:
        if os.path.exists(self._flag):  # noqa: PTH110 - checked at every write
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # --- looking ---

    def access(self, path: str, amode: int) -> int:
        if amode & os.W_OK:
            self._may_change()
        if not os.access(self._below + path, amode):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._below + path) if fh is None else os.fstat(fh)
        stat: dict[str, Any] = {name: getattr(found, name) for name in _STAT}
        return stat | {name: getattr(found, f"{name}_ns") for name in _TIMES}

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        """List names with their inode numbers: 0 would mean a deleted entry."""
        with os.scandir(self._below + path) as entries:
            names = [(entry.name, entry.inode()) for entry in entries]
        here = os.lstat(self._below + path).st_ino
        return [(name, {"st_ino": inode}, 0) for name, inode in ((".", here), ("..", here), *names)]

    def readlink(self, path: str) -> str:
        return os.readlink(self._below + path)  # noqa: PTH115

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._below + path)
        return {name: getattr(found, name) for name in _STATFS}

    # --- open files ---

    def open(self, path: str, flags: int) -> int:
        if flags & _WRITING:
            self._may_change()
        return os.open(self._below + path, flags & ~os.O_APPEND)  # the kernel passes the offset

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._may_change()
        return os.open(self._below + path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._may_change()
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._may_change()
        os.truncate(self._below + path if fh is None else fh, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    # --- names ---

    def mkdir(self, path: str, mode: int) -> int:
        self._may_change()
        os.mkdir(self._below + path, mode)  # noqa: PTH102
        return 0

    def rmdir(self, path: str) -> int:
        self._may_change()
        os.rmdir(self._below + path)  # noqa: PTH106
        return 0

    def unlink(self, path: str) -> int:
        self._may_change()
        os.unlink(self._below + path)  # noqa: PTH108
        return 0

    def rename(self, old: str, new: str) -> int:
        self._may_change()
        os.rename(self._below + old, self._below + new)  # noqa: PTH104
        return 0

    def link(self, target: str, source: str) -> int:
        self._may_change()
        os.link(self._below + source, self._below + target)
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._may_change()
        os.symlink(source, self._below + target)  # noqa: PTH211
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self._may_change()
        os.chmod(self._below + path, mode)  # noqa: PTH101
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        self._may_change()
        os.chown(self._below + path, uid, gid, follow_symlinks=False)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        self._may_change()
        os.utime(self._below + path, ns=times or (time.time_ns(),) * 2, follow_symlinks=False)
        return 0


def main(folder: str, flag: str) -> None:
    options = {"allow_other": True, "default_permissions": True} if os.geteuid() == 0 else {}
    if mfusepy.fuse_version_major < 3:
        options["nonempty"] = True  # not needed by later versions
    mfusepy.FUSE(Covered(folder, Path(flag)), folder, foreground=True, fsname=NAME, use_ino=True, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
