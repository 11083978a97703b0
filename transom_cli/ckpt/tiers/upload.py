"""The process that uploads one checkpoint to object storage. The snapshot daemon starts it.

    python -m transom_cli.ckpt.tiers.upload    (the job is a line of JSON on stdin)

A client of object storage needs memory and threads, and may hang or crash. So it runs in a process of its own, with low
priority of processor and disk, and not in the daemon that keeps the snapshots. It ends when its stdin is closed:
with the daemon. It prints one line of JSON each second while bytes move, and at last the result.
"""

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.ckpt import fence
from transom_cli.ckpt.manifest import decode
from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.tiers import marks
from transom_cli.ckpt.tiers.objects import Marker, ObjectStore, is_url, marker_of, markers
from transom_cli.core.codec import build, plain
from transom_cli.errors import TransomError

EVERY = 1.0  # seconds between two lines of progress
_LAST = 2 << 13 | 7  # ioprio: the lowest priority that is not starved by others
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


@dataclass(frozen=True)
class Job:
    """directory: the main one. attempt: in whose name. rate: bytes per second; None: no bound."""

    directory: str
    url: str
    step: int
    attempt: str
    rate: float | None
    keep: Keep

    def encode(self) -> str:
        return json.dumps(plain(self))


def run(job: Job, on_bytes: Any) -> list[Marker]:
    """Upload the checkpoint, then delete what need not be kept there. Returns what is there, newest first.

    Raises TransomError and OSError.
    """
    directory = Path(job.directory)
    store = ObjectStore(job.url)
    store.claim(directory)
    checkpoint = directory / step_name(job.step)
    data = (checkpoint / MANIFEST).read_bytes()
    wanted = marker_of(decode(data), data, marks.read_metrics(checkpoint))
    there = store.marker(job.step)
    if there is None or there.hash != wanted.hash:
        store.sweep(spared=[wanted.folder])
        store.upload(checkpoint, on_bytes, lambda: fence.check(directory, job.attempt), job.rate)
    return tidy(store, job.keep, job.step, directory)


def tidy(store: ObjectStore, keep: Keep, uploaded: int, directory: Path) -> list[Marker]:
    """Delete the copies that need not be kept, never the one of step `uploaded`. Returns what stays, newest first."""
    known = {marker.step: marker for marker in markers(store)}
    doomed = keep.doomed(known, lambda _: True, lambda step: known[step].metrics.get(keep.monitor))
    for step in doomed:
        if step != uploaded and not marks.is_kept(directory / step_name(step)):
            store.remove(step)
            del known[step]
    store.sweep()
    return list(known.values())


def lower_priority() -> None:
    """Yield the disk to others. The daemon has lowered the priority for the processor already.

    Not more than that: with nice 19, an upload beside busy cores was seen to make no progress for minutes.
    """
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _LAST)


class Progress:
    """Prints how many bytes were sent, at most once in `EVERY` seconds."""

    def __init__(self) -> None:
        self._sent, self._next = 0, 0.0

    def add(self, count: int) -> None:
        self._sent += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            say(sent=self._sent)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _end_with_parent() -> None:
    while os.read(0, 1 << 10):
        pass
    os._exit(1)


def main() -> int:
    lower_priority()
    line = os.fdopen(os.dup(0), "rb", buffering=0).readline()  # the thread reads the rest
    asked = build(Job, json.loads(line))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        assert is_url(asked.url)
        say(there=[plain(marker) for marker in run(asked, Progress().add)])
    except TransomError as error:
        say(trouble=f"{error.what} ({error.why})" if error.why else error.what)
    except OSError as error:
        say(trouble=f"{error.strerror or error}: {error.filename or asked.url}")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a storage client's threads must not keep it
