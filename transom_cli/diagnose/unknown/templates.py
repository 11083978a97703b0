"""Templates of healthy log lines, mined as Drain does, in one pass and in bounded memory. Pure.

A line is split into words in which numbers, paths and addresses are masked: every run of digits becomes "0". This mask
is fast (a few microseconds per line); `core.log_lines` has a thorough one for single lines.

P. He et al., "Drain: an online log parsing approach with fixed depth tree", ICWS 2017: lines with the same number of
words and the same first word are compared. A line that shares enough words with a template widens it, otherwise it
starts a new one.

PyPI's drain3 0.9.11 is not used: it requires exactly cachetools 4.2.1 and jsonpickle 1.5.1 (which unpickles), so it
cannot be installed beside, say, mlflow (cachetools 5 or newer), and this code runs in the environment of trainings.
Unlike Drain, a template never widens over an error word: ERROR is not a variant of INFO.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import eq

from transom_cli.core.log_lines import clean

NUMBER, PATH, ANY = "0", "<path>", "<*>"
WORDS = 64  # of a line that are compared
_LINE_LIMIT = 2000  # characters of a line
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"([\[({\"'<=|]*)[-+]?0(?:[.,:/xeE+-]{1,3}0)*%?([\])}\"'>,;:.|]*)")
_HEX = re.compile(r"([\[({\"'<=]*)(?:0x[0a-f]+|(?=[a-f]*0)[0a-f]{5,})([\])}\"'>,;:.]*)", re.IGNORECASE)
_PATH = re.compile(r"((?:[\w.-]{1,40}=)?[\[({\"']*)(?:[A-Za-z0-9]{2,10}:/)?(?:~|\.{1,2})?/[^\"')\]]{2,}([\])}\"',;:]*)")
_TELLING = re.compile(
    r"error|exception|fail|fatal|abort|kill|panic|traceback|crash|corrupt|denied|refused|cannot|unable|invalid|illegal"
    r"|timeout|timed|overflow|missing|unreachable|unexpected|lost|broken|closed|reset|segfault|core dumped"
    r"|\bnan\b|\binf\b|\boom\b",
    re.IGNORECASE,
)


def masked(line: str) -> str:
    """Replace each run of digits by "0", the usual difference between two lines of a healthy training.

    Of a progress bar the last state counts. Colours are removed.
    """
    if "\r" in line or "\x1b" in line:
        line = clean(line)
    return _DIGITS.sub(NUMBER, line[:_LINE_LIMIT])


def words_of(line: str) -> tuple[str, ...]:
    """Return the words of a masked line, with numbers, addresses and paths replaced; () for a blank line."""
    return tuple([_word(word) for word in line.split(None, WORDS)[:WORDS]])


def has_error_word(text: str) -> bool:
    """Whether the text contains an error word."""
    return _TELLING.search(text) is not None


@lru_cache(maxsize=1 << 15)
def _word(word: str) -> str:
    if NUMBER not in word and "/" not in word:
        return word
    found = _NUMBER.fullmatch(word) or _HEX.fullmatch(word)
    if found:
        return found[1] + NUMBER + found[2]
    found = _PATH.fullmatch(word) if "/" in word else None
    return found[1] + PATH + found[2] if found else word


SIMILAR = 0.6  # share of a template's words that a line must share to widen it
TEMPLATES = 4000  # most that are kept
LEAF = 64  # most with the same number of words and the same first word
MEMO = 16384  # masked lines whose template is cached


@dataclass
class Cluster:
    """A template under construction. gone: it was dropped, and its lines start a new one."""

    words: tuple[str, ...]
    count: int = 0
    gone: bool = False

    def fits(self, words: tuple[str, ...]) -> bool:
        """Whether as many words match this template. An error word matches itself only."""
        return all(a == b or (a == ANY and not has_error_word(b)) for a, b in zip(self.words, words, strict=True))

    def may_widen(self, words: tuple[str, ...]) -> bool:
        pairs = zip(self.words, words, strict=True)
        return not any(a != b and (has_error_word(a) or has_error_word(b)) for a, b in pairs)

    def widen(self, words: tuple[str, ...]) -> None:
        self.words = tuple([a if a == b else ANY for a, b in zip(self.words, words, strict=True)])


@dataclass
class Miner:
    """Mines templates from lines. If there is no room, the rarest template of the kind is dropped."""

    lines: int = 0
    _leaves: dict[tuple[int, str], list[Cluster]] = field(default_factory=dict)
    _memo: dict[str, Cluster] = field(default_factory=dict)
    _size: int = 0

    def add(self, line: str) -> Cluster | None:
        """Return the template that the line belongs to, or None for a blank line."""
        self.lines += 1
        known = masked(line)
        cluster = self._memo.get(known)
        if cluster is None or cluster.gone:
            words = words_of(known)
            if not words:
                return None
            cluster = self.put(words, 0)
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[known] = cluster
        cluster.count += 1
        return cluster

    def put(self, words: tuple[str, ...], count: int) -> Cluster:
        """Add a template that represents `count` lines."""
        leaf = self._leaves.setdefault(_kind(words), [])
        cluster, fits = _nearest(leaf, words)
        if cluster is None:
            cluster = self._begin(leaf, words)
        elif not fits:
            cluster.widen(words)
        cluster.count += count
        return cluster

    def find(self, line: str) -> Cluster | None:
        """Return the template that matches the line, without learning from it."""
        words = words_of(masked(line))
        cluster, fits = _nearest(self._leaves.get(_kind(words), []), words)
        return cluster if fits else None

    @property
    def clusters(self) -> Iterable[Cluster]:
        return (cluster for leaf in self._leaves.values() for cluster in leaf)

    def _begin(self, leaf: list[Cluster], words: tuple[str, ...]) -> Cluster:
        cluster = Cluster(words)
        if len(leaf) >= LEAF or (self._size >= TEMPLATES and leaf):
            rarest = min(leaf, key=lambda c: c.count)
            rarest.gone = True
            leaf[leaf.index(rarest)] = cluster
        elif self._size >= TEMPLATES:
            cluster.gone = True  # no room for another template of this kind
        else:
            leaf.append(cluster)
            self._size += 1
        return cluster


def _kind(words: tuple[str, ...]) -> tuple[int, str]:
    first = words[0] if words else ""
    return len(words), ANY if NUMBER in first else first


def _nearest(leaf: list[Cluster], words: tuple[str, ...]) -> tuple[Cluster | None, bool]:
    """Return the template that the words match, and True; else the most similar one that may be widened, or None."""
    best, most = None, SIMILAR * len(words)
    for cluster in leaf:
        same = sum(map(eq, cluster.words, words))
        if same < most and ANY not in cluster.words:
            continue
        if cluster.fits(words):
            return cluster, True
        if same >= most and cluster.may_widen(words):
            best, most = cluster, same + 0.5
    return best, False


@dataclass(frozen=True)
class Template:
    """words: as `words_of` returns them, "<*>" where lines differ. count: lines that matched."""

    words: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True)
class Templates:
    """lines: how many were read, including blank ones. The rarest templates may have been dropped (`TEMPLATES`)."""

    templates: tuple[Template, ...] = ()
    lines: int = 0

    def merge(self, other: Templates) -> Templates:
        """Return both sets as one, as far as there is room."""
        both = Miner(lines=self.lines + other.lines)
        for template in sorted((*self.templates, *other.templates), key=lambda t: (-t.count, t.words)):
            both.put(template.words, template.count)
        return templates_of(both)

    def knows(self, line: str) -> bool:
        """Whether the line looks like a healthy one. Blank lines do."""
        return not line.strip() or self._index.find(line) is not None

    @cached_property
    def _index(self) -> Miner:
        index = Miner()
        for template in self.templates:
            index.put(template.words, template.count)
        return index


def mine(lines: Iterable[str]) -> Templates:
    """Return the templates of these lines, in one pass and in bounded memory; about 10 microseconds per line.

    The lines should come from a healthy phase; sample millions of lines with `Tape`.
    """
    miner = Miner()
    for line in lines:
        miner.add(line)
    return templates_of(miner)


def templates_of(miner: Miner) -> Templates:
    """Return the templates, the most frequent first."""
    found = (Template(c.words, c.count) for c in miner.clusters)
    return Templates(tuple(sorted(found, key=lambda t: (-t.count, t.words))), miner.lines)
