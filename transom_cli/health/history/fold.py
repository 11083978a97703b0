"""All records of a user's runs, folded: what is isolated, and what each node did and failed. Pure.

Records are taken by their time, whatever file they come from, so that every reader of the same files comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from transom_cli.health.history.records import Attempt, Isolation, Lift, Over, Record, RunOver

REMEMBERED = 90 * 86400.0  # seconds; what is older counts no more: nodes are repaired, and renamed
CARRIED = 7 * 86400.0  # seconds for which new runs keep off a node with a proven fault that could not be drained


@dataclass(frozen=True)
class Standing:
    """An isolation, and what became of it: `ended` is empty while it stands; else expired, lifted, over or run over.

    until: as in the isolation, or as long as new runs keep off the node after the end of the run that found it.
    run_over: that run has ended.
    """

    isolation: Isolation
    until: float | None
    ended: str = ""
    ended_at: float | None = None
    run_over: bool = False

    @property
    def carried(self) -> bool:
        """A check has proven a fault of the node, and Slurm does not keep it away: new runs do."""
        one = self.isolation
        return one.how == "excluded" and one.proven and bool(one.check)


@dataclass(frozen=True)
class NodeUse:
    """hours: in attempts that have ended. failures: (run, attempt) in which the node was to blame."""

    node: str
    hours: float
    failures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NodeHistory:
    """standings: newest first, one for each run and node. uses: by node."""

    standings: tuple[Standing, ...] = ()
    uses: tuple[NodeUse, ...] = ()
    isolations: tuple[Isolation, ...] = ()  # all of them, oldest first

    @property
    def standing(self) -> tuple[Standing, ...]:
        return tuple(s for s in self.standings if not s.ended)


def fold(records: Iterable[Record], now: float) -> NodeHistory:
    kept = sorted((r for r in records if r.wall > now - REMEMBERED), key=lambda r: (r.wall, repr(r)))
    latest: dict[tuple[str, str], Standing] = {}
    for record in kept:
        if isinstance(record, Isolation):
            latest[record.run, record.node] = Standing(record, record.until)
            continue
        for key, standing in latest.items():
            if not standing.ended:
                latest[key] = _after(standing, record)
    found = [_expired(s, now) for s in latest.values()]
    standings = sorted(found, key=lambda s: (-s.isolation.wall, s.isolation.node, s.isolation.run))
    isolations = tuple(r for r in kept if isinstance(r, Isolation))
    return NodeHistory(tuple(standings), _uses(kept), isolations)


def _after(standing: Standing, record: Record) -> Standing:
    """What the record, which is younger, makes of an isolation that stands."""
    run, node = standing.isolation.run, standing.isolation.node
    if isinstance(record, Lift) and node in record.nodes and record.run in ("", run):
        return replace(standing, ended="lifted", ended_at=record.wall)
    if isinstance(record, Over) and (record.run, record.node) == (run, node):
        return replace(standing, ended="over", ended_at=record.wall)
    if not isinstance(record, RunOver) or record.run != run:
        return standing
    standing = replace(standing, run_over=True)
    if standing.carried:
        return replace(standing, until=standing.isolation.wall + CARRIED)
    if standing.isolation.how == "excluded":
        return replace(standing, ended="run over", ended_at=record.wall)
    return standing


def _expired(standing: Standing, now: float) -> Standing:
    until = standing.until
    if until is None or until > now or (standing.ended_at is not None and standing.ended_at <= until):
        return standing
    return replace(standing, ended="expired", ended_at=until)


def _uses(records: Iterable[Record]) -> tuple[NodeUse, ...]:
    """Each attempt counts once, also where two operators wrote of it."""
    attempts = {(r.run, r.attempt): r for r in records if isinstance(r, Attempt)}
    hours: dict[str, float] = {}
    failures: dict[str, list[tuple[str, str]]] = {}
    for key, attempt in attempts.items():
        for node in attempt.nodes:
            hours[node] = hours.get(node, 0.0) + attempt.hours
        for node in dict.fromkeys(attempt.blamed):
            failures.setdefault(node, []).append(key)
    nodes = dict.fromkeys((*hours, *failures))
    return tuple(NodeUse(n, hours.get(n, 0.0), tuple(failures.get(n, ()))) for n in sorted(nodes))


def to_avoid(history: NodeHistory, now: float) -> tuple[Isolation, ...]:
    """What a new run should keep off, one of each node; for a week at most, then a preflight may look again.

    Nodes of one name on two clusters are two.
    """
    found: dict[tuple[str, str], Isolation] = {}
    for standing in history.standing:
        one = standing.isolation
        if standing.carried and one.wall > now - CARRIED:
            found.setdefault((one.node, one.cluster), one)
    return tuple(found[key] for key in sorted(found))
