"""Classify a hang by C4's classes (HPCA'25): caused by communication or by one rank itself, or one rank is slow. Pure.

A rank that has not made the call in which the others wait is kept by something other than communication: its own code,
data, storage or GPU. If all ranks have made the call and it does not complete, the communication itself hangs. The logs
and dumps cannot show whether a link, a switch or a card causes that.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from transom_cli.diagnose.clue import Category, Clue, Culprit
from transom_cli.diagnose.hangs.findings import MISMATCHES, What
from transom_cli.diagnose.hangs.matching import Matched
from transom_cli.diagnose.hangs.stacks import (
    NOWHERE,
    PERHAPS,
    WAITING,
    Kind,
    Stand,
    category,
    cluster,
    describe_clusters,
    find_odd_ranks,
    rank_names,
    ranks_do,
)

STOPPED, GONE, ASLEEP = "Tt", "XZ", "D"  # process states, see proc(5)
SHOWN = 6  # most findings reported


class Syndrome(str, enum.Enum):
    COMMUNICATION_HANG = "communication hang"
    NON_COMMUNICATION_HANG = "non-communication hang"
    NON_COMMUNICATION_SLOW = "non-communication slow"


_CALLS = {
    **dict.fromkeys(MISMATCHES, (Syndrome.NON_COMMUNICATION_HANG, Category.USER_CODE, 0.85)),
    What.RING: (Syndrome.NON_COMMUNICATION_HANG, Category.USER_CODE, 0.65),
    What.NO_DUMP: (Syndrome.NON_COMMUNICATION_HANG, Category.NCCL_HANG, 0.55),
    What.LATE_START: (Syndrome.NON_COMMUNICATION_HANG, Category.NCCL_HANG, 0.6),
    What.LATE: (Syndrome.NON_COMMUNICATION_SLOW, Category.NCCL_HANG, 0.5),
    What.STUCK: (Syndrome.COMMUNICATION_HANG, Category.NCCL_HANG, 0.6),
}
"""What the first finding means: class, cause and confidence."""


@dataclass(frozen=True)
class Rank:
    """What is known about one rank. process: its state letter as in proc(5), or ""."""

    stand: Stand
    process: str = ""


@dataclass(frozen=True)
class Verdict:
    """The class of a hang.

    Args:
        ranks: to blame, the likeliest first; () if undetermined.
        reasons: sentences, the most telling one first.
        held: the ranks that a communication hang holds.
    """

    syndrome: Syndrome
    category: Category
    sure: float
    ranks: tuple[int, ...]
    reasons: tuple[str, ...]
    held: tuple[int, ...] = ()


def classify(ranks: Sequence[Rank], matched: Matched | None = None) -> Verdict | None:
    """Return the class and the culprits, from the most certain source available: processes, collectives, stacks.

    Returns:
        None if nothing is known, or if all processes are gone, which is not a hang.
    """
    if not ranks and matched is None:
        return None
    gone = [r.stand.rank for r in ranks if r.process and r.process in GONE]
    if ranks and len(gone) == len(ranks):
        return None
    return _by_process(ranks, gone) or _with_line(_stronger(_by_calls(ranks, matched), _by_stacks(ranks)), ranks)


def as_clue(verdict: Verdict, nodes: Mapping[int, str], source: str) -> Clue:
    """Return the verdict as a clue. nodes: by rank, "" or missing if unknown.

    If a communication hang is confined to one of several nodes, the clue blames that node, whichever rank it is.
    """
    culprits = tuple(Culprit(nodes.get(rank, ""), rank) for rank in verdict.ranks)
    first, *rest = verdict.reasons
    holds = {nodes.get(rank, "") for rank in verdict.held}
    if len(holds) == 1 and "" not in holds and len(set(nodes.values())) > 1:
        culprits = culprits or (Culprit(node=holds.pop()),)
    where = sorted({culprit.node for culprit in culprits if culprit.node})
    on = f" (on {', '.join(where[:8])})" if where else ""
    return Clue(source, verdict.category, verdict.sure, (f"{verdict.syndrome.value}: {first}{on}", *rest), culprits)


def _by_process(ranks: Sequence[Rank], gone: Sequence[int]) -> Verdict | None:
    stopped = tuple(r.stand.rank for r in ranks if r.process and r.process in STOPPED)
    # NCCL's watchdog and gloo abort the victims of a hang too
    died = [r.stand for r in ranks if r.stand.died and not r.stand.died.endswith(": Aborted")]
    hang = Syndrome.NON_COMMUNICATION_HANG
    if gone or died:
        both = tuple(dict.fromkeys([*gone, *(s.rank for s in died)]))
        if len(both) < len(ranks):
            words = f"the process of {rank_names(both)} is gone or has crashed, the others are alive"
            more = tuple(f"rank {s.rank}: {s.died}" for s in died[:SHOWN])
            return Verdict(hang, Category.PROCESS_CRASH, 0.85, both, (words, *more))
    if stopped and len(stopped) < len(ranks):
        words = f"{ranks_do(stopped, 'are', 'is')} stopped (state T: a signal or a debugger), the others are not"
        return Verdict(hang, Category.NCCL_HANG, 0.95, stopped, (words,))
    return None


def _stronger(calls: Verdict | None, stacks: Verdict | None) -> Verdict | None:
    """Combine both. Collectives show better than stacks who is waited for, but their dumps may be missing or empty."""
    if calls is None or stacks is None:
        return calls or stacks
    if calls.syndrome is Syndrome.COMMUNICATION_HANG:  # a rank that made the call is not waited for, wherever it is
        return replace(calls, reasons=(*calls.reasons, f"by their stacks: {stacks.reasons[0]}"))
    if calls.ranks and set(calls.ranks) == set(stacks.ranks):
        sure = max(calls.sure, stacks.sure, min(calls.sure + 0.05, 0.95))
        cause = stacks.category if calls.category is Category.NCCL_HANG else calls.category
        return replace(calls, sure=sure, category=cause, reasons=(*calls.reasons, stacks.reasons[0]))
    if stacks.ranks and stacks.sure > calls.sure:
        return replace(stacks, reasons=(*stacks.reasons, *calls.reasons))
    return calls


def _with_line(verdict: Verdict | None, ranks: Sequence[Rank]) -> Verdict | None:
    """Add where in the training's own code the ranks to blame are."""
    if verdict is None or not verdict.ranks:
        return verdict
    first, *more = verdict.reasons
    return replace(verdict, reasons=(first + _own_line(ranks, verdict.ranks), *more))


