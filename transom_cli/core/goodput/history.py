"""What the operator's journal adds to the launchers' own words: when the job waited, and what they did not write. Pure.

The journal is read through the core: of what kind a second is follows from the states that it went through, so that
there is one judgement of what Slurm's words mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.goodput.logs import shifted
from transom_cli.core.goodput.shapes import Attempt, History, Kind, Launch, Point, Sample, Sign, ns
from transom_cli.core.state import Incident, Phase, Stage, State
from transom_cli.layout import attempt_name

Seen = tuple[ev.Event, State]  # an event of the journal, and the state after it

_OF_PHASE = {
    Phase.SUBMITTING: Kind.IDLE,
    Phase.HELD: Kind.HOLD,
    Phase.FINISHING: Kind.IDLE,
    Phase.STOPPING: Kind.IDLE,
    Phase.DONE: Kind.IDLE,
    Phase.FAILED: Kind.IDLE,
    Phase.STOPPED: Kind.IDLE,
}
_NO_FAULT = ("nothing", "ignored")  # results of an incident that cost nothing


def history(seen: Sequence[Seen], attempts: Iterable[Attempt], now: float, *, alive: bool) -> History:
    """now: seconds, where the run is not over. alive: its operator is."""
    if not seen:
        return History(ns(now), ns(now), over=False, alive=alive)
    last = seen[-1][1]
    end = next((e.at for e, state in seen if state.phase.over), None)
    about: dict[str, list[ev.Event]] = {}
    for event, state in seen:
        if name := _about(event, state):
            about.setdefault(name, []).append(event)
    told = {a.name: a for a in attempts}
    for name, events in about.items():
        told[name] = _completed(told.get(name, Attempt(name)), events)
    incidents = (*last.incidents, *((last.incident,) if last.incident is not None else ()))
    known = [_named(a, incidents, about.get(a.name, ())) for a in sorted(told.values(), key=lambda a: a.order)]
    if not any(a.launcher for a in known):
        known = [_scripted(a, about.get(a.name, ())) for a in known]
    exact = any(one.exact for a in known for one in a.launches)
    return History(
        begin=ns(seen[0][0].at),
        until=ns(max(*(e.at for e, _ in seen), now) if end is None else end),
        over=end is not None,
        alive=alive,
        beats=exact or any(isinstance(e, ev.StepSeen) for e, _ in seen),
        points=_points(seen),
        attempts=tuple(known),
        signs=tuple((i.attempt, _sign(i)) for i in incidents if i.result not in _NO_FAULT),
    )


def _points(seen: Sequence[Seen]) -> tuple[Point, ...]:
    """In the order of time; what adds nothing to the one before is left out."""
    found: list[Point] = []
    for point in sorted((_point(*one) for one in seen), key=lambda p: p.at):
        if point.woke or not found or (point.kind, point.attempt) != (found[-1].kind, found[-1].attempt):
            found.append(point)
    return tuple(found)


def _point(event: ev.Event, state: State) -> Point:
    kind = _OF_PHASE.get(state.phase)
    if kind is None:
        busy = state.incident is not None and state.incident.stage is not Stage.STARTING
        waits = state.slurm_state == "PENDING" and not busy
        kind = Kind.QUEUE if waits else Kind.RESTART
    woke = isinstance(event, ev.Started) and event.epoch > 1
    return Point(ns(event.at), kind, state.attempt, woke)


def _about(event: ev.Event, state: State) -> str:
    """The attempt of which an event tells; "" for none."""
    if isinstance(event, ev.JobSeen):
        name = attempt_name(event.job_id, event.restarts)
        return name if event.state == "RUNNING" and name == state.attempt else ""
    if isinstance(event, (ev.LaunchSeen, ev.StepSeen, ev.OutcomeSeen, ev.HealSeen)):
        return event.attempt
    return state.attempt if isinstance(event, ev.CheckpointSeen) else ""


def _completed(attempt: Attempt, events: Sequence[ev.Event]) -> Attempt:
    """With what the operator saw of it and its launcher has not written."""
    attempt = shifted(attempt, _ahead(attempt, events))
    for e in events:
        if isinstance(e, ev.JobSeen) and (attempt.begun is None or not attempt.launcher):
            attempt = replace(attempt, begun=min(attempt.begun or ns(e.at), ns(e.at)))
        elif isinstance(e, ev.LaunchSeen) and e.launch not in {one.number for one in attempt.launches}:
            launches = sorted((*attempt.launches, Launch(e.launch, ns(e.at))), key=lambda one: one.number)
            attempt = replace(attempt, launches=tuple(launches), launcher=True)
        elif isinstance(e, ev.OutcomeSeen):
            ended = ns(e.at) if attempt.ended is None else attempt.ended
            attempt = replace(attempt, ended=ended, status=attempt.status or e.status, cause=attempt.cause or e.cause)
            attempt = replace(attempt, step=max(attempt.step, e.step), launcher=True)
        elif isinstance(e, ev.HealSeen) and e.what == "seen" and e.incident not in {s.incident for s in attempt.signs}:
            attempt = replace(attempt, signs=(*attempt.signs, Sign(ns(e.at), e.incident)), launcher=True)
    return replace(attempt, launches=_with_samples(attempt.launches, events))


def _scripted(attempt: Attempt, events: Sequence[ev.Event]) -> Attempt:
    """A script of the user's own, without a launcher: it may train from its start on."""
    if attempt.begun is None:
        return attempt
    return replace(attempt, launches=_with_samples((Launch(0, attempt.begun),), events))


