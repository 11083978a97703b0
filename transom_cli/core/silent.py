"""Silent corruption: which node computes wrong, from what the ranks' guards report. Pure.

One finding is a doubt, never a verdict: software may differ too. On a doubt the run goes back to the last step that is
proven clean, and the launcher moves every rank to another node. So the steps in between are repeated with the same data
elsewhere, and their result decides:

- the repetition is clean, and agrees to the bit with what the other ranks had: the node was wrong that once;
- the doubt returns on the same node, with another rank: the node is wrong;
- the doubt returns with the same rank on another node, or holds on most nodes at once: the software is at fault;
- anything else leaves it open. Nobody is isolated.

Without a majority (two replicas), the repetition is the third opinion: who differs from it was wrong. If both reproduce
their own bits, only a third node could tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.diagnose.clue import Category, Clue, Culprit, Silent

PATIENCE = 2  # further readings before a wrong product counts: other ranks may report the same
REPLICA, PRODUCT, VALUE = "replica", "product", "value"


@dataclass(frozen=True)
class Guarded:
    """What the guard of one rank has reported; record: as `heartbeat.guard_record`, from another process."""

    rank: int
    node: str
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Doubt:
    """A finding.

    equal: step, turn and digest of comparisons before it, by which ranks see whether the training is deterministic.
    """

    launch: int
    step: int
    clean: int  # the newest step proven clean before it
    kind: str
    item: str
    words: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]  # of `ranks`, the ranks that differ
    placed: tuple[tuple[int, str], ...]  # every rank's node
    majority: bool = True
    digests: tuple[str, ...] = ()  # of each rank, if replicas differ
    repeat: int = 0  # what ranks repeat of the step, in their own numbers
    equal: tuple[tuple[int, int, int], ...] = ()

    def node_of(self, rank: int) -> str:
        return dict(self.placed).get(rank, "")


@dataclass(frozen=True)
class Found:
    what: Silent  # one of `diagnose.clue.Silent`
    step: int
    nodes: tuple[str, ...]
    words: str
    before: int = -1  # the newest clean step; -1: the present state is clean

    @property
    def clue(self) -> Clue:
        confidence = 0.9 if self.what is Silent.NODE else 0.5
        culprits = tuple(Culprit(node) for node in self.nodes)
        return Clue("guard", Category.GPU_HARDWARE, confidence, (self.words,), culprits)


@dataclass(frozen=True)
class SilentState:
    open: Doubt | None = None  # the doubt that a repetition will settle
    waited: int = 0  # readings since a doubt of this launch was first seen
    judged: int = -1  # the newest launch in which a doubt was judged
    verdict: str = ""  # and how
    unsettled: int = 0  # doubts in a row that nothing settled
    reported: tuple[str, ...] = ()  # layers with values that are not finite

    def inherited(self) -> SilentState:
        """As the next attempt of the run begins with it, whose launches are counted from 0."""
        known = replace(self.open, launch=-1) if self.open is not None else None
        return replace(self, open=known, waited=0, judged=-1, verdict="", reported=())


def watch(state: SilentState, launch: int, guards: Iterable[Guarded]) -> tuple[SilentState, tuple[Found, ...]]:
    """Judge what the guards of the present launch report."""
    seen = tuple(guards)
    doubts = _doubts(launch, seen)
    values = [d for d in doubts if d.kind == VALUE and d.item not in state.reported]
    state = replace(state, reported=(*state.reported, *(d.item for d in values)))
    found = tuple(Found(Silent.VALUE, d.step, (), d.words) for d in values[:1])
    doubts = [d for d in doubts if d.kind != VALUE]
    if launch <= state.judged:
        return state, found
    if doubts:
        if state.waited < PATIENCE and doubts[0].kind == PRODUCT:
            return replace(state, waited=state.waited + 1), found
        state, judged = _judge(replace(state, waited=0, judged=launch), doubts, len({g.node for g in seen}))
        return replace(state, verdict=judged.what.value), (*found, judged)
    if state.open is not None and launch > state.open.launch:
        settled = _repeated(state.open, seen)
        if settled is not None:
            return replace(state, open=None, unsettled=0), (*found, settled)
    return state, found


def _doubts(launch: int, seen: tuple[Guarded, ...]) -> list[Doubt]:
    """Return the earliest doubt of each kind, the strongest first. Events of replicas are the same on all ranks."""
    placed = tuple(sorted((g.rank, g.node) for g in seen))
    where = dict(placed)
    found: dict[str, list[Doubt]] = {}
    for one in seen:
        for event in one.record.get("events") or ():
            try:
                ranks = tuple(int(r) for r in event["ranks"])
                doubt = Doubt(
                    launch, int(event["step"]), int(event["clean"]), str(event["kind"]), str(event["item"]),
                    str(event["words"]), ranks, tuple(dict.fromkeys(where.get(r, "") for r in ranks)), placed,
                    bool(event["majority"]), tuple(str(d) for d in event["digests"]), int(event.get("repeat", 0)),
                    tuple((int(s), int(turn), int(digest)) for s, turn, digest in event.get("equal", ())),
                )  # fmt: skip
            except (KeyError, TypeError, ValueError):
                continue
            found.setdefault(doubt.kind, []).append(doubt)
    merged = []
    for kind in (REPLICA, PRODUCT, VALUE):
        some = found.get(kind)
        if some:
            first = min(some, key=lambda d: d.step)
            same = some if kind == PRODUCT else [first]
            ranks = tuple(dict.fromkeys(r for d in same for r in d.ranks))
            nodes = tuple(dict.fromkeys(n for d in same for n in d.nodes))
            merged.append(replace(first, ranks=ranks, nodes=nodes, clean=min(d.clean for d in some)))
    return merged


def _judge(state: SilentState, doubts: list[Doubt], nodes: int) -> tuple[SilentState, Found]:
    doubt = replace(doubts[0], clean=min(d.clean for d in doubts))
    before = state.open
    if _everywhere(doubt, nodes):
        words = f"{doubt.words}; the same on {len(doubt.nodes)} of {nodes} nodes, so the software differs, not a node"
        return replace(state, open=None), Found(Silent.SOFTWARE, doubt.step, (), words)
    if before is None:
        words = f"{doubt.words}; the weights are doubtful from step {doubt.clean + 1} on"
        return replace(state, open=doubt), Found(Silent.CORRUPTION, doubt.step, _named(doubt), words, doubt.clean)
    culprits = _again(before, doubt)
    if culprits:
        words = f"{doubt.words}; before, in launch {before.launch}: {before.words}. Both times {', '.join(culprits)}, "
        words += f"with other ranks; the weights are doubtful from step {doubt.clean + 1} on"
        return replace(state, open=None, unsettled=0), Found(Silent.NODE, doubt.step, culprits, words, doubt.clean)
    follows = _follows_rank(before, doubt)
    if state.unsettled or follows:
        words = f"{doubt.words}; before, in launch {before.launch} on other nodes: {before.words}. "
        words += "It follows the rank, not a node" if follows else "No node explains both"
        what = Silent.SOFTWARE if follows else Silent.OPEN
        return replace(state, open=None, unsettled=0), Found(what, doubt.step, (), words)
    words = f"{doubt.words}; before: {before.words}; the weights are doubtful from step {doubt.clean + 1} on"
    state = replace(state, open=doubt, unsettled=state.unsettled + 1)
    return state, Found(Silent.CORRUPTION, doubt.step, _named(doubt), words, doubt.clean)


def _everywhere(doubt: Doubt, nodes: int) -> bool:
    """Whether most nodes differ, so that no node is at fault. Two replicas always differ from each other."""
    if doubt.kind == REPLICA and not doubt.majority:
        return len(doubt.ranks) > 2 and len(set(doubt.digests)) == len(doubt.digests)
    return nodes > 1 and len(doubt.nodes) * 2 >= max(nodes + (doubt.kind == REPLICA), 3)


def _named(doubt: Doubt) -> tuple[str, ...]:
    return doubt.nodes if doubt.majority else ()


def _again(before: Doubt, doubt: Doubt) -> tuple[str, ...]:
    """The nodes that differ both times, with other ranks."""
    if before.majority and doubt.majority:
        return tuple(
            n
            for n in doubt.nodes
            if n and n in before.nodes and not {r for r in doubt.ranks if doubt.node_of(r) == n} & set(before.ranks)
        )
    if doubt.step != before.step or before.kind != REPLICA or doubt.kind != REPLICA:
        return ()
    # No majority: a node that gives other bits the second time is wrong, if the others reproduce theirs.
    then, now = _by_node(before), _by_node(doubt)
    both = [n for n in now if n in then]
    changed = [n for n in both if now[n] != then[n]]
    return tuple(changed) if 0 < len(changed) < len(both) else ()


def _by_node(doubt: Doubt) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for (rank, node), _ in zip(doubt.placed, doubt.digests, strict=False):
        found[node] = (*found.get(node, ()), doubt.digests[rank] if rank < len(doubt.digests) else "")
    return {node: tuple(sorted(digests)) for node, digests in found.items()}


def _follows_rank(before: Doubt, doubt: Doubt) -> bool:
    if doubt.majority and before.majority:
        return bool({r for r in doubt.ranks if r in before.ranks and doubt.node_of(r) != before.node_of(r)})
    return bool(doubt.digests) and doubt.digests == before.digests and doubt.placed != before.placed


def _same(repeated: Mapping[str, Any]) -> bool:
    """Whether steps before the doubtful one had the same bits as the first time."""
    same = repeated.get("same")
    return isinstance(same, list) and len(same) == 2 and same[0] > 0


def _repeated(doubt: Doubt, seen: tuple[Guarded, ...]) -> Found | None:
    """The verdict once ranks have repeated the doubtful step without a finding; None: not yet."""
    given = [g.record.get("repeated") or {} for g in seen]
    done = [one for one in given if one.get("step") == doubt.step]
    if len(done) * 2 <= len(seen):
        return None
    nodes = doubt.nodes
    why = "repeated on other nodes, it was right"
    if doubt.kind == REPLICA:
        digests = {str(one.get("digest", "")) for one in done}
        wrong = tuple(r for r, digest in enumerate(doubt.digests) if digest not in digests)
        if len(digests) == 1 and 0 < len(wrong) < len(doubt.digests):
            why = f"repeated, all replicas have {digests.pop()}, as the others had"
        elif doubt.majority and any(_same(one) for one in done):
            # What came after the fault was wrong on all ranks, since they average their gradients.
            wrong = doubt.ranks
            why = "repeated, all replicas agree, and the steps before it had the same bits"
        elif not doubt.digests:
            return Found(
                Silent.OPEN, doubt.step, (), f"{doubt.words}; repeated, all replicas agree: who was wrong is unknown"
            )
        else:
            why = "the repetition gave other bits, so the training is not deterministic or the fault is older"
            return Found(Silent.OPEN, doubt.step, (), f"{doubt.words}; {why}")
        nodes = tuple(dict.fromkeys(doubt.node_of(r) for r in wrong))
    elif all({g.rank: g.node for g in seen}.get(r) == doubt.node_of(r) for r in doubt.ranks):
        why = "repeated on the same node, it was right"
        return Found(Silent.OPEN, doubt.step, (), f"{doubt.words}; {why}: which is wrong is unknown")
    return Found(Silent.NODE, doubt.step, tuple(n for n in nodes if n), f"{doubt.words}; {why}")
