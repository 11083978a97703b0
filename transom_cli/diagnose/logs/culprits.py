"""Find out who is to blame for a failure whose root line is known. Pure.

The culprit is the rank that printed the root line, or the one that the line names. In a hang, a rank whose watchdog
complains has launched its collective and waits; the culprit is a rank that lags behind, or that prints nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.grammar import short_host
from transom_cli.diagnose.logs.lazy_re import lazy_re
from transom_cli.diagnose.logs.matches import RAISED, TRACEBACK, Hit
from transom_cli.diagnose.logs.rulebook import Blames, Level, Scope

CRIES = (Category.NETWORK_FABRIC, Category.NCCL_HANG)  # printed by victims
USAGE = "usage-exit-code"  # the rule for a task that ends with exit code 2
EVERYONES = "usage", USAGE, "mpi-abort", "nan-on-a-rank"  # rules: nobody's fault if most ranks report it
MANY = 3  # waiting ranks whose numbers show that lower ones exist
FEW = 0.25  # largest share of silent ranks that are still named as culprits
_ENTRY = 3  # lines of an entry of torchrun's box below the one with the rank
_LOCAL_RANK = lazy_re(r"(?:failed \(exitcode: -?\d+\)|^) ?local_rank: (\d+) \(pid")
_KILLED_TASKS = lazy_re(r": tasks? ([\d,-]{1,400}): (?:Terminated|Killed)")
_CLOSED = lazy_re(r"[Cc]onnection closed by (?:remote )?peer ([A-Za-z][\w.-]{1,80})<")
_GROUP = lazy_re(r"\[PG ([^\]]{1,160}?) ?Rank \d")
_JOINED = lazy_re(r"world_size=(\d{1,7}), (?:worker_count|num_workers_joined)=(\d{1,7})\b")
_LOST = lazy_re(r"(?:\bpeer |\bfrom |\bto |\] )\[?((?:\d{1,3}\.){3}\d{1,3}|[A-Za-z][\w.-]{1,80}(?=<))[\]<]")
_JOB_ON = lazy_re(r"\*\*\* JOB \d+ ON ([\w.-]+) CANCELLED")  # names the first node, which runs the batch step
_DIGITS = lazy_re(r"\d+")
_RANGE = lazy_re(r"(\d{1,5})(?:-(\d{1,5}))?")
_CALL = lazy_re(
    r"SeqNum=(\d+), (OpType=_?(?:ALLREDUCE|ALLGATHER|REDUCE_SCATTER|BROADCAST)\w*), (NumelIn=\d+, NumelOut=\d+)"
)
_RUNNING = lazy_re(r"Rank (\d{1,7}) is running \w[^(]{0,80}\(SequenceNumber=(\d{1,12})")
DESYNC = "desync"  # the rule for PyTorch's comparison of the collectives of two ranks
CANCELLED = "step-cancelled"  # the rule for Slurm's plain "CANCELLED"
TASK_FAILURE = "due-to-task-failure"  # the rule for Slurm's reason for ending a step
BOX = "elastic-box"  # the rule for torchrun's failure box, which lists the rank that failed first last

HOROVOD = "horovod-missing"  # the rule for Horovod's list of ranks that it waits for
REPORT = "desync-report"  # the rule for PyTorch's comparison of all ranks
STUCK = "heartbeat-stuck"  # the rule for a rank whose own watchdog is stuck
SPAWNED = "mp-wrapper"  # the rule for an exception of a process that torch.multiprocessing has spawned
ACTOR = "actor-died"  # the rule for the end of a Ray worker's process
KILLED = "bare-killed"  # the rule for a task killed by SIGKILL
SWEPT = KILLED, "worker-killed"  # rules for SIGKILL, with which launchers end the processes that are left
MPI = "mpi-abort", "mpi-error"  # rules for the rank that ends all others
LEFT_EARLY = "tasks-exited"  # the rule for srun's list of tasks that ended long before the others
PMIX = "pmix-lost"  # the rule for a task that Slurm's PMIx plugin lost; the tasks' own ends say more
ENDED = ("step-ended", PMIX, *MPI)  # rules for who kills all tasks
EXITS = "task-exited", "own-exit-code", USAGE
ENDS = (*EXITS, LEFT_EARLY, KILLED, "worker-killed", "abort", "core-dumped", "segfault", "mpi-signal", PMIX, *MPI)
"""Rules for the end of a rank's process."""

NOWHERE = Culprit(), Culprit("0.0.0.0"), Culprit("127.0.0.1")  # Ray's name for a node without a network
Blamed = tuple[tuple[Culprit, ...], tuple[str, ...]]


