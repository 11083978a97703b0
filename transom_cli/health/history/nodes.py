"""What all records of a user's runs say about nodes: isolations, use and failures, and repeat offenders. Pure.

Records are ordered by time across all files, so all readers of the same files get the same result.

Repeat offenders are judged by rate, not by count: a node that ran twice as long may fail twice as often. At the common
failure rate of all nodes, a good node's failures follow a Poisson distribution; a node whose number is very unlikely is
a repeat offender. It is reported, never isolated for that: the rate includes failures that were not the node's fault.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from transom_cli.core.node_hazard import RECENT, Use
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.history.records import Attempt, Isolation, Lift, Over, Record, RunOver
from transom_cli.plural import several

REMEMBERED = 90 * 86400.0  # seconds; older records no longer count: nodes are repaired and renamed
CARRIED = 7 * 86400.0  # seconds for which new runs avoid a node with a proven fault that could not be drained


@dataclass(frozen=True)
class IsolationStatus:
    """An isolation and what became of it. ended: "" while active; otherwise expired, lifted, over or run over.

    until: as in the isolation; or, after the end of the run that found it, until when new runs avoid the node.
    run_over: that run has ended.
    """

    isolation: Isolation
    until: float | None
    ended: str = ""
    ended_at: float | None = None
    run_over: bool = False

    @property
    def carried(self) -> bool:
        """Whether new runs avoid the node too: a check proved its fault, but it could not be drained."""
        one = self.isolation
        return one.how == "excluded" and one.proven and bool(one.check)


@dataclass(frozen=True)
class NodeUse:
    """hours: in attempts that have ended. failures: (run, attempt) in which the node was at fault."""

    node: str
    hours: float
    failures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NodeHistory:
    """statuses: newest first, one per run and node. uses: one per node."""

    statuses: tuple[IsolationStatus, ...] = ()
    uses: tuple[NodeUse, ...] = ()
    isolations: tuple[Isolation, ...] = ()  # all of them, oldest first

    @property
    def active(self) -> tuple[IsolationStatus, ...]:
        return tuple(s for s in self.statuses if not s.ended)


def fold(records: Iterable[Record], now: float) -> NodeHistory:
    kept = sorted((r for r in records if r.wall > now - REMEMBERED), key=lambda r: (r.wall, repr(r)))
    latest: dict[tuple[str, str], IsolationStatus] = {}
    for record in kept:
        if isinstance(record, Isolation):
            latest[record.run, record.node] = IsolationStatus(record, record.until)
            continue
        for key, status in latest.items():
            if not status.ended:
                latest[key] = _after(status, record)
    found = [_expired(s, now) for s in latest.values()]
    statuses = sorted(found, key=lambda s: (-s.isolation.wall, s.isolation.node, s.isolation.run))
    isolations = tuple(r for r in kept if isinstance(r, Isolation))
    return NodeHistory(tuple(statuses), _uses(kept), isolations)


def _after(status: IsolationStatus, record: Record) -> IsolationStatus:
    """Apply a later record to an active isolation."""
    run, node = status.isolation.run, status.isolation.node
    if isinstance(record, Lift) and node in record.nodes and record.run in ("", run):
        return replace(status, ended="lifted", ended_at=record.wall)
    if isinstance(record, Over) and (record.run, record.node) == (run, node):
        return replace(status, ended="over", ended_at=record.wall)
    if not isinstance(record, RunOver) or record.run != run:
        return status
    status = replace(status, run_over=True)
    if status.carried:
        return replace(status, until=status.isolation.wall + CARRIED)
    if status.isolation.how == "excluded":
        return replace(status, ended="run over", ended_at=record.wall)
    return status


def _expired(status: IsolationStatus, now: float) -> IsolationStatus:
    until = status.until
    if until is None or until > now or (status.ended_at is not None and status.ended_at <= until):
        return status
    return replace(status, ended="expired", ended_at=until)


def _uses(records: Iterable[Record]) -> tuple[NodeUse, ...]:
    """Return each node's use. An attempt counts once, even if two operators recorded it."""
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


