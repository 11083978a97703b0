"""Templates of log lines, mined as Drain does it, in one pass and in bounded memory. Pure.

P. He and others, "Drain: an online log parsing approach with fixed depth tree", ICWS 2017: lines of as many words and
with the same first word are compared; one that shares enough words with a template widens it, and else begins one.

Not by PyPI's drain3 0.9.11: it requires exactly cachetools 4.2.1 and jsonpickle 1.5.1 (which unpickles), so that it
cannot be installed beside, say, mlflow (cachetools 5 or newer), and this has to live in the environment of trainings.
Other than Drain a template never widens over a word that tells of something wrong: ERROR is no variant of INFO.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import eq

from transom_cli.diagnose.unknown.tokens import ANY, NUMBER, is_telling, masked, words_of

SIMILAR = 0.6  # share of a template's words that a line must have in common with it to widen it
TEMPLATES = 4000  # kept at most
LEAF = 64  # of them with as many words and the same first word
MEMO = 16384  # masked lines whose template is known by heart


@dataclass
class Cluster:
    """A template that is being made. gone: it is forgotten, and a line that was of it begins anew."""

    words: tuple[str, ...]
    count: int = 0
    gone: bool = False

    def fits(self, words: tuple[str, ...]) -> bool:
        """`words` are as many as these. A word that tells of something wrong fits itself alone."""
        return all(a == b or (a == ANY and not is_telling(b)) for a, b in zip(self.words, words, strict=True))

    def may_widen(self, words: tuple[str, ...]) -> bool:
        pairs = zip(self.words, words, strict=True)
        return not any(a != b and (is_telling(a) or is_telling(b)) for a, b in pairs)

    def widen(self, words: tuple[str, ...]) -> None:
        self.words = tuple([a if a == b else ANY for a, b in zip(self.words, words, strict=True)])


@dataclass
class Miner:
    """Feed it lines. Where there is no room the rarest template of its kind is forgotten."""

    lines: int = 0
    _leaves: dict[tuple[int, str], list[Cluster]] = field(default_factory=dict)
    _memo: dict[str, Cluster] = field(default_factory=dict)
    _size: int = 0

    def add(self, line: str) -> Cluster | None:
        """The template that the line belongs to from now on; None for a blank one."""
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
        """The same for the words of a template, which stands for `count` lines."""
        leaf = self._leaves.setdefault(_kind(words), [])
        cluster, fits = _nearest(leaf, words)
        if cluster is None:
            cluster = self._begin(leaf, words)
        elif not fits:
            cluster.widen(words)
        cluster.count += count
        return cluster

    def find(self, line: str) -> Cluster | None:
        """The template that the line fits as it is; nothing is learned."""
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
            cluster.gone = True  # no room for a kind of its own
        else:
            leaf.append(cluster)
            self._size += 1
        return cluster


def _kind(words: tuple[str, ...]) -> tuple[int, str]:
    first = words[0] if words else ""
    return len(words), ANY if NUMBER in first else first


def _nearest(leaf: list[Cluster], words: tuple[str, ...]) -> tuple[Cluster | None, bool]:
    """The template that the words fit (then True); else the one that is most alike, if it is enough, and may be widened
    by what differs; else None."""
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
