"""Notifications about a run, from its states before and after an event of the journal. Pure.

The same journal gives the same notifications with the same keys, so that a new operator knows which were sent.
"""

from dataclasses import dataclass

from transom_cli.core.fault import fault_of, outcome
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.state import Phase, State
from transom_cli.core.policy import IGNORE, STOP
from transom_cli.plural import several, some
from transom_cli.slurm.port import release_commands

KINDS = {
    "started": "Slurm has started the job for the first time",
    "incident": "a fault is being handled: sent once its cause is known, within a minute; or the loss is NaN",
    "recovered": "the training makes progress again, or there was no fault",
    "planned": "the job is requeued before its time limit or for maintenance, and continues after that",
    "isolated": "a node was drained or excluded",
    "saves": "saving the training state fails (sent at the first failure), or succeeds again",
    "held": "the job is held and waits for a user",
    "unanswered": "the run directory has not responded for a minute, or responds again",
    "released": "the job is no longer held",
    "done": "the run has finished successfully",
    "failed": "the run has failed and is not restarted",
    "stopped": "a user has stopped the run",
}
DEFAULT_KINDS = tuple(kind for kind in KINDS if kind not in ("started", "planned", "isolated"))  # without `events`
FINAL = ("done", "failed", "stopped")

UNDIAGNOSED = 60.0  # seconds after which an incident without a diagnosis is sent
HOLDING = 15.0  # seconds that a hold must last: transom itself holds jobs briefly
_PLANNED = ("time_limit", "maintenance", "requested")  # causes that are no fault
_ACTED_ON = (Stage.ISOLATING, Stage.WAITING, Stage.RESTARTING, Stage.STARTING)

Fact = str | int | float | tuple[str, ...] | None


@dataclass(frozen=True)
class Notification:
    """A notification."""

    key: str  # unique in the run; the same for the same fact, also from another operator
    kind: str
    at: float  # Unix time
    headline: str  # one line
    details: tuple[str, ...] = ()  # further lines
    facts: tuple[tuple[str, Fact], ...] = ()  # for programs; "", None and () are left out

    @property
    def final(self) -> bool:
        return self.kind in FINAL


def notifications_for(
    before: State, since: float, after: State, at: float, cluster: str = ""
) -> tuple[Notification, ...]:
    """Return the notifications of an event.

    Args:
        before: The state since the event before, at `since`.
        after: The state after the event, at `at`.
        cluster: As `job.cluster`, for the commands in messages.
    """
    return (*_by_time(before, since, at, cluster), *_by_change(before, after, at))


def _by_time(state: State, since: float, at: float, cluster: str) -> list[Notification]:
    """Return notifications about what has lasted long enough, dated when the operator noticed."""
    found = []
    incident = state.incident
    if incident is not None and not _worth_a_message(incident, since) and _worth_a_message(incident, at):
        found.append(_incident(state, incident, at))
    if not _holding(state, since) and _holding(state, at):
        found.append(_held(state, at, cluster))
    return found


def _by_change(before: State, after: State, at: float) -> list[Notification]:
    found = []
    if after.job.state == "RUNNING" and before.job.state != "RUNNING" and not after.job.starts:
        found.append(Notification("started", "started", at, "the job is running", (_job(after),), _facts(after)))
    found += _closed(before, after, at)
    was = before.incident if before.incident is not None and _worth_a_message(before.incident, at) else None
    now = after.incident
    if now is not None and _worth_a_message(now, at) and (was is None or was.id != now.id):
        found.append(_incident(after, now, at))
    found += _grown(before, after, at)
    if after.launch.late and not before.launch.late:
        key, details = f"late/{after.attempt}/{after.launch.number}", _lines(_progress(after), _job(after))
        found.append(Notification(key, "incident", at, after.launch.late, details, _facts(after)))
    found += _bad_loss(before, after, at)
    found += _saves(before, after, at)
    known = {(x.node, x.since) for x in before.isolation.exclusions}
    for x in after.isolation.exclusions:
        if (x.node, x.since) not in known:
            facts = _facts(after, nodes=(x.node,), how=x.how, cause=x.cause, incident=x.incident)
            key = f"isolated/{x.node}/{x.since:.0f}"
            found.append(Notification(key, "isolated", at, f"{x.node} {x.how}", _lines(x.reason, x.detail), facts))
    if _holding(before, at) and after.phase is not Phase.HELD and not after.phase.over:
        key = f"released/{before.attempt}/{before.since:.0f}"
        found.append(Notification(key, "released", at, "the job is no longer held", (_job(after),), _facts(after)))
    if after.phase.over and not before.phase.over:
        found.append(_over(after, at))
    return found


