"""PyTorch's flight recorder dumps: where a launch's ranks put them, and how they come into the evidence.

ProcessGroupNCCL writes one file a rank, `<prefix><rank>`, when a collective times out, where the prefix is
TORCH_FR_DUMP_TEMP_FILE or, by its older name, TORCH_NCCL_DEBUG_INFO_TEMP_FILE. Its default is one place for all jobs
of a user, where a dump of another job is taken for ours. The dumps are pickles: copied, never loaded.

The watchdog dumps and then aborts: what is seen of it is a rank that died. So the dumps are kept (`keep`) whenever a
launch is ended for an incident, and not only where ranks hang; in node memory they would go with the attempt.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from pathlib import Path

from transom_cli.files import make_private
from transom_cli.heartbeat.paths import flight_prefix

LIMIT = 64 << 20  # bytes of one dump
LATE = "timed out"
_CHUNK = 1 << 20


def keep(beats_dir: str, launch: int, folder: Path, seconds: float) -> dict[int, str]:
    """As `copy_all`, into a folder that is made for it, and in any case back after so many seconds.

    A file system that does not answer keeps the thread, and not the caller.
    """
    dumps = _dumps(beats_dir, launch)
    if not dumps:
        return {}
    done: dict[int, str] = {}

    def work() -> None:
        try:
            make_private(folder)
        except OSError as error:
            done.update(dict.fromkeys((rank for rank, _ in dumps), _words([f"not copied ({error.strerror})"])))
        else:
            done.update(copy_all(beats_dir, launch, folder, time.monotonic() + seconds))

    thread = threading.Thread(target=work, name="flight", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return dict.fromkeys((rank for rank, _ in dumps), _words([LATE]))
    return done


def copy_all(beats_dir: str, launch: int, folder: Path, deadline: float) -> dict[int, str]:
    """Copy the launch's dumps to `rank-<n>.flight/` in `folder`, until `deadline` (time.monotonic).

    By rank: what was done, in words; nothing of dumps that are there already. Also of ranks that have died.
    """
    done: dict[int, list[str]] = {}
    for rank, source in _dumps(beats_dir, launch):
        late = time.monotonic() > deadline
        said = LATE if late else _copy(source, folder / f"rank-{rank}.flight")
        if said:
            done.setdefault(rank, []).append(said)
    return {rank: _words(said) for rank, said in done.items()}


def _dumps(beats_dir: str, launch: int) -> list[tuple[int, Path]]:
    start = os.path.basename(flight_prefix("", launch))  # noqa: PTH119
    named = re.compile(re.escape(start) + r"(\d{1,9})(?!\d)")
    try:
        paths = sorted(Path(beats_dir).iterdir())
    except OSError:
        return []
    return [(int(found[1]), path) for path in paths if (found := named.match(path.name))]


def _words(said: list[str]) -> str:
    return f"flight recorder dump: {', '.join(dict.fromkeys(said))}"


def _copy(source: Path, folder: Path) -> str:
    """What was done; "" when nothing was left to do."""
    try:
        # a pipe of that name must not hang us, nor a link lead us elsewhere
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"not copied ({error.strerror})"
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return "not copied (no plain file of this user)"
        if found.st_size > LIMIT:
            return f"not copied ({found.st_size >> 20} MiB)"
        if _is_there(folder / source.name, found):
            return ""
        temporary = folder / f".{source.name}.tmp"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(target, "wb") as copy:
                left = LIMIT  # it may grow while we read
                while left > 0 and (chunk := file.read(min(_CHUNK, left))):
                    copy.write(chunk)
                    left -= len(chunk)
                copy.flush()
                os.fsync(copy.fileno())
            os.utime(temporary, ns=(found.st_mtime_ns, found.st_mtime_ns))
            temporary.rename(folder / source.name)
        except OSError as error:
            return f"not copied ({error.strerror})"
    return "copied"


def _is_there(copy: Path, found: os.stat_result) -> bool:
    """Whether it was copied as it is now: a hang's evidence may have been taken before the rank had written it all."""
    try:
        there = copy.stat()
    except OSError:
        return False
    # a file system may keep whole seconds or microseconds only
    return there.st_size == found.st_size and abs(there.st_mtime - found.st_mtime) < 1.0
