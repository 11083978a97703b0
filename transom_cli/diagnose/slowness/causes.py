"""Find out which rank makes the others wait, and why: from heat maps to a kind of slowness, culprits and evidence.
Pure.

Time that a rank spends on anything but waiting is its own. In a synchronous training all ranks take equally long for a
step, so the slow rank is the one with the most time of its own, which waits least.

- `grown` compares two maps of one training: what takes longer now, and where. It separates a slow file system from a
  slow loader, and names a link if all ranks wait longer although none does more.
- `uneven` has a single map: which ranks differ from the others. The work may be distributed unevenly (the last stage of
  a pipeline), so the message says so. It cannot see a problem that concerns all ranks alike.

Without waits (beats.collectives is not installed), "backward" and "other" may include waits for others and are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from transom_cli.diagnose.clue import Category, Clue, Culprit, Slow
from transom_cli.diagnose.slowness.changepoint import Slower
from transom_cli.diagnose.slowness.heatmap import HeatMap, Row
from transom_cli.heartbeat import OTHER, WAIT

GROWN, UNEVEN = 0.03, 0.1  # least share of a step that is lost to a change, and to a difference between ranks
WITH = 0.5  # share of the largest excess from which a rank counts as slow too
ALL = 0.8  # share of slow ranks that counts as all
_STORAGE = ("checkpoint", "restore")
_MAY_HOLD_WAITS = ("backward", OTHER)


_CATEGORY = {
    Slow.STORAGE: Category.STORAGE_IO,
    Slow.LOADER: Category.DATA_LOADER,
    Slow.DEVICE: Category.GPU_HARDWARE,
    Slow.LINK: Category.NETWORK_FABRIC,
}
_WHAT = {
    Slow.STORAGE: "the storage is slow",
    Slow.LOADER: "the data loader is slow",
    Slow.DEVICE: "a device is slow",
    Slow.NODE: "a node is slow",
    Slow.LINK: "communication is slow",
    Slow.ALL: "everything is slower alike",
}


@dataclass(frozen=True)
class Slowness:
    """ranks: the slow ones, or () if none stands out. lost: seconds per step. phase: where, or ""."""

    kind: Slow
    clue: Clue
    ranks: tuple[int, ...] = ()
    lost: float = 0.0
    phase: str = ""

    @property
    def key(self) -> str:
        return ":".join([self.kind.value, *sorted({c.node for c in self.clue.culprits})])


def grown(before: HeatMap, now: HeatMap) -> Slowness:
    """Explain why a step takes longer now, given that it does."""
    former = {row.rank: row for row in before.rows}
    both = [(former[row.rank], row) for row in now.rows if row.rank in former]
    extra = {row.rank: {p: row.of(p) - was.of(p) for p in now.phases} for was, row in both}
    lost = now.step - before.step
    own = {rank: _own(now, excess) for rank, excess in extra.items()}
    least = GROWN * before.step
    slow = _slow(own, least)
    since = (
        f"a step takes {now.step:.4g} s, {lost / before.step:+.0%} from {before.step:.4g} s (up to step {before.last})"
    )
    if slow and len(slow) >= ALL * len(own):
        return _alike(now, extra, slow, lost, since)
    if slow:
        return _some(now, before, extra, slow, since, 0.9 if now.waits else 0.7)
    waits = sorted(excess.get(WAIT, 0.0) for excess in extra.values())
    if waits and waits[len(waits) // 2] >= max(least, WITH * lost):
        words = f"every rank waits {waits[len(waits) // 2]:.3g} s longer per step, and none does more work than before"
        return _slowness(Slow.LINK, (), (since, words), 0.6, lost, WAIT)
    words = "the ranks do not report what a step is spent on" if not now.reported else "no reported phase takes longer"
    return _slowness(Slow.ALL, (), (since, f"{words}: the cause is unknown"), 0.3, lost, "")


def uneven(now: HeatMap) -> Slowness | None:
    """Find ranks with clearly more time of their own than the others (a tenth of a step); None if there are none."""
    extra = {row.rank: {p: row.of(p) - now.usual[p] for p in now.phases} for row in now.rows}
    marked = {rank for rank, phase in now.marks if phase in _phases(now)}
    slow = [rank for rank in _slow({r: _own(now, e) for r, e in extra.items()}, UNEVEN * now.step) if rank in marked]
    if not slow or len(slow) > len(now.rows) / 2:
        return None
    since = "this is so in all of this launch that was observed: the work may be distributed unevenly"
    found = _some(now, now, extra, slow, "", 0.5 if now.waits else 0.4)
    return replace(found, clue=replace(found.clue, evidence=(*found.clue.evidence, since)))


def unexplained(found: Slower) -> Slowness:
    """Report that a step takes longer, without maps of before and after."""
    since = f"since step {found.since} a step takes {found.now:.4g} s, {found.ratio - 1:+.0%} from {found.before:.4g} s"
    return _slowness(Slow.ALL, (), (since, "the cause is unknown"), 0.3, found.now - found.before, "")


def heated(found: Slowness, hot: Mapping[str, str]) -> Slowness:
    """Add what the health checks report about clocks and temperature, by node: a slow node or device is throttled."""
    nodes = [c.node for c in found.clue.culprits]
    words = [f"{node}: {hot[node]}" for node in dict.fromkeys(nodes) if node in hot]
    if not words or found.kind not in (Slow.NODE, Slow.DEVICE):
        return found
    clue = replace(
        found.clue,
        category=_CATEGORY[Slow.DEVICE],
        confidence=max(found.clue.confidence, 0.9),
        evidence=(*found.clue.evidence, *words),
    )
    return replace(found, kind=Slow.DEVICE, clue=clue)


def _phases(now: HeatMap) -> tuple[str, ...]:
    """Return the phases that count as a rank's own time."""
    return tuple(p for p in now.phases if p != WAIT and (now.waits or p not in _MAY_HOLD_WAITS))


