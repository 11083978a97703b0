"""PyTorch's flight recorder dumps: where a launch's ranks put them, and how they come into the evidence.

ProcessGroupNCCL writes one file a rank, `<prefix><rank>`, when a collective times out, where the prefix is
TORCH_FR_DUMP_TEMP_FILE or, by its older name, TORCH_NCCL_DEBUG_INFO_TEMP_FILE. Its default is one place for all jobs
of a user, where a dump of another job is taken for ours. The dumps are pickles: copied, never loaded.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from transom_cli.beats.places import flight_prefix

LIMIT = 64 << 20  # bytes of one dump
_CHUNK = 1 << 20


def copy_all(beats_dir: str, launch: int, folder: Path, deadline: float) -> dict[int, str]:
    """Copy the launch's dumps to `rank-<n>.flight/` in `folder`, until `deadline` (time.monotonic).

    By rank: what was done, in words. Also of ranks that have died: NCCL's watchdog dumps and then aborts.
    """
    start = os.path.basename(flight_prefix("", launch))  # noqa: PTH119
    named = re.compile(re.escape(start) + r"(\d{1,9})(?!\d)")
    try:
        names = sorted(path.name for path in Path(beats_dir).iterdir())
    except OSError:
        return {}
    done: dict[int, list[str]] = {}
    for name in names:
        found = named.match(name)
        if found is not None:
            rank = int(found[1])
            late = time.monotonic() > deadline
            said = "timed out" if late else _copy(Path(beats_dir) / name, folder / f"rank-{rank}.flight")
            done.setdefault(rank, []).append(said)
    return {rank: f"flight recorder dump: {', '.join(dict.fromkeys(said))}" for rank, said in done.items()}


def _copy(source: Path, folder: Path) -> str:
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
            temporary.rename(folder / source.name)
        except OSError as error:
            return f"not copied ({error.strerror})"
    return "copied"
