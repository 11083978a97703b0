"""Of all that logs tell, what came first in time and causality: the root, its consequences, and what stands alone.

The loudest line is a victim's, mostly. So: who knows it (`Level.AUTHORITY`) is believed, whatever was printed before;
else the first thing that went wrong (CAUSE), unless the job was ended from outside before it (ENDING); only where none
of these is there, the strongest of the victims' words (SIGN). What comes later is a consequence. Warnings count only
beside something that is more than one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transom_cli.diagnose.clue import Action, Category, Culprit
from transom_cli.diagnose.logs.blame import CRIES, completed, who_lags
from transom_cli.diagnose.logs.hit import RAISED, Hit
from transom_cli.diagnose.logs.rule import Level
from transom_cli.plural import several

Survived = Callable[[Hit], bool]
_ENDS = ("task-exited", "own-exit-code", "bare-killed", "worker-killed", "abort", "segfault", "mpi-abort")
"""Rules of how a rank's process ended."""
_SHOWN = 12  # kinds of consequences
NEAR = 5  # lines between an exception's own words and the exit
EVENT = 64 << 10  # bytes between lines of one kind
CANCELLED = "step-cancelled"  # the rule of Slurm's bare word for it
UNTOLD = "python-exception"  # the rule of exceptions that no other one knows
KILLED, ENDED = "bare-killed", ("step-ended", "mpi-abort")  # a task's end by SIGKILL, and who sends one to all


