"""What is worth telling of a run, from its states before and after an event. Pure.

The same journal gives the same news with the same keys, so that an operator that takes over knows what was told.
"""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.core.state import Incident, Phase, Stage, State
from transom_cli.plural import several

KINDS = {
    "started": "Slurm has started the job for the first time",
    "incident": "a fault is being handled: told once its cause is known, after a minute at the latest",
    "recovered": "the training steps again, or the fault was none",
    "planned": "the job is given back before its time limit or for maintenance; and it goes on after that",
    "isolated": "a node was drained or excluded",
    "held": "the job is held, and waits for a person",
    "unanswered": "the run directory does not answer, for a minute by now; and that it does again",
    "released": "the job is held no longer",
    "done": "the run has ended well",
    "failed": "the run has ended and is not restarted: failed, or given up",
    "stopped": "the run was stopped by a person",
}
USUAL = (
    "incident",
    "recovered",
    "held",
    "unanswered",
    "released",
    "done",
    "failed",
    "stopped",
)  # where a target names no kinds
FINAL = ("done", "failed", "stopped")

UNDIAGNOSED = 60.0  # seconds after which an incident is told though nothing is known of its cause
HOLDING = 15.0  # seconds that a hold must last: transom itself holds a job for a moment
_PLANNED = ("time_limit", "maintenance")  # causes that are nobody's fault and no news in the night
_ACTED_ON = (Stage.ISOLATING, Stage.WAITING, Stage.RESTARTING, Stage.STARTING)

Fact = str | int | float | tuple[str, ...] | None


@dataclass(frozen=True)
class News:
    """One thing to tell. key: the same for the same thing, also of another operator; unique in the run.

    at: seconds since the epoch. headline: one line. words: what more there is, a line each. facts: for programs; "",
    None and () are left out.
    """

    key: str
    kind: str
    at: float
    headline: str
    words: tuple[str, ...] = ()
    facts: tuple[tuple[str, Fact], ...] = ()

    @property
    def final(self) -> bool:
        return self.kind in FINAL


def tellings(before: State, since: float, after: State, at: float) -> tuple[News, ...]:
    """What an event at `at` brings. `before` has stood from `since` (the event before it) until then."""
    return (*_by_time(before, since, at), *_by_change(before, after, at))


def _by_time(state: State, since: float, at: float) -> list[News]:
    """What lasts for long enough. It is news of the moment at which it is seen to: an operator may have been away."""
    told = []
    incident = state.incident
    if incident is not None and not _tellable(incident, since) and _tellable(incident, at):
        told.append(_incident(state, incident, at))
    if not _holding(state, since) and _holding(state, at):
        told.append(_held(state, at))
    return told


def _by_change(before: State, after: State, at: float) -> list[News]:
    told = []
    if after.slurm_state == "RUNNING" and before.slurm_state != "RUNNING" and not after.starts:
        told.append(News("started", "started", at, "the job runs", (_job(after),), _facts(after)))
    told += _closed(before, after, at)
    was = before.incident if before.incident is not None and _tellable(before.incident, at) else None
    now = after.incident
    if now is not None and _tellable(now, at) and (was is None or was.id != now.id):
        told.append(_incident(after, now, at))
    known = {(x.node, x.since) for x in before.exclusions}
    for x in after.exclusions:
        if (x.node, x.since) not in known:
            facts = _facts(after, nodes=(x.node,), how=x.how, cause=x.cause, incident=x.incident)
            key = f"isolated/{x.node}/{x.since:.0f}"
            told.append(News(key, "isolated", at, f"{x.node} {x.how}", _lines(x.reason, x.detail), facts))
    if _holding(before, at) and after.phase is not Phase.HELD and not after.phase.over:
        key = f"released/{before.attempt}/{before.since:.0f}"
        told.append(News(key, "released", at, "the job is held no longer", (_job(after),), _facts(after)))
    if after.phase.over and not before.phase.over:
        told.append(_over(after, at))
    return told


def unanswered(state: State, since: float, at: float) -> News:
    """The run directory has owed an answer since then: what no event of the journal can tell."""
    words = (
        "the operator waits for its file system: nothing is restarted until then, and nothing is lost of what was told",
        "the launcher goes on where its node reads the files",
    )
    head = f"the run directory has not answered for {_span(at - since)}"
    return News(f"unanswered/{since:.0f}", "unanswered", at, head, (*words, *_lines(_job(state))), _facts(state))


def answered(state: State, since: float, at: float) -> News:
    """After `unanswered`."""
    head = f"the run directory answers again, after {_span(at - since)}"
    return News(f"answered/{since:.0f}", "unanswered", at, head, _lines(_job(state)), _facts(state))


def _tellable(incident: Incident, at: float) -> bool:
    known = incident.diagnosis is not None or incident.stage in _ACTED_ON
    return known or at - incident.began >= UNDIAGNOSED


def _holding(state: State, at: float) -> bool:
    return state.phase is Phase.HELD and at - state.since >= HOLDING


def _incident(state: State, incident: Incident, at: float) -> News:
    first = incident.marks[0].words if incident.marks else ""
    cause = incident.diagnosis.words if incident.diagnosis is not None else first or "not known yet"
    line = f"log: {incident.log_line}" if incident.log_line and incident.log_line not in cause else ""
    words = _lines(
        "" if first == cause else first, line, _progress(state.max_step, state.durable), _next(state, incident)
    )
    kind = _kind(incident, "incident")
    return News(f"{incident.id}/incident", kind, at, f"{incident.id}: {cause}", words, _of(state, incident))


