"""Derive the history's records from the states of a run's operator, before and after each event. Pure.

The same journal gives the same records, so an operator that takes over knows which of them are missing.
"""

from dataclasses import dataclass, replace

from transom_cli.core.diagnose import PREFLIGHT
from transom_cli.core.incident import Diagnosis
from transom_cli.core.operator.state import Exclusion, State
from transom_cli.health.history.records import Attempt, Isolation, Over, Record, RunOver


@dataclass(frozen=True)
class OpenAttempt:
    """The current attempt of a run. ended: when it was last seen running; None if it still runs."""

    run: str
    folder: str
    attempt: str = ""
    began: float = 0.0
    ended: float | None = None
    nodes: tuple[str, ...] = ()
    cluster: str = ""  # of the run's job


def records_of(current: OpenAttempt, before: State, at: float, after: State) -> tuple[OpenAttempt, tuple[Record, ...]]:
    """Return the records of one event at `at`, given the operator's states before and after it."""
    records: list[Record] = []
    current, closed = _attempt(current, before, at, after)
    records += closed
    known = {(x.node, x.since) for x in before.isolation.exclusions}
    records += [_isolation(current, x) for x in after.isolation.exclusions if (x.node, x.since) not in known]
    kept = {x.node for x in after.isolation.exclusions}
    records += [Over(at, current.run, x.node) for x in before.isolation.exclusions if x.node not in kept]
    if after.phase.over and not before.phase.over:
        records.append(RunOver(at, current.run))
    return current, tuple(records)


def _isolation(current: OpenAttempt, x: Exclusion) -> Isolation:
    """Describe an isolation by the worst finding of a check, or by what the run itself saw."""
    verdict = "FAIL" if x.until is None else "SUSPECT"
    found = Isolation(
        x.since, current.run, current.folder, x.node, x.how, x.until, x.cause, "", verdict, x.reason, detail=x.detail
    )
    found = replace(found, cluster=current.cluster)
    if not x.faults:
        return found
    worst = x.faults[0]
    found = replace(found, check=worst.check, verdict=worst.verdict, evidence=worst.evidence, remedy=worst.remedy)
    return replace(found, device=worst.device, serial=worst.serial)


def _attempt(current: OpenAttempt, before: State, at: float, after: State) -> tuple[OpenAttempt, list[Record]]:
    """Track the attempt while Slurm runs it; record it once the next one is known, when its failure is known too."""
    records: list[Record] = []
    if current.attempt and (after.attempt != current.attempt or after.phase.over):
        ended = at if current.ended is None else current.ended
        records.append(_record(current, ended, after))
        current = replace(current, attempt="", ended=None, nodes=())
    runs = after.job.state == "RUNNING" and not after.phase.over
    if runs and not current.attempt:
        current = replace(current, attempt=after.attempt, began=at, ended=None, nodes=after.job.nodes)
    elif runs:
        nodes = tuple(dict.fromkeys((*current.nodes, *after.job.nodes)))
        current = replace(current, ended=None, nodes=nodes)
    elif current.attempt and current.ended is None:
        current = replace(current, ended=at)
    return current, records


def _record(current: OpenAttempt, ended: float, after: State) -> Attempt:
    """Record an attempt with the incidents that began in it."""
    open_one = (after.incident,) if after.incident is not None else ()
    every = (*after.incidents, *open_one)
    own = [i.diagnosis for i in every if i.attempt == current.attempt and i.diagnosis is not None]
    found = [n for diagnosis in own for n in _failed(diagnosis)]
    found += [x.node for x in after.isolation.exclusions if x.faults and x.since >= current.began]
    blamed = tuple(n for n in dict.fromkeys(found) if n in current.nodes)
    cause = own[-1].cause if own else after.phase.value if after.phase.over else ""
    return Attempt(ended, current.run, current.attempt, current.began, current.nodes, blamed, cause)


def _failed(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the nodes at fault. If the attempt could not start, nodes isolated earlier do not count again."""
    if diagnosis.cause in (PREFLIGHT, "isolated_nodes"):
        return tuple(f.node for f in diagnosis.faults)
    return diagnosis.nodes