def blamed(root: Hit, others: Sequence[Hit], ranks: frozenset[int]) -> Blamed:
    """Return the culprits, none if the logs do not show them, and why.

    Args:
        others: the lines that the root explains.
        ranks: all ranks, as far as the logs show them.
    """
    culprits: tuple[Culprit, ...] = (root.culprit,)
    why: tuple[str, ...] = ()
    hits = (root, *others)
    cries = root.rule.category is Category.NETWORK_FABRIC and root.level is Level.SIGN
    named = root.rule.blames is Blames.NAMED and culprits[0] != Culprit()
    hang = root.rule.category is Category.NCCL_HANG
    if hang or root.rule.category is Category.RENDEZVOUS_PORT or (cries and not named):
        lagging = _missing(hits) or (_who_lags(hits, ranks) if hang or cries else _not_joined(hits))
        lagging = lagging if (lagging and lagging[0]) or not cries else _lost(hits) or lagging
        if lagging is not None:
            culprits, why = lagging
        if hang and not named and not (lagging and lagging[0]) and root.rule.name != STUCK:
            return (), why  # ranks that complain wait, also one that alone complains, or ends first
    if root.rule.name == DESYNC:
        culprits, why = _behind(root)
    if root.rule.name == LEFT_EARLY:
        left = _tasks(root.where["tasks"])
        culprits = tuple(Culprit(rank=rank) for rank in left) if len(left) < MANY else ()
    if ".batch" in root.record.text and culprits == (Culprit(),):
        culprits = tuple({Culprit(on[1]) for hit in others if (on := _JOB_ON.search(hit.record.text))})
    if root.rule.name == TASK_FAILURE:
        culprits = _left_alone(others)
    if root.rule.name == PMIX:
        ended = {hit.culprit for hit in _first_ends(hits)}
        culprits = tuple(ended) if len(ended) == 1 else ()
        why = () if culprits else ("several tasks ended at once",)
    unordered = root.rule.scope is Scope.USER and without_order(root, others)
    raised = root.rule.scope is Scope.JOB and root.rule.category not in CRIES and RAISED.match(root.record.text)
    programs = root.rule.scope is Scope.USER or raised or root.rule.name in EVERYONES
    same = alike(root, others) if programs else set()
    most = 2 * len(same) >= len(ranks)
    if not unordered and root.rule.name not in EVERYONES:
        most = root.record.at is None and same >= set(range(max(ranks, default=0) + 1))  # all, also silent ones
    if len(same) > 1 and most:
        nodes = {h.culprit.node for h in hits if h.rule is root.rule}
        node = nodes.pop() if len(nodes) == 1 and not RAISED.match(root.record.text) else ""
        return (Culprit(node),) if node else (), (f"{len(same)} ranks report the same: it is not one rank's",)
    if root.rule.blames is Blames.NAMED and len({h.culprit.node for h in hits if h.rule is root.rule}) > 1:
        culprits = ()  # several peers: the fault is on the path
    culprits = _with_nodes(culprits, hits, root)
    several = root.record.rank is None and root.rule.scope is not Scope.NODE and len(_nodes_of_tasks(root, others)) > 1
    if several and not why:
        culprits = ()  # several nodes at once: nothing shows which was first
    return tuple(dict.fromkeys(c for c in culprits if c not in NOWHERE)), why


def without_order(root: Hit, others: Sequence[Hit]) -> bool:
    """Return whether nothing shows who was first: the lines are in several files, and have no times."""
    return root.record.at is None and any(h.rule is root.rule and h.file != root.file for h in others)


def alike(root: Hit, others: Sequence[Hit]) -> set[int]:
    """Return the ranks that report the root's failure in the same words, apart from numbers."""
    said = _DIGITS.sub("0", root.record.text)
    same = [h for h in others if h.rule is root.rule and h.launch == root.launch]
    ranks = {h.culprit.rank for h in (root, *same) if _DIGITS.sub("0", h.record.text) == said}
    return {rank for rank in ranks if rank is not None}


