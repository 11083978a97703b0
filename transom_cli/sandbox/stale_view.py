"""`python -m transom_cli.sandbox.stale_view SECONDS FOLDER COMMAND...`: COMMAND sees FOLDER as it was SECONDS ago.

As a client of a network file system that keeps attributes, names and contents for a while: what others change shows
late, each file and folder by itself; what COMMAND changes it sees at once. It runs in a mount namespace of its own, so
that all others see the folder as it is. Needs root and FUSE.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import mfusepy

from transom_cli.sandbox.disk_server import NAME, Covered

T = TypeVar("T")
PATIENCE = 15.0  # seconds for the mount
_INSIDE = "--inside"
_PR_SET_PDEATHSIG = 1


class Stale(Covered):
    """Answers are kept for `seconds`, and so are refusals: a file that was not there is not there for a while."""

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__(folder, Path("/nonexistent"))
        self._seconds = seconds
        self._kept: dict[tuple[str, str], tuple[float, object]] = {}
        self._sizes: dict[int, int] = {}  # of files open for reading: of as many bytes others have told us

    def _stale(self, what: str, path: str, ask: Callable[[], T]) -> T:
        at, kept = self._kept.get((what, path), (float("-inf"), None))
        if time.monotonic() - at >= self._seconds:
            if what == "file" and isinstance(kept, int):
                os.close(kept)
            try:
                kept = ask()
            except OSError as error:
                kept = error
            self._kept[what, path] = (time.monotonic(), kept)
        if isinstance(kept, OSError):
            raise OSError(kept.errno, kept.strerror)
        return kept  # type: ignore[return-value]

    def _changed(self, *paths: str) -> None:
        """By this client itself, which then knows better."""
        for path in paths:
            for what, name in (("attributes", path), ("names", str(Path(path).parent)), ("file", path)):
                _, kept = self._kept.pop((what, name), (0.0, None))
                if what == "file" and isinstance(kept, int):
                    os.close(kept)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if fh is not None and fh not in self._sizes:
            return super().getattr(path, fh)
        return self._stale("attributes", path, lambda: super(Stale, self).getattr(path))

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        return self._stale("names", path, lambda: super(Stale, self).readdir(path, fh))

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._changed(path)
            return super().open(path, flags)
        first = self._stale("file", path, lambda: os.open(self._below + path, os.O_RDONLY))
        size = int(self.getattr(path)["st_size"])
        here = os.open(f"/proc/self/fd/{first}", os.O_RDONLY)  # the file that had the name then, if it is gone too
        self._sizes[here] = size
        return here

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        most = self._sizes.get(fh, offset + size)
        return super().read(path, max(0, min(size, most - offset)), offset, fh)

    def release(self, path: str, fh: int) -> int:
        self._sizes.pop(fh, None)
        return super().release(path, fh)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._changed(path)
        return super().create(path, mode, fi)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._changed(path)
        return super().write(path, data, offset, fh)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._changed(path)
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
        self._changed(path)
        return super().utimens(path, times)


def _serve(folder: str, seconds: float) -> None:
    """Until whoever asked for it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    timeouts = {"attr_timeout": 0.0, "entry_timeout": 0.0, "negative_timeout": 0.0}  # the kernel's own cache: none
    options = {**timeouts, "allow_other": True, "default_permissions": True}
    if mfusepy.fuse_version_major < 3:
        options["nonempty"] = True
    mfusepy.FUSE(Stale(folder, seconds), folder, foreground=True, nothreads=True, fsname=NAME, use_ino=True, **options)


def main(argv: list[str]) -> None:
    if argv[0] != _INSIDE:
        again = [sys.executable, "-m", "transom_cli.sandbox.stale_view", _INSIDE, *argv]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *again])
    seconds, folder, command = float(argv[1]), argv[2], argv[3:]
    before = os.stat(folder).st_dev  # noqa: PTH116
    if os.fork() == 0:
        try:
            _serve(folder, seconds)
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
