"""Find the cause of a failure among the matched lines of all ranks. Pure.

The loudest line usually comes from a victim. The order of trust is therefore:

1. a line whose author knows the cause (`Level.AUTHORITY`), even if other failures were printed before it;
2. the first line that reports an error (CAUSE), unless the job was ended from outside before it (ENDING);
3. the strongest symptom (SIGN).

Later lines are consequences. A warning counts only beside something worse. `culprits` finds out who is to blame.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transom_cli.diagnose.clue import DEVICES, Action, Category, Culprit
from transom_cli.diagnose.logs.culprits import ACTOR, BOX, CANCELLED, CRIES, ENDED, ENDS, KILLED, SWEPT, USAGE, blamed
from transom_cli.diagnose.logs.matches import RAISED, RAY, Hit
from transom_cli.diagnose.logs.rulebook import Level, Scope
from transom_cli.plural import several

Survived = Callable[[Hit], bool]
_SHOWN = 12  # kinds of consequences
NEAR = 5  # lines between an exception's message and the exit
EVENT = 64 << 10  # bytes between lines of one kind
UNTOLD = "python-exception"  # the rule for exceptions without a rule of their own
_ENTRY = "exitcode  :", "traceback :"  # lines of an entry in torchrun's box, below the one with the rank


@dataclass(frozen=True)
class Incident:
    """One failure. root: the deciding line. others: lines it explains. culprits: empty if they cannot be determined."""

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
    """Return the incidents, the deciding one first; none for healthy logs.

    Args:
        survived: whether the training continued after a line.
        ranks: all ranks, as far as the logs show them.
        died: the rank that died first, if known.
    """
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
        last = _of_last_launch(left)
        root = _root(last, once)
        if len(last) < len(left) and (root is None or root.rule.category is Category.UNKNOWN):
            root = _root(left, once) or root
        if root is None:
            break
        place = next(n for n, h in enumerate(left) if h is root)
        explained = [n != place and _explains(root, h, later=n > place) for n, h in enumerate(left)]
        found.append(_incident(root, tuple(h for h, yes in zip(left, explained, strict=True) if yes), ranks))
        left = [h for n, h in enumerate(left) if n != place and not explained[n] and h.level >= Level.CAUSE]
    return tuple(found)


def _of_last_launch(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits of each file's last launch. A restart replaces what failed before it."""
    newest: dict[str, int] = {}
    for hit in hits:
        newest[hit.file] = max(newest.get(hit.file, 0), hit.launch)
    return [hit for hit in hits if hit.launch == newest[hit.file]]


def _often_enough(hits: Iterable[Hit]) -> list[Hit]:
    hits = list(hits)
    counts = Counter[tuple[str, str]]()
    for hit in hits:
        counts[hit.file, hit.rule.name] += 1 + hit.more
    return [hit for hit in hits if counts[hit.file, hit.rule.name] >= hit.rule.times]


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    """Sort by time. Lines of one file keep their order: a line without a time has the time of the line before it. Files
    without any times are read in parallel."""
    times: dict[str, float] = {}
    timed = []
    for hit in sorted(hits, key=lambda h: (h.file, h.offset)):
        times[hit.file] = max(times.get(hit.file, 0.0), hit.record.at or 0.0)
        timed.append((times[hit.file], hit.offset, hit.file, hit))
    return [hit for *_, hit in sorted(timed, key=lambda one: one[:3])]


def _late(hit: Hit) -> bool:
    """Whether the line is from a second log whose clock cannot be compared: a rank that waits has not caused the
    failure, and an error may have preceded what Slurm or a person ended."""
    return hit.rule.category is Category.NCCL_HANG or hit.level is Level.ENDING


def _lasting(hits: Sequence[Hit], survived: Survived) -> set[int]:
    """Return the places of the lines that the training did not survive. Nearby lines of one kind are one event, judged
    at its last line, since other ranks print progress a little longer."""
    lasting: set[int] = set()
    verdicts: dict[tuple[str, str], tuple[int, bool]] = {}
    for place in sorted(range(len(hits)), key=lambda n: (hits[n].file, hits[n].offset), reverse=True):
        hit = hits[place]
        offset, lasts = verdicts.get((hit.file, hit.rule.name), (-1, False))
        if not 0 <= offset - hit.offset < EVENT:
            lasts = not survived(hit)
        verdicts[hit.file, hit.rule.name] = hit.offset, lasts
        if lasts:
            lasting.add(place)
    return lasting


