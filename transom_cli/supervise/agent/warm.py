"""Warms up a spare: reads the training's programs and libraries into its page cache before they are needed.

A node that trains lists the files that its ranks map (`mapped`), and a spare reads them (`warm`). Otherwise a rank's
first start on a node waits for them, which matters if they come over a network (with a fast local disk, there was no
gain). Not included: files that ranks read without mapping (Python's own modules), and files in a container's file
system, which a spare does not have yet.
"""

import json
import os
import stat

from transom_cli.health.checks.host import read_memory
from transom_cli.supervise.agent import procfs
from transom_cli.supervise.agent.processes import RANK, find

FILES = 4000  # the most in an answer
ANSWER = 900 * 1024  # bytes of them as JSON: within what an agent may send (wire.LIMITS)
MOST = 8 << 30  # bytes that are read for one question
SHARE = 0.5  # of the memory that is available now, at most
_PIECE = 4 << 20
_NOT_ON_DISK = ("/dev/", "/proc/", "/memfd:", "/SYSV")


def mapped(attempt_dir: str | os.PathLike[str], launch: int, node: str) -> list[tuple[str, int]]:
    """Return path and size in bytes of the files that the launch's ranks on this node map, sorted by path.

    Only private read-only mappings count, as for programs and libraries: a shared mapping is a data set of any size.
    """
    paths: set[str] = set()
    for member in find(attempt_dir, launch, node):
        if member.kind == RANK:
            paths |= _files(procfs.maps(member.pid))
    files: list[tuple[str, int]] = []
    room = ANSWER
    for path in sorted(paths):
        size = _size(path)
        if size is None:
            continue
        room -= len(json.dumps([path, size])) + 2
        if room < 0 or len(files) == FILES:
            break
        files.append((path, size))
    return files


def warm(files: list[str]) -> dict[str, object]:
    """Read files into the page cache. A file that cannot be opened or is too large is left out.

    Return how many files were read completely, and the bytes of all. It takes as long as the disk does.
    """
    found = read_memory()
    room = min(MOST, int(found.available * SHARE)) if found else 0
    whole = total = 0
    piece = memoryview(bytearray(_PIECE))
    for path in files:
        try:
            got = _read(path, room - total, piece)
        except OSError:
            continue
        whole, total = whole + (got is not None), total + (got or 0)
    return {"files": whole, "bytes": total}


def _read(path: str, room: int, piece: memoryview) -> int | None:
    """Return the bytes read; None if it is not a regular file, or is larger than `room`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > room:
            return None
        done = 0
        while done < about.st_size and (got := os.readv(fd, [piece])):
            done += got
        return done
    finally:
        os.close(fd)


def _files(maps: str) -> set[str]:
    """Return files on disk that are mapped privately and not for writing, from /proc/<pid>/maps.

    Each line has address, permissions ("r-xp"), offset, device, inode and path; a newline in a path is \\012.
    """
    found = set()
    for line in maps.split("\n"):
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[1] not in ("r-xp", "r--p") or not fields[5].startswith("/"):
            continue
        path = fields[5].replace("\\012", "\n")
        if not path.endswith(" (deleted)") and not path.startswith(_NOT_ON_DISK):
            found.add(path)
    return found


def _size(path: str) -> int | None:
    """Return the size; None if it is not a regular file, or not visible from here."""
    try:
        about = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - paths are text here, and many
    except (OSError, ValueError):
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None
