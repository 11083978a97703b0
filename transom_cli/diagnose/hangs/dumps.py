"""Parse the dumps of a hang: flight recorder dumps (torch's pickle or JSON) and stacks of py-spy or faulthandler. Pure.

Unpickling runs what the file says. So the opcodes are checked first, by length alone. A file with any opcode that does
not make numbers, text, bytes, lists, tuples or dictionaries is refused before anything runs, and the unpickler finds no
class. Sizes and memo numbers are limited, since a few bytes could request gigabytes.

faulthandler (cpython, Python/traceback.c) writes

    Fatal Python error: Aborted                       or: Timeout (0:05:00)!

    Current thread 0x00007f1c (most recent call first):
      File "/home/u/train.py", line 12 in step
      ...

with the innermost frame first, like py-spy. It does not name threads (3.14 does, in brackets), and "current" is the
thread that received the signal. The result is a `core.stacks.Dump`, as for py-spy.
"""

import io
import json
import pickle
import re
from typing import Any

from transom_cli.core import stacks
from transom_cli.core.stacks import Dump, Frame, Thread
from transom_cli.errors import TransomError

LIMIT = 64 << 20  # bytes of one dump; the agent copies at most as many
DEEP = 64  # levels of JSON
_INTEGERS = b"|".join(b"\x8a" + bytes([n]) + b".{%d}" % n for n in range(17))  # LONG1, n bytes each
# Opcodes of fixed length that neither call nor import anything, the most frequent first.
_FIXED = re.compile(
    rb"(?:h.|[N\x88\x89()\]}taesu\x85\x86\x87\x94]+"  # BINGET; None, booleans, and what builds lists
    rb"|j..[\x00-\x3f]\x00|[Kq].|M..|J....|r..[\x00-\x3f]\x00|G.{8}|\x95.{8}|"  # the memo, its numbers limited; numbers
    + _INTEGERS + rb"){1,4096}",
    re.DOTALL,
)  # fmt: skip
_PROTO, _STOP = b"\x80", ord(".")
# Opcodes with a length before their text or bytes: BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, and the same for bytes.
_COUNTED = {ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("B"): 4, ord("C"): 1, 0x8E: 8, ord("T"): 4, ord("U"): 1}


class BadDump(TransomError):
    """The bytes are not a flight recorder dump, or not one that is safe to read."""

    kind = "bad_dump"

    def __init__(self, why: str) -> None:
        super().__init__("Cannot read the flight recorder dump", why, "take another dump, or leave the file out")


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise BadDump(f"it names {module}.{name}: a dump contains plain values only")


def load(data: bytes) -> dict[str, Any]:
    """Return the dump's dictionary, made of dict, list, tuple, str, int, float, bool, None and bytes only.

    Raises:
        BadDump: the data is not such a dump: cut short, too large, or with code in it. Nothing else is raised.
    """
    if len(data) > LIMIT:
        raise BadDump(f"{len(data) >> 20} MiB: more than {LIMIT >> 20}")
    try:
        found = _json(data) if data.lstrip()[:1] == b"{" else _unpickled(data)
    except BadDump:
        raise
    except (RecursionError, MemoryError):
        raise BadDump("it is nested too deeply, or requests too much memory") from None
    except Exception as error:  # an unpickler raises anything on damaged data
        raise BadDump(f"damaged or cut short: {error!r}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list) or "version" not in found:
        raise BadDump("it has no version and no entries")
    return found


def is_dump(head: bytes) -> bool:
    """Check the first kilobytes for a pickle (protocol 2 or later) or JSON, and some of torch's keys."""
    begins = (head[:1] == _PROTO and len(head) > 2 and head[1] <= pickle.HIGHEST_PROTOCOL) or head.lstrip()[:1] == b"{"
    return begins and any(
        key in head for key in (b"pg_config", b"collective_seq_id", b"pg_status", b"comm_lib_version")
    )


def _json(data: bytes) -> Any:
    depth = deepest = 0
    for found in re.finditer(rb'"(?:[^"\\]|\\.)*"|[][{}]', data):
        mark = found[0]
        depth += 1 if mark in b"[{" else -1 if mark in b"]}" else 0
        deepest = max(deepest, depth)
    if deepest > DEEP:
        raise BadDump(f"nested {deepest} deep")
    return json.loads(data)


def _unpickled(data: bytes) -> Any:
    check(data)
    return _Plain(io.BufferedReader(io.BytesIO(data), len(data))).load()  # without peek() it reads byte by byte


def check(data: bytes) -> None:
    """Walk over the opcodes without running any. Raises BadDump for one that is not allowed."""
    if data[:1] != _PROTO:
        raise BadDump("neither JSON nor a pickle of protocol 2 or later")
    at = 2
    while at < len(data):
        if run := _FIXED.match(data, at):
            at = run.end()
            continue
        code = data[at]
        if code == _STOP:
            return
        width = _COUNTED.get(code)
        if width is None:
            raise BadDump(f"the pickle opcode {bytes([code])!r} at byte {at} is not needed for plain values")
        length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        at += 1 + width + length
    raise BadDump("cut short")


_THREAD = re.compile(r"(Current t|T)hread (0x[0-9a-fA-F]{1,16})(?: \[([^\]\n]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "([^"\n]*)", line (\d{1,9}|\?\?\?) in (.+)')
_FATAL = re.compile(r"(?:Fatal Python error: .+|Timeout \(\d+:\d\d:\d\d[.\d]*\)!)")
_PYSPY = re.compile(r"^Process \d+: .*\n(?:Python v\d.*\n)?|^Thread \S+ \((?:active|idle)[+a-z]*\)", re.MULTILINE)
_STARTS = ("_bootstrap", "_bootstrap_inner", "Thread._bootstrap", "Thread._bootstrap_inner", "_worker")
MAIN = "MainThread"


def is_stack(text: str) -> bool:
    """Whether the text begins like a dump of py-spy or faulthandler. A log that contains a dump does not count."""
    head = text[:4096].lstrip()
    return bool(_THREAD.match(head) or (_FATAL.match(head) and _THREAD.search(head)) or _PYSPY.match(head))


def parse(text: str) -> Dump:
    """Parse a dump. Never raises: other text has no threads. The main thread is named if it can be identified."""
    return faulthandler(text) if _THREAD.search(text) else stacks.parse(text)


def fatal(text: str) -> str:
    """Return `Fatal Python error: Aborted` if the dump says that its process died of one, else ""."""
    found = _FATAL.search(text[:4096])
    return stacks.clean(found[0]) if found and found[0].startswith("Fatal") else ""


def faulthandler(text: str) -> Dump:
    """Parse the threads of faulthandler's text. Other lines are skipped."""
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
    """Return the index of the main thread. A thread of `threading` ends in its bootstrap, the program itself in a
    module. The newest threads come first, so the last candidate is the main thread."""
    begun = [at for at, (_, frames) in enumerate(threads) if frames and frames[-1].function == "<module>"]
    others = [at for at, (_, frames) in enumerate(threads) if frames and frames[-1].function not in _STARTS]
    return next(iter(begun[-1:] or others[-1:]), len(threads) - 1)
