"""Published files: there whole, or not at all. Standard library only, shared by all rooms.

A reader on any node sees the old text or the new one, also after a crash: write to a temporary name in the same
folder, fsync, check the length, rename, fsync the folder. On any failure the temporary file is removed and the OSError
goes to the caller, who knows what it means to a person.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP)


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable. File systems that cannot sync a folder order names themselves."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def look_anew(folder: Path) -> None:
    """What was not in a folder may be there by now: a client of NFS believes for up to a minute (`acdirmax`) that it is
    not, and asks its server again when the folder is opened."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def publish_bytes(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put ``data`` at ``path`` at once, replacing what is there. OSError when it cannot; then nothing has changed."""
    temporary = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_size != len(data):
                raise OSError(errno.EIO, "the file is shorter than what was written", str(temporary))
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def publish_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """`publish_bytes` of the UTF-8 text; file names that are not UTF-8 go through unharmed."""
    publish_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode)


def replace_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Old text or new one for every reader, like `publish_text`, but for what need not outlive a crash: no fsync.

    For one writer a file: the temporary name is always the same.
    """
    temporary = path.parent / f".{path.name}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.rename(path)


def json_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects of a journal, one a line. A line that is none, as a writer leaves it that died in it, is left out."""
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
