"""The main threads of all ranks, clustered by where they stand; and who stands apart from the others. Pure.

As in ByteRobust (SOSP'25): in a job that steps together, the many stand where they wait and the few where the trouble
is. What a place is for counts before how many stand there: whoever waits in a collective waits for those who do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transom_cli.diagnose.clue import Category, Clue, Culprit
from transom_cli.diagnose.hangs.places import PERHAPS, WAITING, Kind, Place
from transom_cli.diagnose.hangs.words import do, told

SHOWN = 4  # clusters told
MANY = 2 / 3  # of the ranks stand at one place: then it is where one waits, whatever it is
_SURE = {
    Kind.LOADER: (Category.DATA_LOADER, 0.85),
    Kind.CHECKPOINT: (Category.STORAGE_IO, 0.8),
    Kind.STORAGE: (Category.STORAGE_IO, 0.75),
}
"""What a place says of the cause, and how sure. Of the others no category tells more than that it hangs."""


@dataclass(frozen=True)
class Stand:
    """One rank: where its main thread stands. died: what its dump says of its death, "" for nothing."""

    rank: int
    node: str
    place: Place
    died: str = ""


@dataclass(frozen=True)
class Cluster:
    """Ranks at one place. example: the innermost calls of one of them, with lines."""

    kind: Kind
    path: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    example: str

    def __str__(self) -> str:
        return f"{do(self.ranks, 'stand', 'stands')} in {self.kind.value}{f': {self.example}' if self.example else ''}"


@dataclass(frozen=True)
class Apart:
    """ranks: who stands apart, () for nobody or not determinable. kind: where. sure: 0 to 1. words: why."""

    ranks: tuple[int, ...]
    kind: Kind
    sure: float
    words: str


def cluster(stands: Iterable[Stand]) -> tuple[Cluster, ...]:
    """The largest first. A rank without a stack is at an unknown place.

    A stack without native frames joins those of the same Python calls that have them: the library's call which they
    tell of is not to be seen in it.
    """
    stands = tuple(stands)
    seen = Counter((s.place.path, s.place.kind) for s in stands if s.place.native)
    usual: dict[tuple[str, ...], Kind] = {}
    for (path, kind), _ in seen.most_common():
        usual.setdefault(path, kind)
    found: dict[tuple[Kind, tuple[str, ...]], list[Stand]] = {}
    for stand in stands:
        kind = stand.place.kind if stand.place.native else usual.get(stand.place.path, stand.place.kind)
        found.setdefault((kind, stand.place.path), []).append(stand)
    clusters = [
        Cluster(
            kind,
            path,
            tuple(sorted(s.rank for s in here)),
            tuple(sorted({s.node for s in here if s.node})),
            min(here, key=lambda s: s.rank).place.words,
        )
        for (kind, path), here in found.items()
    ]
    return tuple(sorted(clusters, key=lambda c: (-len(c.ranks), c.ranks)))


def apart(clusters: Sequence[Cluster]) -> Apart:
    """Who the others wait for, as far as stacks tell. Ranks at an unknown place count neither way."""
    known = [c for c in clusters if c.kind is not Kind.UNKNOWN]
    total = sum(len(c.ranks) for c in known)
    if not known:
        return Apart((), Kind.UNKNOWN, 0.0, "no stack tells where its rank stands")
    waits = [c for c in known if c.kind in WAITING]
    perhaps = [c for c in known if c.kind in PERHAPS]
    elsewhere = [c for c in known if c.kind not in WAITING and c.kind not in PERHAPS]
    if elsewhere and (waits or perhaps):
        sure = _SURE.get(elsewhere[0].kind, (None, 0.75))[1]
        return _few(elsewhere, total, sure if waits else sure - 0.1, "the others wait")
    if waits and perhaps:
        one = min(waits, perhaps, key=_size)
        sure = 0.6 if one is perhaps else 0.4
        return _few(one, total, sure, f"the others stand in {(perhaps if one is waits else waits)[0].kind.value}")
    if any(c.kind is Kind.PEER for c in known):
        return Apart(
            (), known[0].kind, 0.3, "all wait for each other, in sends and receives of which stacks tell no more"
        )
    if len(known) == 1:
        return Apart((), known[0].kind, 0.3, f"all stand at the same place, in {known[0].kind.value}")
    if all(c.kind in WAITING for c in known):
        if len(known) == 2 and len(known[1].ranks) == 1 and total > 2:  # it may have left one out, or be its victim
            return _few(known[1:], total, 0.4, "the others wait in another collective")
        return Apart(
            (), known[0].kind, 0.3, "all wait, in several collectives: stacks do not tell who came to which too late"
        )
    if len(known[0].ranks) >= MANY * total:
        return _few(known[1:], total, 0.5, "the others stand at another place")
    return Apart((), known[0].kind, 0.2, "no group is so much larger than the others that it tells who is waited for")


def _size(clusters: Sequence[Cluster]) -> int:
    return sum(len(c.ranks) for c in clusters)


def _few(suspects: Sequence[Cluster], total: int, sure: float, others: str) -> Apart:
    """Those suspects, unless they are the larger part: what keeps most of a job is no fault of one of its ranks."""
    ranks = tuple(sorted(rank for c in suspects for rank in c.ranks))
    kinds = Counter({c.kind: len(c.ranks) for c in suspects})
    kind = kinds.most_common(1)[0][0]
    words = f"{do(ranks, 'stand', 'stands')} in {kind.value}, {others}"
    if len(kinds) > 1:
        words = f"{'; '.join(str(c) for c in suspects[:3])}; {others}"
    if 2 * len(ranks) > total:
        return Apart((), kind, min(sure, 0.5), f"{words}: too many for a fault of one of them")
    return Apart(ranks, kind, sure, words)


def told_apart(clusters: Sequence[Cluster]) -> tuple[str, ...]:
    """The largest clusters, a sentence each."""
    return tuple(str(c) for c in clusters if c.kind is not Kind.UNKNOWN)[:SHOWN]


def category(kind: Kind) -> Category:
    """What a rank that others wait for suffers of, by where it stands."""
    return _SURE.get(kind, (Category.NCCL_HANG, 0.0))[0]


def clue(stands: Sequence[Stand]) -> Clue | None:
    """What the stacks alone tell. None where there is no stack."""
    clusters = cluster(stands)
    if not any(c.kind is not Kind.UNKNOWN for c in clusters):
        return None
    found = apart(clusters)
    nodes = {stand.rank: stand.node for stand in stands}
    evidence = [found.words, *told_apart(clusters)]
    evidence += [f"rank {stand.rank}: {stand.died}" for stand in stands if stand.died][:4]
    blind = [stand.rank for stand in stands if stand.place.kind is Kind.UNKNOWN]
    if blind:
        evidence.append(f"no stack of {told(blind)}")
    return Clue(
        "stacks",
        category(found.kind) if found.ranks or found.kind in _SURE else Category.NCCL_HANG,
        found.sure,
        tuple(dict.fromkeys(evidence)),
        culprits=tuple(Culprit(nodes[rank], rank) for rank in found.ranks),
    )