def unanswered(state: State, since: float, at: float) -> Notification:
    """Return a notification that the run directory has not responded since then; no journal event can say so."""
    details: tuple[str, ...] = (
        "the operator waits for the file system and restarts nothing until it responds",
        "the launcher continues as long as its own node can read the files",
    )
    head = f"the run directory has not responded for {_span(at - since)}"
    details += _lines(_job(state))
    return Notification(f"unanswered/{since:.0f}", "unanswered", at, head, details, _facts(state))


def answered(state: State, since: float, at: float) -> Notification:
    """Return the notification that ends `unanswered`."""
    head = f"the run directory responds again, after {_span(at - since)}"
    return Notification(f"answered/{since:.0f}", "unanswered", at, head, _lines(_job(state)), _facts(state))


def _worth_a_message(incident: Incident, at: float) -> bool:
    known = incident.diagnosis is not None or incident.stage in _ACTED_ON
    return known or at - incident.began >= UNDIAGNOSED


def _holding(state: State, at: float) -> bool:
    return state.phase is Phase.HELD and at - state.since >= HOLDING


def _incident(state: State, incident: Incident, at: float) -> Notification:
    fault = fault_of(incident, state.isolation.exclusions)
    details = _lines(fault.evidence and f"evidence: {fault.evidence}", _progress(state), _next(state, incident))
    head, kind = f"{incident.id}: {fault.line}", _kind(incident, "incident")
    return Notification(f"{incident.id}/incident", kind, at, head, details, _of(state, incident))


def _kind(incident: Incident, usual: str) -> str:
    """Return `planned` for a planned end, unless it was already sent as an incident."""
    planned = incident.diagnosis is not None and incident.diagnosis.cause in _PLANNED
    known = next((mark.at for mark in incident.marks if mark.what == "diagnosed"), incident.began)
    return "planned" if planned and known - incident.began < UNDIAGNOSED else usual


def _next(state: State, incident: Incident) -> str:
    """Return the next action, if decided. A hold has its own notification."""
    if state.phase is Phase.HELD:
        return ""
    diagnosis, capped = incident.diagnosis, any(mark.what == "capped" for mark in incident.marks)
    out = [n for n in diagnosis.nodes if diagnosis.isolates(n) != "none"] if diagnosis and not capped else []
    without = f" without {', '.join(out)}" if out else ""
    if diagnosis is not None and diagnosis.decided.action == STOP:
        return "next: the run stops"
    return {
        Stage.RELAUNCHING: "next: the launcher recovers within the allocation; if it cannot, transom requeues the job",
        Stage.EXAMINING: "next: checking nodes and logs",
        Stage.WITHHELD: "only observed: transom does nothing about it",
        Stage.STARTING: "next: start of the job, and its first step",
    }.get(incident.stage, f"next: restart{without}")


def _closed(before: State, after: State, at: float) -> list[Notification]:
    found = []
    for incident in after.incidents[len(before.incidents) :]:
        was = before.incident
        known = was is not None and was.id == incident.id and _worth_a_message(was, at)
        if incident.result == "recovered" or (known and incident.result in ("nothing", "unproven", "ignored")):
            found.append(_recovered(after, incident, at))
    return found