def _ahead(attempt: Attempt, events: Sequence[ev.Event]) -> int:
    """By how much (ns, 0 or less) the launcher's clock is to be moved: nothing is seen before it has happened."""
    at = {one.number: one.at for one in attempt.launches}
    late = [ns(e.at) - at[e.launch] for e in events if isinstance(e, ev.LaunchSeen) and e.launch in at]
    if attempt.ended is not None:
        late += [ns(e.at) - attempt.ended for e in events if isinstance(e, ev.OutcomeSeen)]
    return min((0, *late))


def _with_samples(launches: Sequence[Launch], events: Sequence[ev.Event]) -> tuple[Launch, ...]:
    """Where the launcher has written none: steps that the operator saw; a published checkpoint's step is done, too.

    Not before the first step of that launch was seen: it may be an older launch's that was published late.
    """
    found: list[Launch] = []
    bounds = [*(one.at for one in launches[1:]), None]
    stepping = any(isinstance(e, ev.StepSeen) for e in events)
    for one, end in zip(launches, bounds, strict=False):
        samples: list[Sample] = []
        for e in events:
            if ns(e.at) < one.at or (end is not None and ns(e.at) >= end):
                continue
            if isinstance(e, ev.StepSeen) or (isinstance(e, ev.CheckpointSeen) and (samples or not stepping)):
                samples.append(Sample(ns(e.at), e.step))
        found.append(one if one.exact else replace(one, samples=tuple(samples)))
    return tuple(found)


def _sign(incident: Incident) -> Sign:
    told = incident.diagnosis
    category = (told.decided.category or told.cause) if told is not None else ""
    return Sign(ns(incident.began), incident.id, category)


def _named(attempt: Attempt, incidents: Iterable[Incident], events: Sequence[ev.Event]) -> Attempt:
    """The launcher saw the first sign, and when; the operator's name for it is the one that people know."""
    marks = {(m.at, m.what, m.words): _sign(i) for i in incidents if i.attempt == attempt.name for m in i.marks}
    heard = [e for e in events if isinstance(e, ev.HealSeen)]
    healed = {e.incident: sign for e in heard if (sign := marks.get((e.at, "seen", e.words))) is not None}
    signs = [
        replace(s, incident=healed[s.incident].incident, category=s.category or healed[s.incident].category)
        if s.incident in healed
        else s
        for s in attempt.signs
    ]
    return replace(attempt, signs=tuple(signs))
