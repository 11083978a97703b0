"""Publish files atomically, and create files and folders that nobody else can write. Standard library only.

A reader on any node sees the old content or the new one, even after a crash: write to a temporary name in the same
folder, fsync, check the length, rename, fsync the folder. On a failure the temporary file is removed, and the OSError
goes to the caller, who can explain it.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from transom_cli.modes import make_folder, open_to_group

_BLOCK = 1 << 20  # bytes to read at once
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP)


def make_private(folder: Path) -> None:
    """Create a folder and those above it that are missing, each for this user alone (0700), whatever the umask.

    In a shared run directory its group can read them (`modes`). `Path.mkdir(mode, parents=True)` gives the folders
    above the mode of the umask. Raises OSError.
    """
    make_folder(folder)


def make_state_folder(folder: Path) -> None:
    """Create a private folder for transom's own state, or take other users' write permission from an existing one.

    Raises:
        OSError: also if the folder is another user's, who could replace what is in it.
    """
    make_private(folder)
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, "it belongs to another user, who could replace what is in it", str(folder))
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX and found.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(found.st_mode) & ~0o022)


def open_private(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open like `open`; a file that this creates is for this user alone (0600), whatever the umask.

    In a shared run directory its group can read it (`modes`).
    """

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, 0o600)
        open_to_group(descriptor, name)
        return descriptor

    return open(path, mode, opener=opener, **options)


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable. File systems that cannot sync a folder keep names in order themselves."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def refresh_directory(folder: Path) -> bool:
    """Make an NFS client look for new names in a folder. Return whether the folder could be opened.

    It caches for up to a minute (`acdirmax`) that a name does not exist, and revalidates when the folder is opened.
    """
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return False
    return True


def publish_bytes(path: Path, data: bytes, *, mode: int = 0o600, private: bool = False) -> None:
    """Replace `path` with `data` atomically and durably. On OSError nothing has changed.

    private: in a shared run directory too, only the owner can read the file.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            if not private:
                open_to_group(descriptor, path)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_size != len(data):
                raise OSError(errno.EIO, "the file is shorter than the data written", str(temporary))
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def publish_text(path: Path, text: str, *, mode: int = 0o600, private: bool = False) -> None:
    """Publish UTF-8 text. File names in it that are not UTF-8 are preserved."""
    publish_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode, private=private)


def replace_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` atomically, without fsync, for content that need not survive a crash.

    For files with one writer: the temporary name is always the same.
    """
    temporary = path.parent / f".{path.name}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        open_to_group(descriptor, path)
        file.write(text)
    temporary.rename(path)


def tail(path: str | Path, most: int) -> bytes:
    """Return the last bytes of a file. Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most)


def last_lines(path: Path, most: int = 5) -> list[str]:
    """Return the last lines of a text; none if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip().splitlines()[-most:]
    except OSError:
        return []


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; {} if there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def json_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a journal, one per line. Skip lines that are not objects, such as one cut off by a crash."""
    lines = data.splitlines()
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")  # at once: twice as fast
    except ValueError:
        records = map(_json, lines)
    yield from (record for record in records if isinstance(record, dict))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal; none if it cannot be read. It may be long, and is not kept in memory."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        while lines := file.readlines(_BLOCK):
            yield from json_lines(b"".join(lines))


def listed(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted; nothing if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