def _recovered(state: State, incident: Incident, at: float) -> Notification:
    seconds = (incident.ended_at or at) - incident.began
    fault, again = fault_of(incident, state.isolation.exclusions), _steps_again(state, incident)
    out = tuple(x.node for x in state.isolation.exclusions if x.incident == incident.id)
    details = _lines(
        fault.line,
        f"without {', '.join(out)}" if out else "",
        f"at step {state.progress.step}; {several(again, 'step')} repeated" if again else _progress(state),
    )
    facts = _of(state, incident, seconds=round(seconds, 1), steps_again=again, result=incident.result)
    done = f"{fault.done}, " if fault.done else ""
    headline = f"{incident.id}: {done}{outcome(incident.result)} {_span(seconds)}"
    return Notification(f"{incident.id}/recovered", _kind(incident, "recovered"), at, headline, details, facts)


def _steps_again(state: State, incident: Incident) -> int:
    """Return the number of repeated steps; 0 if steps count from the start of the processes."""
    known = incident.result == "recovered" and min(incident.step, state.progress.step, state.progress.durable) >= 0
    own = not (incident.since_start or state.progress.since_start)
    return max(0, incident.step - state.progress.step + 1) if known and own else 0


def _held(state: State, at: float, cluster: str) -> Notification:
    commands = release_commands(state.job.id, state.job.reason, state.isolation.excluded, cluster)
    found = (f"{'release' if label == 'continue' else label}: {command}" for label, command in commands.items())
    details = _lines(_job(state), _progress(state), *found)
    facts = _facts(state, verdict=state.verdict)
    why = state.verdict or "Slurm gives no reason"
    headline = why if why.startswith("held") else f"held: {why}"
    return Notification(f"held/{state.attempt}/{state.since:.0f}", "held", at, headline, details, facts)


def _grown(before: State, after: State, at: float) -> list[Notification]:
    """Report that a run which had shrunk has more nodes again: no incident ends with it."""
    if after.attempt != before.attempt or not before.launch.started or after.launch.number == before.launch.number:
        return []
    new = tuple(n for n in after.launch.extra if n not in before.launch.extra)
    number, wanted = len(after.carrying), after.request.num_nodes - after.request.spares
    if number <= len(before.carrying):
        return []
    headline = f"grown: continues on {number} of {several(max(number, wanted), 'node')}"
    headline += f", with {some(new)}" if new else ""
    key = f"grown/{after.attempt}/{after.launch.number}"
    return [
        Notification(key, "recovered", at, headline, _lines(_progress(after), _job(after)), _facts(after, nodes=new))
    ]


def _bad_loss(before: State, after: State, at: float) -> list[Notification]:
    """Report a loss that is NaN or infinite. A rule of the policy may ask for more, which is an incident of its own."""
    report = after.launch.bad_loss
    if report is None or report == before.launch.bad_loss:
        return []
    head, _, more = report.words.partition("; ")
    newest = f"newest checkpoint from before it: step {report.good}"
    newest = newest if report.good >= 0 else "no checkpoint is known to be from before it"
    again = f"`transom resume RUN --from {report.good}`" if report.good >= 0 else "start a new run"
    then = f"transom does nothing about it; what to do: `transom stop RUN`, then {again}"
    rules = () if after.policy.observe else after.policy.rules
    if rule := next((r for r in rules if report.what in r.reported and r.action != IGNORE), None):
        then = f"next: rule `{rule.name}` decides: {rule.action}"
    facts = _facts(after, cause=report.what, good=report.good if report.good >= 0 else None)
    facts = tuple((name, report.step if name == "step" else value) for name, value in facts)
    details = _lines(newest, then, more, _progress(after), _job(after))
    return [Notification(f"loss/{after.attempt}/{report.step}", "incident", at, head, details, facts)]