def _root(hits: Sequence[Hit], survived: Survived) -> Hit | None:
    lasting = _lasting(hits, survived)
    fatal = [hit for place, hit in enumerate(hits) if place in lasting]
    root = _first([hit for hit in fatal if not hit.mild])
    if root is not None and root.level is Level.SIGN:
        root = _first(fatal)  # something ended the job: a warning may explain it
    if root is not None and root.rule.category is Category.UNKNOWN:
        # a line that seemed survived may explain it, and so may an exception whose message alone was printed
        raised = (hit for hit in reversed(hits) if hit.level is Level.CAUSE and not hit.mild)
        spoken = (hit for hit in reversed(fatal) if hit.printed and not hit.mild and _shortly_before(hit, root))
        root = next(raised, None) or next(spoken, root)
    if root is None or root.level is Level.SIGN:
        return root
    if root.rule.name == UNTOLD:  # an earlier warning of its node says more
        root = next((hit for hit in fatal[: fatal.index(root)] if hit.mild and _nodes(hit, root)), root)
    if root.rule.name == RAY:  # only the class of what the task raised was printed
        root = next((hit for hit in fatal[: fatal.index(root)] if hit.rule.name == ACTOR), root)
    if RAISED.match(root.record.text):  # an exception says more than a warning before it
        return root
    return next((hit for hit in fatal if hit.rule is root.rule), root)  # the failure may have begun as a warning


def _shortly_before(hit: Hit, end: Hit) -> bool:
    """Whether this is an exception printed without its traceback shortly before the exit that it explains."""
    return hit.file == end.file and 0 < end.lineno - hit.lineno <= NEAR


def _nodes(hit: Hit, of: Hit) -> bool:
    return hit.rule.level is Level.CAUSE and hit.rule.action is Action.ISOLATE and hit.file == of.file


def _first(fatal: Sequence[Hit]) -> Hit | None:
    authority = [h for h in fatal if h.level is Level.AUTHORITY]
    if authority:
        return max(authority, key=lambda h: h.rule.weight)
    after = _cancelled_after(fatal)
    fatal = [h for h in fatal if id(h) not in after] if after else fatal
    causes = [h for h in fatal if h.level >= Level.ENDING]
    first = _unyielding(causes)
    if first is not None:
        return _nodes_own(causes, first) if first.level is Level.CAUSE else _ending(fatal, first)
    signs = [h for h in fatal if h.level is Level.SIGN]
    ended = {h.file: h.offset for h in reversed(tuple(after.values()))}
    signs = [h for h in signs if h.offset <= ended.get(h.file, h.offset)]
    signs = _not_swept(signs) or signs
    return _without_a_word(signs) or max(_spoken(signs), key=lambda h: h.rule.weight, default=None)


def _nodes_own(causes: Sequence[Hit], first: Hit) -> Hit:
    """Return the fault of a device if the first cause is only the job's (a busy port): it outlives the job."""
    if first.rule.scope is not Scope.JOB:
        return first
    later = causes[causes.index(first) :]
    return next((h for h in later if h.rule.action is Action.ISOLATE and h.rule.category in DEVICES), first)


def _unyielding(causes: Sequence[Hit]) -> Hit | None:
    """Return the first cause, without those past which the program continued (a script whose command was not found) to
    another failure."""
    last = {h.rule.category: n for n, h in enumerate(causes)}
    for n, hit in enumerate(causes):
        if not hit.rule.yields or not any(at > n for kind, at in last.items() if kind is not hit.rule.category):
            return hit
    return None


def _spoken(signs: Sequence[Hit]) -> list[Hit]:
    """Return the signs without C++ aborts of an exception that says itself that the rank lost another one."""
    cries = {(h.file, h.record.rank, h.lineno) for h in signs if h.rule.category in CRIES}

    def said(h: Hit) -> bool:
        return h.rule.name == "abort" and any((h.file, h.record.rank, h.lineno + n) in cries for n in (-1, 1))

    return [h for h in signs if not said(h)]


def _without_a_word(signs: Sequence[Hit]) -> Hit | None:
    """Return the end of the rank that printed no symptom: its exit closed the others' connections. None if there is
    none or it cannot be determined."""
    crying = {h.record.rank for h in signs if h.rule.category in CRIES} - {None}
    ended = [h for h in signs if h.rule.name in ENDS and h.culprit.rank is not None]
    quiet = [h for h in ended if h.culprit.rank not in crying]
    silent = {h.culprit.rank for h in quiet}
    return max(quiet, key=lambda h: h.rule.weight) if crying and len(silent) == 1 else None