@dataclass(frozen=True)
class Incident:
    """root: the hit that tells. others: what it explains. culprits: () is an honest "not determinable"."""

    root: Hit
    others: tuple[Hit, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    confidence: float = 0.0
    why: tuple[str, ...] = ()

    @property
    def category(self) -> Category:
        return self.root.rule.category or Category.UNKNOWN


def incidents(
    hits: Iterable[Hit],
    survived: Survived = lambda hit: False,
    ranks: frozenset[int] = frozenset(),
    died: int | None = None,
) -> tuple[Incident, ...]:
    """The deciding one first; () for healthy logs. survived: whether the training went on after a hit. ranks: all that
    there are, as far as the logs show it. died: the rank that died first, where that is known."""
    left = _in_order(_often_enough(hits))
    asked: dict[tuple[str, str, int], bool] = {}

    def once(hit: Hit) -> bool:
        key = hit.file, hit.rule.name, hit.offset
        if key not in asked:
            asked[key] = survived(hit)
        return asked[key]

    if len({hit.file for hit in left}) > 1:
        left.sort(key=lambda hit: (_late(hit), died not in (None, hit.record.rank)))
    found: list[Incident] = []
    while left:
        root = _root(left, once)
        if root is None:
            break
        place = next(n for n, h in enumerate(left) if h is root)
        explained = [n != place and _explains(root, h, later=n > place) for n, h in enumerate(left)]
        found.append(_incident(root, tuple(h for h, yes in zip(left, explained, strict=True) if yes), ranks))
        left = [h for n, h in enumerate(left) if n != place and not explained[n] and h.level >= Level.CAUSE]
    return tuple(found)


def _often_enough(hits: Iterable[Hit]) -> list[Hit]:
    hits = list(hits)
    counts = Counter[tuple[str, str]]()
    for hit in hits:
        counts[hit.file, hit.rule.name] += 1 + hit.more
    return [hit for hit in hits if counts[hit.file, hit.rule.name] >= hit.rule.times]


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    """By time, as far as it is known; of one file in its own order: a line without a time is of the time of what is
    before it. Files of which none has a time stand side by side."""
    times: dict[str, float] = {}
    timed = []
    for hit in sorted(hits, key=lambda h: (h.file, h.offset)):
        times[hit.file] = max(times.get(hit.file, 0.0), hit.record.at or 0.0)
        timed.append((times[hit.file], hit.offset, hit.file, hit))
    return [hit for *_, hit in sorted(timed, key=lambda one: one[:3])]


def _late(hit: Hit) -> bool:
    """Of a log beside others, with whose clocks nobody compares it: who waits has not begun it, and what Slurm or a
    person ended may have gone wrong before."""
    return hit.rule.category is Category.NCCL_HANG or hit.level is Level.ENDING


def _lasting(hits: Sequence[Hit], survived: Survived) -> set[int]:
    """The places of those that nothing shows to have been survived. Lines of one kind that stand near each other are
    one event, asked at its last line: other ranks' progress goes on for a moment."""
    lasting: set[int] = set()
    verdicts: dict[tuple[str, str], tuple[int, bool]] = {}
    for place in sorted(range(len(hits)), key=lambda n: hits[n].offset, reverse=True):
        hit = hits[place]
        offset, lasts = verdicts.get((hit.file, hit.rule.name), (-1, False))
        if not 0 <= offset - hit.offset < EVENT:
            lasts = not hit.rule.lasts or not survived(hit)
        verdicts[hit.file, hit.rule.name] = hit.offset, lasts
        if lasts:
            lasting.add(place)
    return lasting


def _root(hits: Sequence[Hit], survived: Survived) -> Hit | None:
    lasting = _lasting(hits, survived)
    fatal = [hit for place, hit in enumerate(hits) if place in lasting]
    root = _first([hit for hit in fatal if not hit.mild])
    if root is not None and root.level is Level.SIGN:
        root = _first(fatal)  # something did end it: a warning may tell what
    if root is not None and root.rule.category is Category.UNKNOWN:
        # what seemed to have been survived may tell, too, and an exception of which only the message was printed
        raised = (hit for hit in reversed(hits) if hit.level is Level.CAUSE and not hit.mild)
        spoken = (hit for hit in reversed(fatal) if hit.printed and not hit.mild and _shortly_before(hit, root))
        root = next(raised, None) or next(spoken, root)
    if root is None or root.level is Level.SIGN:
        return root
    if root.rule.name == UNTOLD:  # what its node had warned of tells more
        root = next((hit for hit in fatal[: fatal.index(root)] if hit.mild and _nodes(hit, root)), root)
    if RAISED.match(root.record.text):  # it says more than a warning before it
        return root
    return next((hit for hit in fatal if hit.rule is root.rule), root)  # it may have begun with a warning


def _shortly_before(hit: Hit, end: Hit) -> bool:
    """Last words: an exception that was printed without its traceback, before the exit that it explains."""
    return hit.file == end.file and 0 < end.lineno - hit.lineno <= NEAR


def _nodes(hit: Hit, of: Hit) -> bool:
    return hit.rule.level is Level.CAUSE and hit.rule.action is Action.ISOLATE and hit.file == of.file


def _first(fatal: Sequence[Hit]) -> Hit | None:
    authority = [h for h in fatal if h.level is Level.AUTHORITY]
    if authority:
        return max(authority, key=lambda h: h.rule.weight)
    after = [h for h in fatal if _follows(h, fatal)]
    causes = [h for h in fatal if h.level >= Level.ENDING and h not in after]
    first = next((h for n, h in enumerate(causes) if not _yields(h, causes[n + 1 :])), None)
    if first is not None:
        return first if first.level is Level.CAUSE else _ending([h for h in fatal if h not in after], first)
    ended = {h.file: h.offset for h in reversed(after)}
    signs = [h for h in fatal if h.level is Level.SIGN and h.offset <= ended.get(h.file, h.offset)]
    signs = [h for h in signs if not _swept(h, signs)] or signs
    return _without_a_word(signs) or max(signs, key=lambda h: h.rule.weight, default=None)


def _yields(hit: Hit, later: Sequence[Hit]) -> bool:
    """Whether it was gone past, as a script goes past a command that it does not find, to what failed otherwise."""
    return hit.rule.yields and any(h.rule.category is not hit.rule.category for h in later)


def _without_a_word(signs: Sequence[Hit]) -> Hit | None:
    """The end of a rank that did not cry as the others did, whose connections it closed by ending. None: there is none,
    or it cannot be told."""
    crying = {h.record.rank for h in signs if h.rule.category in CRIES} - {None}
    ended = [h for h in signs if h.rule.name in _ENDS and h.culprit.rank is not None]
    quiet = [h for h in ended if h.culprit.rank not in crying]
    told = {h.culprit.rank for h in quiet}
    return max(quiet, key=lambda h: h.rule.weight) if crying and len(told) == 1 else None


def _follows(ending: Hit, hits: Sequence[Hit]) -> bool:
    """Whether a step was cancelled because a task of it had ended badly: srun does so, and nobody else. In another log,
    with which nobody compares clocks, all tasks that were killed may have been so by the cancelling."""
    if ending.rule.name != CANCELLED:
        return False
    ends = [h for h in hits if h.rule.name in _ENDS and (h.file != ending.file or h.offset < ending.offset)]
    killed = {h.culprit.rank for h in ends if h.rule.name == KILLED and h.file != ending.file}
    return any(h.rule.name != KILLED or h.file == ending.file for h in ends) or len(killed) == 1


def _swept(killed: Hit, signs: Sequence[Hit]) -> bool:
    """Whether srun, or MPI_Abort, had begun to kill the tasks before this one was reported killed."""
    if killed.rule.name != KILLED:
        return False
    return any(h.rule.name in ENDED and h.file == killed.file and h.offset < killed.offset for h in signs)


def _ending(fatal: Sequence[Hit], first: Hit) -> Hit:
    """Of several words for one end the one that says most: "DUE TO TIME LIMIT" rather than a bare "CANCELLED"."""
    return max((h for h in fatal if h.level is Level.ENDING), key=lambda h: (h.rule.weight, h is first))


def _explains(root: Hit, other: Hit, later: bool) -> bool:
    """What is weaker, what comes later, and what the rule says; not an earlier cause of another kind."""
    if other.level < Level.CAUSE or other.rule.category is root.rule.category:
        return True
    return later or other.rule.category in root.rule.explains


def _incident(root: Hit, others: tuple[Hit, ...], ranks: frozenset[int]) -> Incident:
    culprits: tuple[Culprit, ...] = (root.culprit,)
    why: tuple[str, ...] = ()
    if root.rule.category is Category.NCCL_HANG:
        lagging = who_lags([root, *others], ranks)
        if lagging is not None:
            culprits, why = lagging
    culprits = completed(culprits, (root, *others), root)
    same = [h for h in others if h.rule.name == root.rule.name and h.record.rank != root.record.rank]
    told = tuple(dict.fromkeys(c for c in culprits if c != Culprit()))
    signs = any(h.level <= Level.ENDING for h in others)
    sure = min(0.99, root.rule.confidence + (0.05 if signs or same else 0.0))
    return Incident(root, others, told, round(sure, 2), why)


def consequences(incident: Incident) -> tuple[str, ...]:
    """In words, by kind, the commonest first."""
    counts: Counter[str] = Counter()
    ranks: dict[str, set[int]] = {}
    for hit in incident.others:
        counts[hit.rule.name] += 1 + hit.more
        if hit.record.rank is not None:
            ranks.setdefault(hit.rule.name, set()).add(hit.record.rank)
    told = []
    for name, count in counts.most_common(_SHOWN):
        of = f" of {len(ranks[name])} ranks" if len(ranks.get(name, ())) > 1 else ""
        told.append(f"{name}: {several(count, 'line')}{of}")
    return tuple(told)
