"""Find the cause of a failure among the matched lines of all ranks. Pure.

The loudest line usually comes from a victim. The order of trust is therefore:

1. a line whose author knows the cause (`Level.AUTHORITY`), even if other failures were printed before it;
2. the first line that reports an error (CAUSE), unless the job was ended from outside before it (ENDING);
3. the strongest symptom (SIGN).

Later lines are consequences. A warning counts only beside something worse. In a hang, a rank whose watchdog complains
has launched its collective and waits; the culprit is a rank that lags behind, or that prints nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from transom_cli.diagnose.clue import DEVICES, Action, Category, Culprit
from transom_cli.diagnose.logs.matches import RAISED, RAY, TRACEBACK, Hit
from transom_cli.diagnose.logs.rulebook import Blames, Level, Scope
from transom_cli.plural import several

CRIES = (Category.NETWORK_FABRIC, Category.NCCL_HANG)  # printed by victims
MANY = 3  # waiting ranks whose numbers show that lower ones exist
FEW = 0.25  # largest share of silent ranks that are still named as culprits
_LOCAL_RANK = re.compile(r"(?:failed \(exitcode: -?\d+\)|^) ?local_rank: (\d+) \(pid")
_KILLED_TASKS = re.compile(r": tasks? ([\d,-]{1,400}): (?:Terminated|Killed)")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_RUNNING = re.compile(r"Rank (\d{1,7}) is running \w[^(]{0,80}\(SequenceNumber=(\d{1,12})")
DESYNC = "desync"  # the rule for PyTorch's comparison of the collectives of two ranks
SRUN = "srun: error: "  # srun's report of tasks on one node
TASK_FAILURE = "due-to-task-failure"  # the rule for Slurm's reason for ending a step
BOX = "elastic-box"  # the rule for torchrun's failure box, which lists the rank that failed first last

Blamed = tuple[tuple[Culprit, ...], tuple[str, ...]]


def who_lags(hits: Sequence[Hit], ranks: frozenset[int] = frozenset()) -> Blamed | None:
    """Return the culprits of a hang and the reason, or None if the logs do not show them. ranks: all known ranks."""
    enqueued: dict[int, int] = {}
    for hit in hits:
        rank, number = hit.record.rank, hit.where.get("enqueued") or hit.where.get("seq", "")
        if rank is not None and number.isdigit():
            enqueued[rank] = max(enqueued.get(rank, 0), int(number))
    if len(set(enqueued.values())) > 1:
        least = min(enqueued.values())
        behind = sorted(rank for rank, number in enqueued.items() if number == least)
        if len(behind) <= max(1, len(enqueued) // 2):
            said = f"it has launched {least} collectives, others up to {max(enqueued.values())}"
            return tuple(Culprit(rank=rank) for rank in behind), (said,)
    missing = {int(number) for hit in hits for number in hit.where.get("missing", "").split(",") if number.strip()}
    if missing:
        return tuple(Culprit(rank=rank) for rank in sorted(missing)), ("the other ranks report that they wait for it",)
    crying = {hit.record.rank for hit in hits if hit.rule.category in CRIES and hit.record.rank is not None}
    waiting = {hit.record.rank for hit in hits if hit.rule.category is Category.NCCL_HANG} - {None}
    elsewhere = sorted({rank for hit in hits if "/gloo/" in hit.record.text and (rank := hit.record.rank) is not None})
    if len(waiting) >= MANY and 0 < len(set(elsewhere) - waiting) <= FEW * len(crying):
        said = f"{len(waiting)} ranks wait in an NCCL collective, this rank was in one of gloo instead"
        return tuple(Culprit(rank=rank) for rank in elsewhere if rank not in waiting), (said,)
    known = ranks | set(range(max(crying))) if len(crying) >= MANY else ranks
    silent = sorted(known - crying)
    if crying and 0 < len(silent) <= max(1, int(FEW * len(known))):
        said = f"{len(crying)} ranks wait in a collective or have lost their connections, this rank printed nothing"
        return tuple(Culprit(rank=rank) for rank in silent), (said,)
    if len(enqueued) > 1:
        return (), (f"all {len(enqueued)} ranks that report a count have launched the same collectives",)
    return None


def with_nodes(culprits: Sequence[Culprit], hits: Sequence[Hit], root: Hit) -> tuple[Culprit, ...]:
    """Add the node of a rank from other lines; use torchrun's report if the root names nobody."""
    known = [culprit for culprit in culprits if culprit != Culprit()]
    if not known:
        said = {hit.culprit for hit in hits if hit.rule is root.rule} - {Culprit()}
        known = list(said) if len(said) == 1 else []
    boxes = [hit for hit in hits if hit.rule.name == BOX and hit.where.get("rank", "").isdigit()]
    if not known and boxes and root.rule.blames is Blames.PRINTER:
        known = [Culprit(rank=int(boxes[-1].where["rank"]))]
    if not known and root.rule.blames is Blames.PRINTER and root.rule.category not in CRIES:
        ended = {h.culprit for h in hits if h.rule.name in _ENDS and h.culprit.rank is not None}
        known = list(ended) if len(ended) == 1 else _local(hits)
    if len(known) == 1 and known[0].node and known[0].rank is None and root.rule.blames is Blames.PRINTER:
        known = _alone(known[0], hits)
    nodes: dict[int, str] = {}
    for hit in hits:
        rank = hit.where.get("rank", "")
        of, node = int(rank) if rank.isdigit() else hit.record.rank, hit.where.get("node", "")
        if not node and not (rank and hit.rule.blames is Blames.NAMED):
            node = hit.record.node
        if of is not None and node:
            nodes.setdefault(of, node)
    return tuple(c if c.node or c.rank not in nodes else replace(c, node=nodes[c.rank]) for c in known)


