"""Write a file atomically: written beside its place, fsynced, then renamed. No torch."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from transom_cli.errors import UsageError
from transom_cli.files import fsync_dir

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def refuse_taken(out: Path, *, force: bool) -> None:
    """Raise UsageError if `out` exists and may not be replaced; devices and directories never may. Raises OSError."""
    try:
        out.lstat()
    except FileNotFoundError:
        return
    if not out.is_file():
        raise UsageError(f"{out} exists and is not a regular file", hint="give another file")
    if not force:
        raise UsageError(f"{out} already exists", hint="give another file, or --force to replace this one")


@contextlib.contextmanager
def appearing(out: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A new file, open for reading and writing, that becomes `out` when the block succeeds; otherwise it is removed.

    Raises FileExistsError if `out` was created meanwhile and `force` is not given, and other OSErrors.
    """
    partial = out.parent / f".transom-{os.getpid()}-{secrets.token_hex(4)}.partial"
    file = open(partial, "xb+", opener=lambda name, flags: os.open(name, flags, 0o644))  # noqa: SIM115
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            partial.replace(out)
        else:
            _name(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    fsync_dir(out.parent)


def _name(partial: Path, out: Path) -> None:
    """Name the file without replacing another: by a hard link, or by a check and a rename if links are unsupported."""
    try:
        os.link(partial, out)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(out):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(out)) from None
        partial.rename(out)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
