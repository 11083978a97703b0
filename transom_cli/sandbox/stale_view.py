"""`python -m transom_cli.sandbox.stale_view HOW FOLDER LOG COMMAND...`: COMMAND sees FOLDER with a delay.

It behaves like a client of a network file system that caches attributes, names and contents. Changes by others appear
late, for each file and folder separately; changes by COMMAND appear at once. It uses its own mount namespace, so all
others see the folder as it is. HOW is "3" for three seconds, or "nfs=30" for thirty seconds except where an NFS client
revalidates. With LOG `-`, the view ends with COMMAND. Otherwise it lasts until it is killed, for daemons that put
themselves into the background, and its output goes to the file LOG. Needs root and FUSE.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import mfusepy

from transom_cli.sandbox.daemons import NFS
from transom_cli.sandbox.disk_server import NAME, Covered
from transom_cli.start import own

T = TypeVar("T")
PATIENCE = 15.0  # seconds for the mount
WITH_COMMAND = "-"
_INSIDE = "--inside"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class _Opened:
    fd: int
    size: int  # in bytes, when it was opened


class Stale(Covered):
    """Caches answers for `seconds`, including errors: a file that did not exist stays missing for a while.

    Args:
        opens_anew: close-to-open consistency, like NFS on Linux. Opening an existing file or a folder revalidates it.
            Missing names are looked up again in a folder that is opened, or changed by this client.
    """

    def __init__(self, folder: str, seconds: float, *, opens_anew: bool) -> None:
        super().__init__(folder, Path("/nonexistent"))
        self._seconds, self._opens_anew = seconds, opens_anew
        self._kept: dict[tuple[str, str], tuple[float, object]] = {}
        self._reading: dict[int, tuple[str, float, int]] = {}  # open files: path, and when it had how many bytes

    def _stale(self, what: str, path: str, ask: Callable[[], T]) -> T:
        self._sweep()
        if (what, path) not in self._kept:
            answer: object
            try:
                answer = ask()
            except OSError as error:
                answer = error
            self._kept[what, path] = (time.monotonic(), answer)
        _, kept = self._kept[what, path]
        if isinstance(kept, OSError):
            raise OSError(kept.errno, kept.strerror)
        return kept  # type: ignore[return-value]

    def _sweep(self) -> None:
        """Drop expired entries, which are in order of time."""
        limit = time.monotonic() - self._seconds
        while self._kept and next(iter(self._kept.values()))[0] <= limit:
            self._forget(*next(iter(self._kept)))

    def _forget(self, what: str, path: str) -> None:
        _, kept = self._kept.pop((what, path), (0.0, None))
        if isinstance(kept, _Opened):
            os.close(kept.fd)

    def _written(self, path: str) -> None:
        """Note a write by this client: its cache of the file is invalid, but not that of the folder."""
        self._forget("file", path)
        self._forget("attributes", path)
        for fh in [fh for fh, (name, _, _) in self._reading.items() if name == path]:
            self._reading[fh] = (path, float("-inf"), 0)

    def _changed(self, *paths: str) -> None:
        """Note a change of names by this client: like an NFS client, it revalidates the whole folder."""
        for path in paths:
            self._written(path)
            self._forget("names", path)
            self._revalidate(str(Path(path).parent))

    def _revalidate(self, folder: str) -> None:
        self._forget("names", folder)
        if self._opens_anew:
            missing = [key for key, (_, kept) in self._kept.items() if isinstance(kept, OSError)]
            for what, path in missing:
                if str(Path(path).parent) == folder:
                    self._forget(what, path)

    def opendir(self, path: str) -> int:
        if self._opens_anew:
            self._revalidate(path)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if fh is not None and fh not in self._reading:
            return super().getattr(path, fh)
        return self._stale("attributes", path, lambda: super(Stale, self).getattr(path))

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        return self._stale("names", path, lambda: super(Stale, self).readdir(path, fh))

    def _open_kept(self, path: str) -> _Opened:
        """Open with fresh attributes: a client never reads data older than the attributes that it saw."""
        self._forget("attributes", path)
        fd = os.open(self._below + path, os.O_RDONLY)
        attributes = self._stale("attributes", path, lambda: super(Stale, self).getattr(path, fd))
        return _Opened(fd, int(attributes["st_size"]))

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._written(path)
            return super().open(path, flags)
        if self._opens_anew:
            self._forget("file", path)
        first = self._stale("file", path, lambda: self._open_kept(path))
        here = os.open(f"/proc/self/fd/{first.fd}", os.O_RDONLY)  # the file that had the name then, if it is gone too
        self._reading[here] = (path, time.monotonic(), first.size)
        return here

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        if fh not in self._reading:
            return super().read(path, size, offset, fh)
        name, at, most = self._reading[fh]
        if time.monotonic() - at >= self._seconds:
            most = os.fstat(fh).st_size
            self._reading[fh] = (name, time.monotonic(), most)
        return super().read(path, max(0, min(size, most - offset)), offset, fh)

    def release(self, path: str, fh: int) -> int:
        self._reading.pop(fh, None)
        return super().release(path, fh)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._changed(path)
        return super().create(path, mode, fi)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._written(path)
        return super().write(path, data, offset, fh)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._written(path)
        return super().truncate(path, length, fh)

    def mkdir(self, path: str, mode: int) -> int:
        self._changed(path)
        return super().mkdir(path, mode)

    def rmdir(self, path: str) -> int:
        self._changed(path)
        return super().rmdir(path)

    def unlink(self, path: str) -> int:
        self._changed(path)
        return super().unlink(path)

    def rename(self, old: str, new: str) -> int:
        self._changed(old, new)
        return super().rename(old, new)

    def link(self, target: str, source: str) -> int:
        self._changed(target, source)
        return super().link(target, source)

    def symlink(self, target: str, source: str) -> int:
        self._changed(target)
        return super().symlink(target, source)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        self._written(path)
        return super().utimens(path, times)


def _serve(folder: str, how: str, log: str) -> None:
    """Serve until the parent is gone, or until killed."""
    if log == WITH_COMMAND:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        nothing, words = os.open("/dev/null", os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for there, here in ((nothing, 0), (words, 1), (words, 2)):
            os.dup2(there, here)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # files stay open for a while after they were read
    timeouts = {"attr_timeout": 0.0, "entry_timeout": 0.0, "negative_timeout": 0.0}  # no cache in the kernel
    options = {**timeouts, "allow_other": True, "default_permissions": True}
    if mfusepy.fuse_version_major < 3:
        options["nonempty"] = True
    view = Stale(folder, float(how.removeprefix(NFS)), opens_anew=how.startswith(NFS))
    mfusepy.FUSE(view, folder, foreground=True, nothreads=True, fsname=NAME, use_ino=True, **options)


def main(argv: list[str]) -> None:
    if argv[0] != _INSIDE:
        again = own("transom_cli.sandbox.stale_view", _INSIDE, *argv)
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *again])
    how, folder, log, command = argv[1], argv[2], argv[3], argv[4:]
    before = os.stat(folder).st_dev  # noqa: PTH116
    if os.fork() == 0:
        try:
            _serve(folder, how, log)
        finally:
            os._exit(1)
    end = time.monotonic() + PATIENCE
    while os.stat(folder).st_dev == before:  # noqa: PTH116
        if time.monotonic() > end:
            sys.exit(f"error: no file system came up on {folder}")
        time.sleep(0.02)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
