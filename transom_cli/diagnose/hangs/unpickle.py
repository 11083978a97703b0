"""A flight recorder's dump as plain values, be it torch's pickle or its JSON: bytes in, values out.

To unpickle is to run what the file says. So the opcodes are read first, by length alone, and a file that has any but
those which make numbers, text, bytes, lists, tuples and dictionaries is refused before a single one is carried out;
and the unpickler that then does finds no class. Sizes and the memo's numbers are limited too: a few bytes might ask
for gigabytes.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from typing import Any

from transom_cli.errors import TransomError

LIMIT = 64 << 20  # bytes of one dump, as the agent copies them
DEEP = 64  # levels of JSON
_INTEGERS = b"|".join(b"\x8a" + bytes([n]) + b".{%d}" % n for n in range(17))  # LONG1, of n bytes each
# Opcodes of a fixed length, none of which calls or imports anything; the commonest stand first.
_FIXED = re.compile(
    rb"(?:h.|[N\x88\x89()\]}taesu\x85\x86\x87\x94]+"  # BINGET; None, booleans, what makes and fills lists and the like
    rb"|j..[\x00-\x3f]\x00|[Kq].|M..|J....|r..[\x00-\x3f]\x00|G.{8}|\x95.{8}|"  # the memo, its numbers limited; numbers
    + _INTEGERS + rb"){1,4096}",
    re.DOTALL,
)  # fmt: skip
_PROTO, _STOP = b"\x80", ord(".")
# Opcodes with a length before their text or bytes: BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, and the same of bytes.
_COUNTED = {ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("B"): 4, ord("C"): 1, 0x8E: 8, ord("T"): 4, ord("U"): 1}


class BadDump(TransomError):
    """These bytes are no flight recorder dump, or one that is not safe to read."""

    kind = "bad_dump"

    def __init__(self, why: str) -> None:
        super().__init__("Cannot read the flight recorder's dump", why, "take it again, or leave the file out")


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise BadDump(f"it names {module}.{name}: a dump has values alone")


def load(data: bytes) -> dict[str, Any]:
    """The dump's dictionary, of nothing but dict, list, tuple, str, int, float, bool, None and bytes.

    Raises BadDump, and nothing else, for whatever is not such a dump: cut short, too large, or with code in it.
    """
    if len(data) > LIMIT:
        raise BadDump(f"{len(data) >> 20} MiB: more than {LIMIT >> 20}")
    try:
        found = _json(data) if data.lstrip()[:1] == b"{" else _unpickled(data)
    except BadDump:
        raise
    except (RecursionError, MemoryError):
        raise BadDump("it is nested too deeply, or asks for too much memory") from None
    except Exception as error:  # whatever an unpickler makes of garbage
        raise BadDump(f"damaged or cut short: {error!r}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list) or "version" not in found:
        raise BadDump("it has no version and no entries")
    return found


def is_dump(head: bytes) -> bool:
    """By the first kilobytes: a pickle of protocol 2 or later, or JSON, and some of torch's keys."""
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
    """Walk over the opcodes without carrying out any. Raises BadDump for one that may not be there."""
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
            raise BadDump(f"the pickle's opcode {bytes([code])!r} at byte {at} is not one that plain values need")
        length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        at += 1 + width + length
    raise BadDump("cut short")
