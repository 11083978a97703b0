"""Has a looker read a node's checks, and gives each reading as it comes; what does not come in time is hung.

The looker is a process of its own, so that a reader that takes it down with it, or holds the interpreter in a library
that never returns, costs its own deadline and nobody's examiner.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transom_cli.core.codec import plain
from transom_cli.health.about import About

END = 0.3  # seconds for it to end by itself
STARTING = 5.0  # seconds more for the interpreter to come up, on a busy node with a cold file system


@dataclass(frozen=True)
class Wanted:
    """A check to be read: its name, its reader ("module:function"), and the seconds that it may take."""

    name: str
    reader: str
    seconds: float


def look(about: About, wanted: Sequence[Wanted], starting: float = STARTING) -> Iterator[dict[str, Any]]:
    """`{"check", "reading"}`, or with "error" or "waited" in place of the reading: one for each that is wanted."""
    checks = [{"name": w.name, "reader": w.reader} for w in wanted]
    request = json.dumps({"about": plain(about), "checks": checks})
    owed = {w.name: w.seconds for w in wanted}
    child = subprocess.Popen(
        [sys.executable, *_flags(), "-m", "transom_cli.health.looker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    began = time.monotonic()
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(request.encode() + b"\n")
        child.stdin.flush()  # it stays open: its end is the looker's
        for line in _lines(child.stdout.fileno(), began, starting, owed):
            try:
                said = json.loads(line)
                name = said["check"]
            except (ValueError, KeyError, TypeError):
                continue  # something that a library printed
            if owed.pop(name, None) is not None:
                yield said
    except BrokenPipeError:
        pass  # it died at once: what is owed is told below
    finally:
        code = _end(child)
    waited = round(time.monotonic() - began, 1)
    for name in owed:
        yield (
            {"check": name, "waited": waited}
            if code is None
            else {"check": name, "error": f"the reader {_words(code)}"}
        )


def _lines(fd: int, began: float, starting: float, owed: dict[str, float]) -> Iterator[bytes]:
    """Whole lines until nothing is owed, or its time is up; a check whose time is up does not cut the others short."""
    os.set_blocking(fd, False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while owed:
            left = began + starting + max(owed.values()) - time.monotonic()
            if left <= 0:
                return
            if not selector.select(left):
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


def _end(child: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None where it, or what a reader has started, had to be killed. One that is stuck in the kernel
    dies when it comes back from there: nobody waits for that."""
    assert child.stdin is not None and child.stdout is not None
    child.stdout.close()
    code = _wait(child)
    with contextlib.suppress(OSError):
        child.stdin.close()
    if code is None:
        _wait(child)  # it ends what its readers have started
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if code is None:
        _wait(child)
    return code


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(END)
    except subprocess.TimeoutExpired:
        return None


def _flags() -> list[str]:
    return ["-P"] if sys.version_info >= (3, 11) else []


def _words(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
