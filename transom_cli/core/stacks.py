"""What a py-spy dump says: threads, their frames, who holds the GIL. Pure text in, values out.

The text is that of `py-spy dump` (github.com/benfred/py-spy, src/dump.rs): a header, then for every thread

    Thread 4711 (active+gil): "MainThread"
        step (train.py:12)
        clone (libc.so.6)

innermost frame first. A line that is none of these is left out: a dump may be cut short, and names in it are the
trainer's own.
"""

import re
from dataclasses import dataclass

TOP = 3
_PROCESS = re.compile(r"Process (\d+): ")
_NEXT = re.compile(r"\n(?=Process \d+: )")
_THREAD = re.compile(r'Thread (\S+) \(([^()]*)\)(?:: "(.*)")?\s*$')
_PLACE = re.compile(r"(.+):(\d+)$")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_WORDS = 160  # characters of one frame in a summary


@dataclass(frozen=True)
class Frame:
    function: str
    file: str  # of a native frame: its library
    line: int  # 0: unknown

    @property
    def python(self) -> bool:
        return self.file.endswith((".py", ".pyx")) or self.file.startswith("<")  # <string>, <frozen importlib>

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return clean(f"{self.function} ({place})")[:_WORDS]


@dataclass(frozen=True)
class Thread:
    ident: str  # the kernel's thread id, or pthread's address in hexadecimal where py-spy cannot map it
    name: str
    active: bool  # on a processor, as far as py-spy can tell
    gil: bool
    frames: tuple[Frame, ...]  # innermost first


@dataclass(frozen=True)
class Dump:
    pid: int  # 0: unknown
    threads: tuple[Thread, ...]

    @property
    def main(self) -> Thread | None:
        """The thread named MainThread, else the one that the process began with, else the first. None: no threads."""
        for thread in self.threads:
            if thread.name == "MainThread":
                return thread
        for thread in self.threads:
            if thread.ident == str(self.pid):
                return thread
        return self.threads[0] if self.threads else None

    @property
    def holder(self) -> Thread | None:
        """The thread that held the GIL at that moment."""
        return next((thread for thread in self.threads if thread.gil), None)


def clean(text: str) -> str:
    """Text that may meet a terminal: nothing that cannot be printed but line ends, a tab becomes a space."""
    text = _ANSI.sub("", text.replace("\t", " "))
    return text if text.isprintable() else "".join(c for c in text if c == "\n" or c.isprintable())


def parse(text: str) -> Dump:
    """Never raises: what is no dump has no threads."""
    pid = 0
    threads: list[tuple[str, str, str, list[Frame]]] = []
    for line in text.split("\n"):
        if head := _THREAD.match(line):
            threads.append((head[1], head[2], head[3] or "", []))
        elif line.startswith("    ") and threads:
            found = _frame(line.strip())
            if found is not None:
                threads[-1][3].append(found)
        elif not threads and not pid and (process := _PROCESS.match(line)):
            pid = int(process[1][:18])  # a number of thousands of digits is no pid, and int() would refuse it
    return Dump(pid, tuple(_thread(*found) for found in threads))


def parse_all(text: str) -> tuple[Dump, ...]:
    """Parse the dumps of several processes, one after the other."""
    return tuple(parse(part) for part in _NEXT.split(text))


def top(thread: Thread | None, count: int = TOP) -> str:
    """Where a thread is, innermost first: the native call that it is in, if any, then the Python that called it.

    `clock_nanosleep (libc.so.6) < wait (train.py:7) < step (train.py:9)`
    """
    if thread is None:
        return ""
    calls = [frame for frame in thread.frames if frame.python]
    if not calls:
        calls = list(thread.frames)
    elif not thread.frames[0].python:
        calls.insert(0, thread.frames[0])
    return " < ".join(str(frame).replace("\n", " ") for frame in calls[:count])


def _thread(ident: str, status: str, name: str, frames: list[Frame]) -> Thread:
    words = status.split("+")
    return Thread(ident, clean(name), "active" in words, "gil" in words, tuple(frames))


def _frame(line: str) -> Frame | None:
    if not line.endswith(")") or " (" not in line:
        return None
    # A Python function has no blank in its name but its file may; with a C++ signature it is the other way round.
    first, last = line.partition(" ("), line.rpartition(" (")
    for function, _, rest in (first, last):
        place = _PLACE.match(rest[:-1])
        # int() takes at most 4300 digits, and a source file has fewer lines than nine of them can count
        frame = Frame(function, place[1], int(place[2][-9:])) if place else Frame(function, rest[:-1], 0)
        if frame.python:
            return frame
    return frame