def _alone(of: Culprit, hits: Sequence[Hit]) -> list[Culprit]:
    """Add the rank if exactly one is known to have failed, and not on another node."""
    failed = [h for h in hits if h.rule.name in (*_ENDS, TRACEBACK) and h.record.rank is not None]
    ranks = {h.record.rank for h in failed if h.record.node in ("", of.node)}
    return [replace(of, rank=ranks.pop())] if len(ranks) == 1 and len(failed) == 1 else [of]


def _local(hits: Sequence[Hit]) -> list[Culprit]:
    """Return the only local rank that torchrun reports as failed: it is the rank if the job has one node."""
    found = {int(match[1]) for hit in hits if (match := _LOCAL_RANK.search(hit.record.text))}
    several = len({hit.culprit.node for hit in hits} - {""}) > 1
    return [Culprit(rank=rank) for rank in found] if len(found) == 1 and not several else []


def _behind(root: Hit) -> Blamed:
    """Return the rank that is behind, of two whose collectives differ; nobody if both have run the same number."""
    ran = {int(rank): int(number) for rank, number in _RUNNING.findall(root.record.text)}
    if len(set(ran.values())) < 2:
        return (), ()
    last, least = max(ran.values()), min(ran.values())
    behind = tuple(Culprit(rank=rank) for rank, number in ran.items() if number == least)
    return behind, (f"it runs collective {least}, another rank {last}",)


def _nodes_of_tasks(root: Hit, others: Sequence[Hit]) -> set[str]:
    """Return the nodes whose tasks srun reports like the root, until it begins to end the step."""
    ends = [h.offset for h in others if h.file == root.file and h.rule.name in ENDED and h.offset > root.offset]
    same = [h for h in (root, *others) if h.rule is root.rule and h.file == root.file]
    return {h.record.node for h in same if h.offset < min(ends, default=h.offset + 1)} - {""}


def _left_alone(hits: Sequence[Hit]) -> tuple[Culprit, ...]:
    """Return the only task that Slurm did not have to kill when it ended a step because a task had failed."""
    lists = [match[1] for hit in hits if (match := _KILLED_TASKS.search(hit.record.text))]
    killed = {n for ends in _RANGE.findall(",".join(lists)) for n in range(int(ends[0]), int(ends[1] or ends[0]) + 1)}
    missing = set(range(max(killed, default=0))) - killed
    return tuple(Culprit(rank=rank) for rank in missing) if len(missing) == 1 else ()