def _own(now: HeatMap, excess: Mapping[str, float]) -> float:
    return sum(excess[p] for p in _phases(now))


def _slow(own: Mapping[int, float], least: float) -> list[int]:
    most = max(own.values(), default=0.0)
    return [rank for rank, seconds in own.items() if seconds >= max(least, WITH * most)]


def _main(now: HeatMap, extra: Mapping[int, Mapping[str, float]], slow: list[int]) -> str:
    """Return the phase with most of the lost time."""
    return max(_phases(now), key=lambda phase: sum(extra[rank][phase] for rank in slow))


def _alike(
    now: HeatMap, extra: Mapping[int, Mapping[str, float]], slow: list[int], lost: float, since: str
) -> Slowness:
    phase = _main(now, extra, slow)
    more = sorted(extra[rank][phase] for rank in slow)[len(slow) // 2]
    evidence = f"{len(slow)} of {len(now.rows)} ranks spend {more:.3g} s more per step in {phase}"
    alone = len({row.node for row in now.rows}) == 1
    if phase == "data" and len(now.rows) == 1:
        return _slowness(
            Slow.LOADER, (Culprit(now.rows[0].node, now.rows[0].rank),), (since, evidence), 0.5, lost, phase
        )
    if phase == "data" or phase in _STORAGE:
        return _slowness(Slow.STORAGE, (), (since, evidence), 0.5 if alone else 0.8, lost, phase)
    return _slowness(Slow.ALL, (), (since, evidence), 0.6, lost, phase)


def _some(
    now: HeatMap,
    against: HeatMap,
    extra: Mapping[int, Mapping[str, float]],
    slow: list[int],
    since: str,
    confidence: float,
) -> Slowness:
    phase = _main(now, extra, slow)
    rows = {row.rank: row for row in now.rows}
    slow.sort(key=lambda rank: -_own(now, extra[rank]))
    worst = rows[slow[0]]
    usual = against.usual.get(phase, 0.0)
    evidence = [f"{_who(worst)} spends {worst.of(phase):.3g} s per step in {phase}, usually {usual:.3g} s"]
    if len(slow) > 1:
        evidence.append(f"so do {len(slow)} ranks: {_ranks(slow)}")
    least = min(now.rows, key=lambda row: row.of(WAIT))
    if now.waits and least.rank in slow:
        usual = now.usual[WAIT]
        evidence.append(
            f"rank {least.rank} waits least for the others: {least.of(WAIT):.3g} s per step, usually {usual:.3g} s"
        )
    culprits = tuple(Culprit(rows[rank].node, rank) for rank in slow)
    kind = _kind(now, phase, slow)
    if kind is Slow.STORAGE:  # often a single rank writes for all, which does not make its node the cause
        confidence = min(confidence, 0.6)
    lost = _own(now, extra[slow[0]])
    return _slowness(kind, culprits, (*evidence, *([since] if since else [])), confidence, lost, phase)


def _kind(now: HeatMap, phase: str, slow: list[int]) -> Slow:
    if phase == "data":
        return Slow.LOADER
    if phase in _STORAGE:
        return Slow.STORAGE
    on = {row.rank: row.node for row in now.rows}
    nodes = {on[rank] for rank in slow}
    return Slow.NODE if all(rank in slow for rank, node in on.items() if node in nodes) else Slow.DEVICE


def _slowness(
    kind: Slow, culprits: tuple[Culprit, ...], evidence: tuple[str, ...], confidence: float, lost: float, phase: str
) -> Slowness:
    clue = Clue("beats", _CATEGORY.get(kind, Category.UNKNOWN), confidence, (_WHAT[kind], *evidence), culprits)
    return Slowness(kind, clue, tuple(c.rank for c in culprits if c.rank is not None), lost, phase)


def _who(row: Row) -> str:
    return f"rank {row.rank} on {row.node}"


def _ranks(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks)[:16]) + (", ..." if len(ranks) > 16 else "")