def _own_line(ranks: Sequence[Rank], about: Sequence[int]) -> str:
    """Return `; its line is step (train.py:9)` if these ranks are at one line of the training's own, else ""."""
    at = {r.stand.place.own_line for r in ranks if r.stand.rank in about}
    return f"; {'their' if len(about) > 1 else 'its'} line is {at.pop()}" if len(at) == 1 and "" not in at else ""


def _by_calls(ranks: Sequence[Rank], matched: Matched | None) -> Verdict | None:
    if matched is None or not matched.findings:
        return None
    findings = matched.findings
    first, said = findings[0], tuple(f.words for f in findings[:SHOWN])
    if first.what in (What.MISSING, What.PEER):
        return _absent(ranks, matched)
    held: tuple[int, ...] = ()
    waiting = {r.stand.rank for r in ranks if r.stand.place.kind in WAITING or r.stand.place.kind in PERHAPS}
    if first.what is What.STUCK:
        held = tuple(rank for f in findings if f.what is What.STUCK for rank in f.others)
        said = (*said, "the dumps do not show which link or card is at fault")
    blamed = first.ranks
    if first.what is What.NO_DUMP:  # a rank without a dump that waits like the others, by its stack, is not to blame
        blamed = tuple(rank for rank in blamed if rank not in waiting)
    less = 0.15 if matched.missing and first.what is not What.NO_DUMP else 0.0
    syndrome, category, sure = _CALLS[first.what]
    if first.ranks and not blamed:
        less += 0.15
    return Verdict(syndrome, category, sure - less, blamed, said, held)


def _absent(ranks: Sequence[Rank], matched: Matched) -> Verdict:
    """Blame the ranks that have not made the call in which others wait. Their stacks show why."""
    roots = matched.waits.roots
    places = {r.stand.rank: r.stand.place for r in ranks}
    # a rank that waits by its stack is in a call that the recorder does not show (gloo's receives): usually a victim
    busy = tuple(rank for rank in roots if places.get(rank, NOWHERE).kind not in WAITING)
    roots = busy or roots
    kinds = [kind for rank in roots if (kind := places.get(rank, NOWHERE).kind) is not Kind.UNKNOWN]
    said = [f.words for f in matched.findings if f.ranks][:SHOWN]
    said += [
        f"rank {rank} is in {places[rank].kind.value}: {places[rank].words}"
        for rank in roots[:SHOWN]
        if places.get(rank, NOWHERE).kind is not Kind.UNKNOWN
    ]
    why = category(kinds[0]) if kinds else Category.NCCL_HANG
    sure = 0.9 - (0.15 if matched.missing else 0.0)
    everyone = {rank for group in matched.groups for rank in group.members}
    if 2 * len(roots) > max(len(everyone), 2):
        said.insert(0, f"the others wait for {rank_names(roots)}: too many for a fault of one rank")
        return Verdict(Syndrome.NON_COMMUNICATION_HANG, why, 0.5, (), tuple(said))
    return Verdict(Syndrome.NON_COMMUNICATION_HANG, why, sure, roots, tuple(said))


def _by_stacks(ranks: Sequence[Rank]) -> Verdict | None:
    clusters = cluster([r.stand for r in ranks])
    found = find_odd_ranks(clusters)
    everywhere = _own_line(ranks, clusters[0].ranks) if len(clusters) == 1 and not found.ranks else ""
    said = (found.words + everywhere, *describe_clusters(clusters))
    if found.ranks:
        return Verdict(Syndrome.NON_COMMUNICATION_HANG, category(found.kind), found.sure, found.ranks, said)
    asleep = tuple(r.stand.rank for r in ranks if r.process == ASLEEP)
    if asleep and 2 * len(asleep) < len(ranks):
        words = f"{ranks_do(asleep, 'sleep', 'sleeps')} in the kernel (state D), the others do not"
        return Verdict(Syndrome.NON_COMMUNICATION_HANG, Category.STORAGE_IO, 0.5, asleep, (words, *said))
    if found.kind is Kind.UNKNOWN:
        return None
    waits = found.kind in WAITING or found.kind in PERHAPS
    syndrome = Syndrome.COMMUNICATION_HANG if waits else Syndrome.NON_COMMUNICATION_HANG
    return Verdict(syndrome, category(found.kind), found.sure, (), said)
