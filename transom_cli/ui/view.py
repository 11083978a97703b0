"""One pure view of a run, for every way of showing it: from the operator's state and the beats to plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.beats.table import NodeTable
from transom_cli.core.decided import UNDECIDED
from transom_cli.core.state import Incident, State


@dataclass(frozen=True)
class IncidentView:
    id: str
    began: float
    words: str
    result: str  # open, recovered, stopped, ...
    lasted: float | None  # seconds to the first new step, or to its end
    marks: tuple[tuple[float, str, str], ...]  # at, what, words
    category: str = ""  # of the diagnosis, as in `diagnose.clue.Category`
    rule: str = ""  # of the policy, that decided
    action: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class RunView:
    """What a person wants to know. Times are seconds; `now` is when the view was made."""

    run_id: str
    now: float
    phase: str
    over: bool
    since: float
    job_id: int
    restarts: int
    starts: int
    step: int
    durable: int
    loss: float | None
    nodes: tuple[str, ...]  # that carry ranks, or will
    spares: tuple[str, ...]  # that stand by
    excluded: tuple[tuple[str, str, str], ...]  # node, how, reason
    slurm_state: str
    slurm_reason: str
    slurm_lost: str
    operator: bool  # a live one holds the lease
    verdict: str
    exit_code: int | None
    incidents: tuple[IncidentView, ...]  # newest first
    memory: int = -1  # the newest step in the nodes' memory
    memory_age: float | None = None  # seconds since it was committed
    memory_protection: str = ""  # in words
    rhythm: str = ""  # when it saves and why, in words
    reports: tuple[str, ...] = ()  # what is odd about the training and nobody acts on, in words
    phases: dict[str, object] | None = None  # what its steps are spent on, by rank (diagnose.slow.words.document)
    phase_lines: tuple[str, ...] = ()  # the same as text


def incident_view(incident: Incident) -> IncidentView:
    words = incident.diagnosis.words if incident.diagnosis else (incident.marks[0].words if incident.marks else "")
    lasted = incident.ended_at - incident.began if incident.ended_at is not None else None
    marks = tuple((m.at, m.what, m.words) for m in incident.marks)
    result = incident.result or incident.stage.value
    told = incident.diagnosis.decided if incident.diagnosis else UNDECIDED
    by = (told.category, told.rule, told.action, told.fingerprint)
    return IncidentView(incident.id, incident.began, words, result, lasted, marks, *by)


def view_of(run_id: str, state: State, tables: Mapping[str, NodeTable], now: float, *, operator: bool) -> RunView:
    told = [r for table in tables.values() for r in table.ranks]
    launch = max((r.launch for r in told), default=0)
    ranks = [r for r in told if r.launch == launch]  # a node that was given up goes on telling of a former one
    looked_at = {x.node for x in state.idle_looks}
    step = max(state.step, min((r.step for r in ranks), default=-1))
    loss = next((r.loss for r in sorted(ranks, key=lambda r: r.rank) if r.loss is not None), None)
    open_ones = (state.incident,) if state.incident is not None else ()
    return RunView(
        run_id=run_id,
        now=now,
        phase=state.phase.value,
        over=state.phase.over,
        since=state.since,
        job_id=state.job_id,
        restarts=state.restarts,
        starts=state.starts,
        step=step,
        durable=state.durable,
        loss=loss,
        nodes=tuple(n for n in state.nodes if n not in state.idle),
        spares=tuple(n for n in state.idle if n not in looked_at),
        excluded=tuple((x.node, x.how, x.reason) for x in state.exclusions),
        slurm_state=state.slurm_state,
        slurm_reason=state.slurm_reason,
        slurm_lost=state.slurm_lost,
        operator=operator,
        verdict=state.verdict,
        exit_code=state.exit_code,
        incidents=tuple(incident_view(i) for i in (*open_ones, *reversed(state.incidents))),
    )