def uses_after_return(records: Iterable[Record]) -> tuple[Use, ...]:
    """Return how nodes that had been at fault did once they were used again: what `Hazard.updated` learns from.

    A node returns when its next attempt begins, after the one in which it was at fault.
    """
    by_node: dict[str, dict[tuple[str, str], Attempt]] = {}
    for record in records:
        if isinstance(record, Attempt):
            for node in record.nodes:
                by_node.setdefault(node, {})[record.run, record.attempt] = record
    found = []
    for node, attempts in by_node.items():
        failures: list[float] = []
        returned: float | None = None
        for one in sorted(attempts.values(), key=lambda a: (a.began, a.wall)):
            if failures and one.began >= failures[-1]:
                returned = one.began if returned is None else returned
                recent = sum(failures[-1] - RECENT < at for at in failures[:-1])
                used = max(one.wall, one.began) - returned
                found.append(Use(used, node in one.blamed, one.began - returned, recent))
            if node in one.blamed:
                failures, returned = [*failures, one.wall], None
    return tuple(found)


def failures_elsewhere(records: Iterable[Record], node: str, run: str, now: float) -> int:
    """Return in how many attempts of other runs the node was at fault lately."""
    attempts = (r for r in records if isinstance(r, Attempt) and r.run != run and node in r.blamed)
    return len({(r.run, r.attempt) for r in attempts if now - RECENT < r.wall})


def to_avoid(history: NodeHistory, now: float) -> tuple[Isolation, ...]:
    """Return isolations that a new run should respect, one per node and cluster, for a week at most."""
    found: dict[tuple[str, str], Isolation] = {}
    for status in history.active:
        one = status.isolation
        if status.carried and one.wall > now - CARRIED:
            found.setdefault((one.node, one.cluster), one)
    return tuple(found[key] for key in sorted(found))


CHECK = "history"


@dataclass(frozen=True)
class HistoryLimits:
    """history_chance: a node is a repeat offender if its number of failures, or more, is less likely than this by
    chance. history_failures: minimum number of failed attempts.
    """

    history_chance: float = 0.01
    history_failures: int = 2


def judge_history(history: NodeHistory, limits: HistoryLimits) -> tuple[Finding, ...]:
    """Return repeat offenders, least likely first, and devices that were isolated in several places. All MONITOR."""
    return (*_nodes(history, limits), *_devices(history))


def _nodes(history: NodeHistory, limits: HistoryLimits) -> tuple[Finding, ...]:
    hours = sum(use.hours for use in history.uses)
    failures = sum(len(use.failures) for use in history.uses)
    if not hours or not failures:
        return ()
    found: list[tuple[float, Finding]] = []
    for use in history.uses:
        expected = failures * use.hours / hours
        chance = poisson_tail(len(use.failures), expected)
        if len(use.failures) >= limits.history_failures and chance < limits.history_chance:
            found.append((chance, _offender(use, expected, chance, len(history.uses))))
    return tuple(finding for _, finding in sorted(found, key=lambda x: (x[0], x[1].node)))


def _offender(use: NodeUse, expected: float, chance: float, nodes: int) -> Finding:
    runs = len({run for run, _ in use.failures})
    where = f"{several(len(use.failures), 'attempt')} of {several(runs, 'run')}"
    evidence = (
        f"at fault in {where} in {use.hours:.3g} h of use; "
        f"{expected:.2g} expected at the rate of all {nodes} nodes (chance {chance:.1g})"
    )
    return Finding(CHECK, Verdict.MONITOR, use.node, evidence, Remedy.WATCH)


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of `count` or more events if `mean` are expected."""
    if count <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    # Sum the smaller side, so that a tiny tail is not lost next to 1.
    if count <= mean:
        return max(0.0, 1.0 - math.fsum(_term(k, mean) for k in range(count)))
    total, k = 0.0, count
    while (term := _term(k, mean)) > total * 1e-12:
        total += term
        k += 1
    return min(1.0, total)


def _term(k: int, mean: float) -> float:
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))


def _devices(history: NodeHistory) -> tuple[Finding, ...]:
    """Return devices by serial number: a device that was moved takes its fault along."""
    places: dict[str, dict[tuple[str, str], str]] = {}
    for isolation in history.isolations:
        if isolation.serial:
            places.setdefault(isolation.serial, {})[isolation.node, isolation.device] = isolation.what
    found = []
    for serial, where in sorted(places.items()):
        if len(where) < 2:
            continue
        places_text = ", ".join(
            f"{node} {device} ({check})".replace("  ", " ") for (node, device), check in where.items()
        )
        node, device = list(where)[-1]
        evidence = f"the device with serial {serial} was isolated in {len(where)} places: {places_text}"
        found.append(Finding(CHECK, Verdict.MONITOR, node, evidence, Remedy.REPAIR, device, serial))
    return tuple(found)