Survived = Callable[[Hit], bool]
_ENDS = ("task-exited", "own-exit-code", "bare-killed", "worker-killed", "abort", "segfault", "mpi-abort", "mpi-signal")
"""Rules for the end of a rank's process."""
_SHOWN = 12  # kinds of consequences
NEAR = 5  # lines between an exception's message and the exit
EVENT = 64 << 10  # bytes between lines of one kind
CANCELLED = "step-cancelled"  # the rule for Slurm's plain "CANCELLED"
UNTOLD = "python-exception"  # the rule for exceptions without a rule of their own
ACTOR = "actor-died"  # the rule for the end of a Ray worker's process
KILLED, ENDED = "bare-killed", ("step-ended", "mpi-abort")  # a task killed by SIGKILL, and who kills all tasks


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
    ended = [h for h in signs if h.rule.name in _ENDS and h.culprit.rank is not None]
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
        if h.rule.name in _ENDS:
            begun[h.file] = min(begun.get(h.file, h.offset), h.offset)
            if h.rule.name == KILLED:
                killed.setdefault(h.culprit.rank, set()).add(h.file)
            else:
                failed.add(h.file)
    alone = Counter(next(iter(files)) for files in killed.values() if len(files) == 1)

    def follows(ending: Hit) -> bool:
        own = ending.file
        earlier = begun.get(own, ending.offset) < ending.offset
        return earlier or len(failed) > (own in failed) or len(killed) - alone[own] == 1

    return {id(h): h for h in cancelled if follows(h)}


def _not_swept(signs: Sequence[Hit]) -> list[Hit]:
    """Return the signs without tasks reported killed after srun or MPI_Abort had begun to kill the tasks."""
    begun: dict[str, int] = {}
    for h in signs:
        if h.rule.name in ENDED:
            begun[h.file] = min(begun.get(h.file, h.offset), h.offset)
    return [h for h in signs if h.rule.name != KILLED or h.offset <= begun.get(h.file, h.offset)]


def _ending(fatal: Sequence[Hit], first: Hit) -> Hit:
    """Of several messages for one end, return the most specific: "DUE TO TIME LIMIT" before "CANCELLED"."""
    return max((h for h in fatal if h.level is Level.ENDING), key=lambda h: (h.rule.weight, h is first))


def _explains(root: Hit, other: Hit, later: bool) -> bool:
    """Whether the root explains a line: weaker lines, later lines and what its rule lists, but not an earlier cause."""
    if other.level < Level.CAUSE or other.rule.category is root.rule.category:
        return True
    return later or other.rule.category in root.rule.explains


def _incident(root: Hit, others: tuple[Hit, ...], ranks: frozenset[int]) -> Incident:
    culprits: tuple[Culprit, ...] = (root.culprit,)
    why: tuple[str, ...] = ()
    cries = root.rule.category is Category.NETWORK_FABRIC and root.level is Level.SIGN
    named = root.rule.blames is Blames.NAMED and culprits[0] != Culprit()
    if root.rule.category is Category.NCCL_HANG or (cries and not named):
        lagging = who_lags([root, *others], ranks)
        if lagging is not None:
            culprits, why = lagging
        elif root.rule.category is Category.NCCL_HANG and not named:
            culprits = ()  # ranks that complain wait; one that alone complains is named below
    if root.rule.name == DESYNC:
        culprits, why = _behind(root)
    if root.rule.name == TASK_FAILURE:
        culprits = _left_alone(others)
    if root.rule.blames is Blames.NAMED and len({h.culprit.node for h in (root, *others) if h.rule is root.rule}) > 1:
        culprits = ()  # several peers: the fault is on the path
    culprits = with_nodes(culprits, (root, *others), root)
    if root.record.rank is None and root.record.text.startswith(SRUN) and len(_nodes_of_tasks(root, others)) > 1:
        culprits = ()  # several nodes at once: nothing shows which was first
    same = [h for h in others if h.rule.name == root.rule.name and h.record.rank != root.record.rank]
    known = tuple(dict.fromkeys(c for c in culprits if c != Culprit()))
    signs = any(h.level <= Level.ENDING for h in others)
    sure = min(0.99, root.rule.confidence + (0.05 if signs or same else 0.0))
    return Incident(root, others, known, round(sure, 2), why)


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
