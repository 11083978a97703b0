"""Copies PyTorch's flight recorder dumps of a launch into the evidence of an incident.

When a collective times out, ProcessGroupNCCL writes one file per rank, `<prefix><rank>`. The prefix is
TORCH_FR_DUMP_TEMP_FILE or, by its older name, TORCH_NCCL_DEBUG_INFO_TEMP_FILE. By default, all jobs of a user share one
place, where a dump of another job would be taken for ours. The dumps are pickles: they are copied and never loaded.

After the dump, the watchdog aborts the rank, which then looks like a rank that died. So dumps are kept (`keep`)
whenever an incident ends a launch, not only in a hang. They are in node memory, and would be lost with the attempt.
"""

import os
import re
import stat
import threading
import time
from pathlib import Path

from transom_cli.files import listed, make_private
from transom_cli.heartbeat.paths import flight_prefix

LIMIT = 64 << 20  # bytes of one dump
LATE = "timed out"
_CHUNK = 1 << 20


def keep(beats_dir: str, launch: int, folder: Path, seconds: float) -> dict[int, str]:
    """Copy as `copy_all` does, into a folder that is created for it. Return after `seconds` at the latest.

    If the file system does not respond, the thread is abandoned and the caller continues.
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

    Return by rank what was done, in words; dumps that were copied before are left out. Dumps of dead ranks count too.
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
    return [(int(found[1]), path) for path in listed(Path(beats_dir)) if (found := named.match(path.name))]


def _words(said: list[str]) -> str:
    return f"flight recorder dump: {', '.join(dict.fromkeys(said))}"


def _copy(source: Path, folder: Path) -> str:
    """Return what was done; "" if the dump was copied before."""
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
    """Return whether the copy is complete: it may have been made while the rank was writing the dump."""
    try:
        there = copy.stat()
    except OSError:
        return False
    # a file system may keep whole seconds or microseconds only
    return there.st_size == found.st_size and abs(there.st_mtime - found.st_mtime) < 1.0