def _who_lags(hits: Sequence[Hit], ranks: frozenset[int] = frozenset()) -> Blamed | None:
    """Return the culprits of a hang and the reason, or None if the logs do not show them. ranks: all known ranks."""
    enqueued, completed = _counts(hits, "enqueued"), _counts(hits, "completed")
    if len(enqueued) < len(counts := _counts(hits, "seq")):
        enqueued, completed = counts, {}
    waits = max(completed.values()) + 1 if completed else max(enqueued.values(), default=0)
    behind = sorted(rank for rank, number in enqueued.items() if number < waits)
    if 0 < len(behind) <= max(1, len(enqueued) // 2) and len(enqueued) > 1:
        least = min(enqueued[rank] for rank in behind)
        return tuple(Culprit(rank=rank) for rank in behind if enqueued[rank] == least), (
            f"it has launched {least} collectives, others up to {max(enqueued.values())}",
        )
    if (odd := _calls_another(hits)) is not None:
        return (Culprit(rank=odd),), ("in the same collective, all other ranks have tensors of another size",)
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
        return (), (f"all {len(enqueued)} ranks that report a count have launched what the others wait for",)
    return None


def _counts(hits: Sequence[Hit], of: str) -> dict[int, int]:
    """Return how far each rank is in the process group that the most ranks report."""
    groups: dict[str, dict[int, int]] = {}
    for hit in hits:
        rank, number = hit.record.rank, hit.where.get(of, "")
        if rank is not None and number.isdigit():
            group = _GROUP.search(hit.record.line)
            counts = groups.setdefault(group[1] if group else "", {})
            counts[rank] = max(counts.get(rank, 0), int(number))
    return max(groups.values(), key=len, default={})


def _calls_another(hits: Sequence[Hit]) -> int | None:
    """Return the only rank that waits in a collective with another operation or size than all others, if they are
    `MANY`."""
    calls: dict[tuple[str, str], dict[int, str]] = {}
    for hit in hits:
        found = _CALL.search(hit.record.text)
        if found is not None and hit.record.rank is not None:
            group = _GROUP.search(hit.record.line)
            calls.setdefault((group[1] if group else "", found[1]), {})[hit.record.rank] = f"{found[2]} {found[3]}"
    for said in calls.values():
        kinds = Counter(said.values())
        if len(kinds) == 2 and min(kinds.values()) == 1 and max(kinds.values()) >= MANY:
            return next(rank for rank, call in said.items() if kinds[call] == 1)
    return None


def _missing(hits: Sequence[Hit]) -> Blamed | None:
    """Return the ranks for which others report that they wait; nobody if these are all but the first."""
    missing = {int(number) for hit in hits for number in hit.where.get("missing", "").split(",") if number.strip()}
    # "3: [tensor, ...]" has the form of srun's label
    missing |= {h.record.rank for h in hits if h.rule.name == HOROVOD and not h.where and h.record.rank is not None}
    if not missing or (len(missing) > 1 and missing == set(range(1, len(missing) + 1))):
        return None
    crying = {hit.record.rank for hit in hits if hit.rule.category in CRIES} - {None}
    if len(missing) > 1 and crying <= missing and any(hit.rule.name == REPORT for hit in hits):
        return None  # all ranks: they stopped together
    return tuple(Culprit(rank=rank) for rank in sorted(missing)), ("the other ranks report that they wait for it",)


def _not_joined(hits: Sequence[Hit]) -> Blamed | None:
    """Return the ranks that did not come to the first barrier, if all those that came report how many came."""
    came, world, joined = set[int](), 0, 0
    for hit in hits:
        found = _JOINED.search(hit.record.text)
        if found is not None and hit.record.rank is not None:
            came.add(hit.record.rank)
            world, joined = int(found[1]), max(joined, int(found[2]))
    missing = [rank for rank in range(world) if rank not in came] if len(came) == joined else []
    if not 0 < len(missing) <= max(1, int(FEW * world)):
        return None
    said = f"{joined} of {world} ranks came to the barrier, not this one"
    return tuple(Culprit(rank=rank) for rank in missing), (said,)


def _lost(hits: Sequence[Hit]) -> Blamed | None:
    """Return the node with which all ranks that report a peer have lost their connections. Peers that ended later close
    connections, too: then there are several."""
    cries = [(hit, found[1]) for hit in hits if hit.rule.category in CRIES and (found := _LOST.search(hit.record.text))]
    said = [
        (hit, node) for hit, node in cries if not hit.record.node or short_host(node) != short_host(hit.record.node)
    ]
    lost = {node for _, node in said}
    node = next(iter(lost), "")
    if len(lost) != 1 or node.startswith("127.") or any(hit.record.node == node for hit, _ in said):
        return None
    return (Culprit(node),), ("this is the only node with which connections were lost",)


def _with_nodes(culprits: Sequence[Culprit], hits: Sequence[Hit], root: Hit) -> tuple[Culprit, ...]:
    """Add the node of a rank from other lines; use torchrun's report if the root names nobody."""
    known = [culprit for culprit in culprits if culprit != Culprit()]
    if not known:
        said = {hit.culprit for hit in hits if hit.rule is root.rule} - {Culprit()}
        known = list(said) if len(said) == 1 else []
    boxes = [hit for hit in hits if hit.rule.name == BOX and hit.where.get("rank", "").isdigit()]
    if not known and boxes and root.rule.blames is Blames.PRINTER:
        known = [Culprit(rank=int((entry_of(root, boxes) or boxes)[-1].where["rank"]))]
    if not known and root.rule.blames is Blames.PRINTER and root.rule.category not in CRIES:
        only = {h.culprit.rank for h in hits if h.rule.name in (SPAWNED, TRACEBACK)} - {None}
        known = [Culprit(rank=only.pop())] if len(only) == 1 else []
    if not known and root.rule.blames is Blames.PRINTER and root.rule.category not in CRIES:
        ended = {h.culprit for h in _first_ends(hits)}
        known = list(ended) if len(ended) == 1 else _left_by(ended, hits) or local_ranks(hits) or _dead_actor(hits)
        known = known or ([] if ended else list(_left_alone(hits)))
    if len(known) == 1 and known[0].node and known[0].rank is None and root.rule.blames is Blames.PRINTER:
        ended = {h.culprit for h in _first_ends(hits) if h.rule is root.rule and h.culprit.node}
        known = list(ended) if len(ended) == 1 else _alone(known[0], hits)
    nodes: dict[int, str] = {}
    for hit in hits:
        rank = hit.where.get("rank", "")
        of, node = int(rank) if rank.isdigit() else hit.record.rank, hit.where.get("node", "")
        if not node and not (rank and hit.rule.blames is Blames.NAMED):
            node = hit.record.node
        if of is not None and node:
            nodes.setdefault(of, node)
    return tuple(c if c.node or c.rank not in nodes else replace(c, node=nodes[c.rank]) for c in known)


def entry_of(root: Hit, boxes: Sequence[Hit]) -> list[Hit]:
    """Return the line with the rank of the entry in torchrun's box that says how the root's process ended."""
    if root.rule.name in EXITS:
        return []  # each entry has an exit code
    return [box for box in boxes if box.file == root.file and 0 < root.lineno - box.lineno <= _ENTRY]


def _left_by(ended: set[Culprit], hits: Sequence[Hit]) -> list[Culprit]:
    """Return the only one of those that ended whose node closed the connections that others lost."""
    closed = {match[1].partition(".")[0] for hit in hits if (match := _CLOSED.search(hit.record.text))}
    first = [one for one in ended if one.node.partition(".")[0] in closed]
    return first if len(first) == 1 else []


def _dead_actor(hits: Sequence[Hit]) -> list[Culprit]:
    """Return the only node on which Ray reports a dead worker."""
    nodes = {hit.culprit.node for hit in hits if hit.rule.name == ACTOR} - {""}
    return [Culprit(nodes.pop())] if len(nodes) == 1 else []


def _alone(of: Culprit, hits: Sequence[Hit]) -> list[Culprit]:
    """Add the rank if exactly one is known to have failed, and not on another node."""
    traced = {Culprit(h.record.node, h.record.rank) for h in hits if h.rule.name == TRACEBACK}
    failed = traced | {h.culprit for h in _first_ends(hits)}
    ranks = {one.rank for one in failed if one.rank is not None}
    here = all(one.node in ("", of.node) for one in failed)
    return [replace(of, rank=ranks.pop())] if len(ranks) == 1 and here else [of]


def local_ranks(hits: Sequence[Hit]) -> list[Culprit]:
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


def _first_ends(hits: Sequence[Hit]) -> list[Hit]:
    """Return the ends of ranks until srun begins to end the step. If none is before that: those that it has not killed,
    since it begins when one of them aborts, and reports its exit last."""
    begun: dict[str, int] = {}
    for hit in hits:
        if hit.rule.name in (*ENDED, CANCELLED):
            begun[hit.file] = min(begun.get(hit.file, hit.offset), hit.offset)
    ends = [hit for hit in hits if hit.rule.name in ENDS and hit.culprit.rank is not None]
    own = [hit for hit in ends if hit.rule.name != PMIX]
    early = [hit for hit in own if hit.offset <= begun.get(hit.file, hit.offset)]
    return early or [hit for hit in own if hit.rule.name != KILLED] or [hit for hit in ends if hit.rule.name == PMIX]


def _nodes_of_tasks(root: Hit, others: Sequence[Hit]) -> set[str]:
    """Return the nodes that print the same as the root, until srun begins to end the step."""
    ends = [h.offset for h in others if h.file == root.file and h.rule.name in ENDED and h.offset > root.offset]
    same = [h for h in (root, *others) if h.rule is root.rule and h.file == root.file]
    return {h.record.node for h in same if h.offset < min(ends, default=h.offset + 1)} - {""}


def _tasks(text: str) -> list[int]:
    """Return the numbers of a list like `0-3,7`."""
    return [n for first, last in _RANGE.findall(text) for n in range(int(first), int(last or first) + 1)]


def _left_alone(hits: Sequence[Hit]) -> tuple[Culprit, ...]:
    """Return the only task that Slurm did not have to kill when it ended a step because a task had failed."""
    lists = [match[1] for hit in hits if (match := _KILLED_TASKS.search(hit.record.text))]
    killed = set(_tasks(",".join(lists)))
    missing = set(range(max(killed, default=0))) - killed
    return tuple(Culprit(rank=rank) for rank in missing) if len(missing) == 1 else ()
