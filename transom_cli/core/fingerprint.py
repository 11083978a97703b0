"""One failure, wherever and whenever it happens: a line of a log without what differs from rank to rank. Pure.

Masked are numbers, addresses, paths, times, and the names of nodes. Not masked is a number that names the fault itself
(an Xid, an error code, a signal): another one is another failure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

NUMBER, PATH, NODE = "#", "<path>", "<node>"
_LINE_LIMIT = 1000  # characters that are looked at
_DIGITS = 10  # of the hash

# One pass, the first that fits. Every part begins where no word goes on and takes each character once: `re` must be
# done with any line in time that grows with its length.
_MASK = re.compile(
    r"""
    (?P<xid>\bXid\s\(PCI[^)]{0,40}\):\s\d+)
  | (?P<keep>\b(?:errno|error(?:\scode)?|code|signal|status|xid)\b(?:\s?[=:\#(]\s?|\s)\d+\b(?![.:]\d))
  | (?P<path>(?<![\w.~/])(?:[a-z][a-z0-9]{1,9}:/)?(?:~|\.{1,2})?(?:/[\w.@%+=~,\#-]+)+/?)
  | (?P<time>(?<!\w)\d{4}-\d\d-\d\d[T\s]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?!\w))
  | (?P<day>\b(?:(?:mon|tue|wed|thu|fri|sat|sun)\s)?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\s{1,2}\d{1,2}\b
      (?:\s\d{4}\b)?(?:\s\d\d:\d\d(?::\d\d)?)?(?:\s\d{4}\b)?)
  | (?P<bar>\d+%\|[^|]{0,200}\|)
  | (?P<ipv6>(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:]))
  | (?P<address>0x[0-9a-f]+)
  | (?P<uuid>(?<!\w)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?!\w))
  | (?P<hex>(?<!\w)(?:(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}|[a-f]{12,})(?!\w))
  | (?P<number>(?:(?<![\w)\]])[+-])?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:\s?(?:[kmgt]i?b|bytes)\b)?)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_ROW = re.compile(r"#(?:[.,:](?: ?)#)+")


def mask(line: str, nodes: Collection[str] = ()) -> str:
    """The line with `#`, `<path>` and `<node>` where it tells of one rank, step, host or moment.

    nodes: names that would else not be seen to be some (those with a number are masked by their number).
    """
    text = " ".join(line[:_LINE_LIMIT].split())
    if nodes:
        text = _WORD.sub(lambda word: _node(word[0], nodes), text)
    return _ROW.sub(NUMBER, _MASK.sub(_masked, text))


def fingerprint(category: str, line: str, nodes: Collection[str] = ()) -> str:
    """A short name, equal for the same failure on another rank, step or host: `cuda_oom/3f2a91bc04`."""
    digest = hashlib.sha256(mask(line, nodes).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{category or 'none'}/{digest[:_DIGITS]}"


def _node(word: str, nodes: Collection[str]) -> str:
    """A node's name, with its domain or without."""
    host, dot, rest = word.partition(".")
    if word in nodes or (host in nodes and not rest[:1].isdigit()):
        return NODE + ("" if rest else dot)
    return word


def _masked(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if kind in ("keep", "xid"):
        return found[0] if kind == "keep" else f"Xid: {found[0].rpartition(' ')[2]}"
    return PATH if kind == "path" else NUMBER