def _cancelled_after(hits: Sequence[Hit]) -> dict[int, Hit]:
    """Return, by identity, the lines by which srun cancelled the step because one of its tasks had failed.

    Without comparable clocks, all killed tasks of another log may be victims of the cancellation.
    """
    cancelled = [h for h in hits if h.rule.name == CANCELLED]
    if not cancelled:
        return {}
    begun: dict[str, int] = {}
    failed: set[str] = set()
    killed: dict[int | None, set[str]] = {}
    for h in hits:
        if h.rule.name in ENDS:
            begun[h.file] = min(begun.get(h.file, h.offset), h.offset)
            if h.rule.name == KILLED:
                killed.setdefault(h.culprit.rank, set()).add(h.file)
            else:
                failed.add(h.file)
    misused = any(h.rule.name == USAGE for h in hits)  # no signal from outside makes a task end with this code
    alone = Counter(next(iter(files)) for files in killed.values() if len(files) == 1)

    def follows(ending: Hit) -> bool:
        own = ending.file
        earlier = begun.get(own, ending.offset) < ending.offset
        return earlier or misused or len(failed) > (own in failed) or len(killed) - alone[own] == 1

    return {id(h): h for h in cancelled if follows(h)}


def _not_swept(signs: Sequence[Hit]) -> list[Hit]:
    """Return the signs without tasks reported killed after srun or MPI_Abort had begun to kill the tasks, and without
    those that torchrun's box lists before its root cause: torchrun ends them."""
    begun: dict[str, int] = {}
    boxes: dict[str, int] = {}
    swept: set[int] = set()
    for h in signs:
        if h.rule.name in ENDED or _is_reported(h, signs):
            begun[h.file] = min(begun.get(h.file, h.offset), h.offset)
    for h in reversed(signs):
        if "ChildFailedError" in h.record.text:
            boxes.pop(h.file, None)
        elif h.rule.name == BOX and "rank" in h.where:
            boxes.setdefault(h.file, h.offset)
        elif h.record.text.startswith(_ENTRY) and h.offset < boxes.get(h.file, 0):
            swept.add(id(h))
    kept = [h for h in signs if id(h) not in swept]
    return [h for h in kept if h.rule.name not in SWEPT or h.offset <= begun.get(h.file, h.offset)]


def _is_reported(end: Hit, signs: Sequence[Hit]) -> bool:
    """Whether a launcher says here which process ended first, and not by SIGKILL: it ends the others."""
    below = (h for h in signs if h.file == end.file and 0 < h.lineno - end.lineno <= NEAR)
    return "processes exited with non-zero status" in end.record.text and not any(
        h.rule.name in SWEPT and h.record.text.startswith("Exit code") for h in below
    )


def _ending(fatal: Sequence[Hit], first: Hit) -> Hit:
    """Of several messages for one end, return the most specific: "DUE TO TIME LIMIT" before "CANCELLED"."""
    return max((h for h in fatal if h.level is Level.ENDING), key=lambda h: (h.rule.weight, h is first))


def _explains(root: Hit, other: Hit, later: bool) -> bool:
    """Whether the root explains a line: weaker lines, later lines and what its rule lists, but not an earlier cause."""
    if other.level < Level.CAUSE or other.rule.category is root.rule.category:
        return True
    return later or other.rule.category in root.rule.explains


def _incident(root: Hit, others: tuple[Hit, ...], ranks: frozenset[int]) -> Incident:
    culprits, why = blamed(root, others, ranks)
    same = [h for h in others if h.rule.name == root.rule.name and h.record.rank != root.record.rank]
    signs = any(h.level <= Level.ENDING for h in others)
    sure = min(0.99, root.rule.confidence + (0.05 if signs or same else 0.0))
    return Incident(root, others, culprits, round(sure, 2), why)


def consequences(incident: Incident) -> tuple[str, ...]:
    """Count the consequences by kind, the most frequent first."""
    counts: Counter[str] = Counter()
    ranks: dict[str, set[int]] = {}
    for hit in incident.others:
        counts[hit.rule.name] += 1 + hit.more
        if hit.record.rank is not None:
            ranks.setdefault(hit.rule.name, set()).add(hit.record.rank)
    lines = []
    for name, count in counts.most_common(_SHOWN):
        of = f" of {len(ranks[name])} ranks" if len(ranks.get(name, ())) > 1 else ""
        lines.append(f"{name}: {several(count, 'line')}{of}")
    return tuple(lines)