def _saves(before: State, after: State, at: float) -> list[Notification]:
    was, now = before.saves_fail, after.saves_fail
    if now is not None and was is None:
        details = (now.words, now.advice, *_lines(_progress(after), _job(after)))
        facts = _facts(after, failed=now.count, good=now.good if now.good >= 0 else None)
        key = f"saves/{now.attempt}/{now.since:.0f}"
        head = f"SAVES FAIL: a fault would lose all steps since the last good save: {now.why}"
        return [Notification(key, "saves", at, head, details, facts)]
    if was is not None and now is None:
        details = _lines(_progress(after), _job(after))
        key = f"saves/{was.attempt}/{was.since:.0f}/good"
        head = f"saves succeed again, after {several(was.count, 'failure')}"
        return [Notification(key, "saves", at, head, details, _facts(after))]
    return []


def _over(state: State, at: float) -> Notification:
    """The phase is also the kind."""
    kind = state.phase.value
    head = {"done": "training finished", "failed": "the run has failed", "stopped": "the run was stopped"}[kind]
    if kind == "failed" and state.exit_code == 21:
        head = "the run was given up"
    count = len(state.incidents)
    lived = f"{several(count, 'incident')} during the run" if count else ""
    unsaved = f"SAVES FAIL: {state.saves_fail.words}" if state.saves_fail is not None else ""
    details = _lines(unsaved, lived, _progress(state), _job(state))
    facts = _facts(state, verdict=state.verdict, exit_code=state.exit_code, incidents=count)
    headline = f"{head}: {state.verdict}" if state.verdict else head
    if kind == "stopped" and state.verdict.startswith("stopped"):
        headline = f"the run was {state.verdict}"
    resumed = sum(one.what == "resume" and not one.name for one in state.requests)
    return Notification(f"over/{resumed}" if resumed else "over", kind, at, headline, details, facts)


def _of(state: State, incident: Incident, **more: Fact) -> tuple[tuple[str, Fact], ...]:
    diagnosis = incident.diagnosis
    about: dict[str, Fact] = {"incident": incident.id}
    if diagnosis is not None:
        decided = diagnosis.decided
        about |= {"cause": diagnosis.cause, "category": decided.category, "action": decided.action}
        about |= {"rule": decided.rule, "nodes": diagnosis.nodes}
    return _facts(state, **about, **more)


def _facts(state: State, **more: Fact) -> tuple[tuple[str, Fact], ...]:
    """step: the highest of the run, or of this start if steps count from it. checkpoint: the newest step on disk."""
    found: dict[str, Fact] = {"phase": state.phase.value, "job_id": state.job.id or None, "attempt": state.attempt}
    step = _step(state)
    found |= {"step": step if step >= 0 else None, "steps_since_start": state.progress.since_start or None}
    found |= {"checkpoint": state.progress.durable if state.progress.durable >= 0 else None, **more}
    return tuple((name, value) for name, value in found.items() if value not in ("", None, ()))


def _progress(state: State) -> str:
    progress, step, durable = state.progress, _step(state), state.progress.durable
    at = f"step {step}" if step >= 0 else "no step yet"
    at += " since this start" if progress.since_start and step >= 0 else ""
    return f"{at}, newest checkpoint on disk: {f'step {durable}' if durable >= 0 else 'none'}"


def _job(state: State) -> str:
    nodes = f", {several(len(state.job.nodes), 'node')}" if state.job.nodes else ""
    return f"job {state.job.id}, start {state.job.restarts + 1}{nodes}" if state.job.id else ""


def _lines(*lines: str) -> tuple[str, ...]:
    return tuple(line for line in lines if line)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _step(state: State) -> int:
    """Return the highest known step: incidents and checkpoints often know a newer one than the launch's reports."""
    if state.progress.since_start:
        return state.progress.step
    incidents = (*state.incidents[-1:], *((state.incident,) if state.incident is not None else ()))
    steps = [one.step for one in incidents if not one.since_start]
    newest: int = max(state.progress.max_step, state.progress.durable, *steps)
    return newest
