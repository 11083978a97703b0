"""Threads and their frames out of a dump's text, be it py-spy's or Python's own faulthandler's. Pure.

faulthandler (cpython, Python/traceback.c) writes

    Fatal Python error: Aborted                       or: Timeout (0:05:00)!

    Current thread 0x00007f1c (most recent call first):
      File "/home/u/train.py", line 12 in step
      ...

innermost frame first, as py-spy does. It names no thread (3.14 does, in brackets), and "current" is the thread that
took the signal. What comes out is `core.stacks.Dump`, so that both are judged alike.
"""

from __future__ import annotations

import re

from transom_cli.core import stacks
from transom_cli.core.stacks import Dump, Frame, Thread

_THREAD = re.compile(r"(Current t|T)hread (0x[0-9a-fA-F]{1,16})(?: \[([^\]\n]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "([^"\n]*)", line (\d{1,9}|\?\?\?) in (.+)')
_FATAL = re.compile(r"(?:Fatal Python error: .+|Timeout \(\d+:\d\d:\d\d[.\d]*\)!)")
_PYSPY = re.compile(r"^Process \d+: .*\n(?:Python v\d.*\n)?|^Thread \S+ \((?:active|idle)[+a-z]*\)", re.MULTILINE)
_STARTS = ("_bootstrap", "_bootstrap_inner", "Thread._bootstrap", "Thread._bootstrap_inner", "_worker")
MAIN = "MainThread"


def is_stack(text: str) -> bool:
    """Whether it is a dump of one of the two kinds. A log that contains one is none: it must begin like a dump."""
    head = text[:4096].lstrip()
    return bool(_THREAD.match(head) or (_FATAL.match(head) and _THREAD.search(head)) or _PYSPY.match(head))


def parse(text: str) -> Dump:
    """Never raises: what is no dump has no threads. The main thread is named so where it can be told."""
    return faulthandler(text) if _THREAD.search(text) else stacks.parse(text)


def fatal(text: str) -> str:
    """`Fatal Python error: Aborted`, where a dump says that its process died of one; "" where not."""
    found = _FATAL.search(text[:4096])
    return stacks.clean(found[0]) if found and found[0].startswith("Fatal") else ""


def faulthandler(text: str) -> Dump:
    """The threads of faulthandler's text. Lines that are none of its own are left out."""
    threads: list[tuple[str, str, bool, list[Frame]]] = []
    for line in text.split("\n"):
        if head := _THREAD.match(line):
            threads.append((head[2], head[3] or "", head[1] != "T", []))
        elif threads and (frame := _FRAME.match(line)):
            number = int(frame[2]) if frame[2].isdecimal() else 0
            threads[-1][3].append(Frame(frame[3].strip(), frame[1], number))
    main = _main([(name, frames) for _, name, _, frames in threads])
    return Dump(
        0,
        tuple(
            Thread(ident, MAIN if at == main else stacks.clean(name), active, False, tuple(frames))
            for at, (ident, name, active, frames) in enumerate(threads)
        ),
    )


def _main(threads: list[tuple[str, list[Frame]]]) -> int:
    """A thread of `threading` ends in its bootstrap; the program itself begins in a module. Newest threads come first,
    so the last that may be it is it."""
    begun = [at for at, (_, frames) in enumerate(threads) if frames and frames[-1].function == "<module>"]
    others = [at for at, (_, frames) in enumerate(threads) if frames and frames[-1].function not in _STARTS]
    return next(iter(begun[-1:] or others[-1:]), len(threads) - 1)
