"""Log lines: cleaned for a terminal, and reduced to what one failure has in common on all ranks. Pure.

A fingerprint is the same for one failure wherever and whenever it happens. Numbers, addresses, paths, times and node
names are masked. A number that names the fault itself (an Xid, an error code, a signal) is kept.
"""

import re
from collections.abc import Collection
from functools import lru_cache

NOT_SAVED = "; training continues, and the next save tries again"  # ends a trainer's line about a save that failed
NUMBER, PATH, NODE = "#", "<path>", "<node>"
_LINE_LIMIT = 1000  # characters of a line that count
_DIGITS = 10  # of the hash

# One pass, the first match. Every part begins at a word boundary and takes each character once, so that the time grows
# linearly with the length of a line.
_MASK = r"""
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
    """
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_ROW = re.compile(r"#(?:[.,:](?: ?)#)+")


def mask(line: str, nodes: Collection[str] = ()) -> str:
    """Replace what is specific to one rank, step, host or moment with `#`, `<path>` and `<node>`.

    nodes: names that would else not be seen to be some (those with a number are masked by their number).
    """
    text = " ".join(line[:_LINE_LIMIT].split())
    if nodes:
        text = _WORD.sub(lambda word: _node(word[0], nodes), text)
    return _ROW.sub(NUMBER, _mask().sub(_masked, text))


def fingerprint(category: str, line: str, nodes: Collection[str] = ()) -> str:
    """A short name, equal for the same failure on another rank, step or host: `cuda_oom/3f2a91bc04`."""
    import hashlib

    digest = hashlib.sha256(mask(line, nodes).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{category or 'none'}/{digest[:_DIGITS]}"


@lru_cache(maxsize=1)
def _mask() -> re.Pattern[str]:
    """Compile it when a line is masked, which short commands do not."""
    return re.compile(_MASK, re.VERBOSE | re.IGNORECASE)


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


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CLEAN_LIMIT = 300
_LOOKED_AT = 4096  # characters of a line, control sequences and all


_GLOO = re.compile(
    r"\[[^\[\]\s]*/gloo/[^\]\s]+\] ?|\.? ?This is typically caused by a remote worker [^.;]*"
    r"(?:\.\s*Check the logs of the remote worker[^.;]*)?(?:\.?\s*GLHF!? ?[^\w\s;]*)?\.?"
)


def without_advice(text: str) -> str:
    """Shorten gloo's error for people: its source file and its general advice are left out."""
    return _GLOO.sub("", text) if "/gloo/" in text or "typically" in text else text


def clean(line: str) -> str:
    """A log line that may meet a terminal: no control characters, one line, not endless."""
    seen = line.rpartition("\r")[2][:_LOOKED_AT]
    return _CONTROL.sub("", seen.replace("\t", " ")).strip()[:_CLEAN_LIMIT]


def is_ours(line: str) -> bool:
    """Whether a rank's log line is the message of an exception of transom's own, which says nothing of the node."""
    return re.match(r"(?:\[rank\d+\]: ?)?transom_cli\.[\w.]+: ", line) is not None


def log_order(name: str, rank: int | None) -> tuple[bool, int, str]:
    """Sorts the logs of a launch by number, those of `rank` first."""
    return name not in (f"rank-{rank}.log", f"node-{rank}.log", f"rank-{rank}.kernel.log"), len(name), name
