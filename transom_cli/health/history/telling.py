"""From what a run's operator learns to the history's records: states before and after each event. Pure.

The same journal gives the same records, so that an operator that takes over finds out which of them are missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transom_cli.core.diagnose import PREFLIGHT
from transom_cli.core.state import Diagnosis, Exclusion, State
from transom_cli.health.history.records import Attempt, Isolation, Over, Record, RunOver


@dataclass(frozen=True)
class Telling:
    """The attempt that is open: since when it runs, and when it was last seen to (None: it still does)."""

    run: str
    folder: str
    attempt: str = ""
    began: float = 0.0
    ended: float | None = None
    nodes: tuple[str, ...] = ()
    cluster: str = ""  # of the run's job


def tell(telling: Telling, before: State, at: float, after: State) -> tuple[Telling, tuple[Record, ...]]:
    records: list[Record] = []
    telling, closed = _attempt(telling, before, at, after)
    records += closed
    known = {(x.node, x.since) for x in before.exclusions}
    records += [_isolation(telling, x) for x in after.exclusions if (x.node, x.since) not in known]
    kept = {x.node for x in after.exclusions}
    records += [Over(at, telling.run, x.node) for x in before.exclusions if x.node not in kept]
    if after.phase.over and not before.phase.over:
        records.append(RunOver(at, telling.run))
    return telling, tuple(records)


def _isolation(telling: Telling, x: Exclusion) -> Isolation:
    """By the worst of what checks found; else by what the run itself saw."""
    verdict = "FAIL" if x.until is None else "SUSPECT"
    told = Isolation(
        x.since, telling.run, telling.folder, x.node, x.how, x.until, x.cause, "", verdict, x.reason, detail=x.detail
    )
    told = replace(told, cluster=telling.cluster)
    if not x.faults:
        return told
    worst = x.faults[0]
    told = replace(told, check=worst.check, verdict=worst.verdict, evidence=worst.evidence, remedy=worst.remedy)
    return replace(told, device=worst.device, serial=worst.serial)


def _attempt(telling: Telling, before: State, at: float, after: State) -> tuple[Telling, list[Record]]:
    """Open while Slurm runs it; told once the next one is known, and by then what it failed of."""
    records: list[Record] = []
    if telling.attempt and (after.attempt != telling.attempt or after.phase.over):
        ended = at if telling.ended is None else telling.ended
        records.append(_told(telling, ended, after))
        telling = replace(telling, attempt="", ended=None, nodes=())
    runs = after.slurm_state == "RUNNING" and not after.phase.over
    if runs and not telling.attempt:
        telling = replace(telling, attempt=after.attempt, began=at, ended=None, nodes=after.nodes)
    elif runs:
        nodes = tuple(dict.fromkeys((*telling.nodes, *after.nodes)))
        telling = replace(telling, ended=None, nodes=nodes)
    elif telling.attempt and telling.ended is None:
        telling = replace(telling, ended=at)
    return telling, records


def _told(telling: Telling, ended: float, after: State) -> Attempt:
    """An incident's attempt is the one in which it began."""
    open_one = (after.incident,) if after.incident is not None else ()
    every = (*after.incidents, *open_one)
    own = [i.diagnosis for i in every if i.attempt == telling.attempt and i.diagnosis is not None]
    found = [n for diagnosis in own for n in _failed(diagnosis)]
    found += [x.node for x in after.exclusions if x.faults and x.since >= telling.began]
    blamed = tuple(n for n in dict.fromkeys(found) if n in telling.nodes)
    cause = own[-1].cause if own else after.phase.value if after.phase.over else ""
    return Attempt(ended, telling.run, telling.attempt, telling.began, telling.nodes, blamed, cause)


def _failed(diagnosis: Diagnosis) -> tuple[str, ...]:
    """An attempt that could not begin is no failure of the nodes that were given up before it, once more."""
    if diagnosis.cause in (PREFLIGHT, "isolated_nodes"):
        return tuple(f.node for f in diagnosis.faults)
    return diagnosis.nodes