def _kind(incident: Incident, usual: str) -> str:
    """A planned end is no alarm; one that was told as an alarm before that was known has its all-clear."""
    planned = incident.diagnosis is not None and incident.diagnosis.cause in _PLANNED
    known = next((mark.at for mark in incident.marks if mark.what == "diagnosed"), incident.began)
    return "planned" if planned and known - incident.began < UNDIAGNOSED else usual


def _next(state: State, incident: Incident) -> str:
    """What transom does about it, as far as it has decided. Of a hold its own message tells."""
    if state.phase is Phase.HELD:
        return ""
    diagnosis, capped = incident.diagnosis, any(mark.what == "capped" for mark in incident.marks)
    out = [n for n in diagnosis.nodes if diagnosis.isolates(n) != "none"] if diagnosis and not capped else []
    without = f" without {', '.join(out)}" if out else ""
    return {
        Stage.HEALING: "next: its launcher is at it, inside the allocation",
        Stage.EXAMINING: "next: nodes and logs are being examined",
        Stage.STARTING: "next: the job's start, and its first step",
    }.get(incident.stage, f"next: a restart{without}")


def _closed(before: State, after: State, at: float) -> list[News]:
    told = []
    for incident in after.incidents[len(before.incidents) :]:
        was = before.incident
        known = was is not None and was.id == incident.id and _tellable(was, at)
        if incident.result == "recovered" or (known and incident.result in ("nothing", "ignored")):
            told.append(_recovered(after, incident, at))
    return told


def _recovered(state: State, incident: Incident, at: float) -> News:
    seconds = (incident.ended_at or at) - incident.began
    cause = incident.diagnosis.words if incident.diagnosis is not None else ""
    again = _steps_again(state, incident)
    out = tuple(x.node for x in state.exclusions if x.incident == incident.id)
    words = _lines(
        cause,
        f"without {', '.join(out)}" if out else "",
        _again(state.step, again) if again else _progress(state.max_step, state.durable),
    )
    facts = _of(state, incident, seconds=round(seconds, 1), steps_again=again, result=incident.result)
    how = "the training goes on after" if incident.result == "recovered" else "was no fault, it is over after"
    headline = f"{incident.id}: {how} {_span(seconds)}"
    return News(f"{incident.id}/recovered", _kind(incident, "recovered"), at, headline, words, facts)


def _steps_again(state: State, incident: Incident) -> int:
    """Steps done before and again now. A trainer without checkpoints of ours may count from its own start: 0."""
    counted = incident.result == "recovered" and min(incident.step, state.step, state.durable) >= 0
    return max(0, incident.step - state.step + 1) if counted else 0


def _again(step: int, again: int) -> str:
    return f"at step {step}; {again} step{'s are' if again > 1 else ' is'} done again"


def _held(state: State, at: float) -> News:
    release = f"let it go on: scontrol release {state.job_id}"
    words = _lines(_job(state), _progress(state.max_step, state.durable), release)
    facts = _facts(state, verdict=state.verdict)
    why = state.verdict or "Slurm does not tell why"
    headline = why if why.startswith("held") else f"held: {why}"
    return News(f"held/{state.attempt}/{state.since:.0f}", "held", at, headline, words, facts)


def _over(state: State, at: float) -> News:
    """Phases that are over have the names of their kinds."""
    kind = state.phase.value
    head = {"done": "the training is done", "failed": "the run has failed", "stopped": "the run was stopped"}[kind]
    if kind == "failed" and state.exit_code == 21:
        head = "the run is given up"
    count = len(state.incidents)
    lived = f"{several(count, 'incident')} on the way" if count else ""
    words = _lines(lived, _progress(state.max_step, state.durable), _job(state))
    facts = _facts(state, verdict=state.verdict, exit_code=state.exit_code, incidents=count)
    headline = f"{head}: {state.verdict}" if state.verdict else head
    if kind == "stopped" and state.verdict.startswith("stopped"):
        headline = f"the run was {state.verdict}"
    return News("over", kind, at, headline, words, facts)


def _of(state: State, incident: Incident, **more: Fact) -> tuple[tuple[str, Fact], ...]:
    diagnosis = incident.diagnosis
    about: dict[str, Fact] = {"incident": incident.id}
    if diagnosis is not None:
        decided = diagnosis.decided
        about |= {"cause": diagnosis.cause, "category": decided.category, "action": decided.action}
        about |= {"rule": decided.rule, "nodes": diagnosis.nodes}
    return _facts(state, **about, **more)


def _facts(state: State, **more: Fact) -> tuple[tuple[str, Fact], ...]:
    """step: the highest of the run. checkpoint: the newest durable step."""
    told: dict[str, Fact] = {"phase": state.phase.value, "job_id": state.job_id or None, "attempt": state.attempt}
    told |= {"step": state.max_step if state.max_step >= 0 else None}
    told |= {"checkpoint": state.durable if state.durable >= 0 else None, **more}
    return tuple((name, value) for name, value in told.items() if value not in ("", None, ()))


def _progress(step: int, durable: int) -> str:
    at = f"step {step}" if step >= 0 else "no step yet"
    return f"{at}, newest checkpoint on disk: {f'step {durable}' if durable >= 0 else 'none'}"


def _job(state: State) -> str:
    nodes = f", {several(len(state.nodes), 'node')}" if state.nodes else ""
    return f"job {state.job_id}, start {state.restarts + 1}{nodes}" if state.job_id else ""


def _lines(*lines: str) -> tuple[str, ...]:
    return tuple(line for line in lines if line)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
