"""The history of a run, from the launchers' files and the operator's journal. Pure.

A launcher's records (`launcher.jsonl`, `progress.jsonl`, `outcome.json`) are JSON values; damaged ones are ignored.
The journal adds when the job waited, and what a launcher did not write. It is played through the core, so that
Slurm's states are interpreted in one place.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.goodput.model import Attempt, History, How, Kind, Launch, Observation, Sample, Sign, ns
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.state import Phase, State
from transom_cli.layout import attempt_name

Record = Mapping[str, Any]
_HANDOFFS = ("requeued", "resubmitted", "held")  # as in `supervise.handoff_record`
_RELAUNCHED = ("grown", "swapped")  # without an incident, the launcher does both on purpose
_FAR = 2**40  # seconds: an implausible time


def attempt_of(name: str, journal: Iterable[Record], progress: Iterable[Record], outcome: Record) -> Attempt:
    """Build an attempt from its launcher's records."""
    attempt = Attempt(name)
    launches: dict[int, Launch] = {}
    standby = False  # standbys were used since the launch before
    for record in journal:
        if (at := _time(record)) is None:
            continue
        if attempt.began is None:
            attempt = replace(attempt, launcher=True, began=at)
        kind = record.get("type")
        if kind == "launch" and isinstance(number := record.get("launch"), int):
            job_step, how = str(record.get("job_step", "")), _how(bool(record.get("lost")), standby)
            launches.setdefault(number, Launch(number, at, job_step=job_step, how=how))
            standby = False
        elif kind == "standby":
            standby = standby or record.get("what") == "used"
        elif kind == "job_step" and launches:
            newest = max(launches)
            launches[newest] = replace(launches[newest], done=at)
        elif kind == "recovery":
            attempt = _recovery(attempt, at, record, bool(launches))
            if record.get("what") in _RELAUNCHED and not record.get("incident") and launches:
                newest = max(launches)
                launches[newest] = replace(launches[newest], left=str(record.get("cause", "")))
        elif kind == "outcome":
            attempt = replace(attempt, ended=at, status=str(record.get("status", "")))
        elif kind == "requeued" and record.get("how") in _HANDOFFS:
            attempt = replace(attempt, handoff=at, held=record.get("how") == "held")
    samples: dict[int, list[Sample]] = {}
    counted: dict[int, bool] = {}  # by launch: whether the newest line counts from the start of the processes
    for record in progress:
        at, step, number = _time(record), record.get("step"), record.get("launch")
        if at is not None and isinstance(step, int) and isinstance(number, int):
            since_start = record.get("since_start") is True
            if counted.get(number) and not since_start:
                samples[number] = []  # the earlier ones are not steps of the training
            counted[number] = since_start
            samples.setdefault(number, []).append(Sample(at, step, _stalled(record)))
    with_samples = [
        replace(one, samples=tuple(samples[n]), exact=True, since_start=counted[n]) if n in samples else one
        for n, one in sorted(launches.items())
    ]
    step, cause = outcome.get("step", -1), str(outcome.get("cause", ""))
    step = -1 if outcome.get("since_start") is True else step
    return replace(attempt, launches=tuple(with_samples), step=step if isinstance(step, int) else -1, cause=cause)


def _how(stayed: bool, standby: bool) -> How:
    if stayed:
        return How.REENTRY_STANDBY if standby else How.REENTRY
    return How.STANDBY if standby else How.RELAUNCH


def _recovery(attempt: Attempt, at: int, record: Record, launched: bool) -> Attempt:
    what, name = record.get("what"), str(record.get("incident", ""))
    if what == "checked" and not name and not launched:
        return replace(attempt, checked=at)
    if what == "seen" and name:
        return replace(attempt, signs=(*attempt.signs, Sign(at, name)))
    if what == "diagnosed" and attempt.signs and attempt.signs[-1].incident == name:
        decided = record.get("decided")
        category = str(decided.get("category", "")) if isinstance(decided, Mapping) else ""
        cause = str(record.get("cause", ""))
        last = replace(attempt.signs[-1], category=category or cause, hang=cause == "hang")
        return replace(attempt, signs=(*attempt.signs[:-1], last))
    return attempt


def _stalled(record: Record) -> int | None:
    seconds = record.get("seconds")
    if not isinstance(seconds, dict):
        return None
    stalled = seconds.get("checkpoint", 0.0)
    return ns(stalled) if isinstance(stalled, (int, float)) and 0 <= stalled < _FAR else None


def _time(record: Record) -> int | None:
    wall = record.get("wall")
    return ns(wall) if isinstance(wall, (int, float)) and not isinstance(wall, bool) and 0 < wall < _FAR else None


def shifted(attempt: Attempt, by: int) -> Attempt:
    """Shift all times of an attempt, because the launcher's clock is not the operator's."""
    if not by:
        return attempt

    def move(at: int | None) -> int | None:
        return None if at is None else at + by

    launches = tuple(
        replace(one, at=one.at + by, done=move(one.done), samples=tuple(replace(s, at=s.at + by) for s in one.samples))
        for one in attempt.launches
    )
    signs = tuple(replace(sign, at=sign.at + by) for sign in attempt.signs)
    moved = replace(attempt, began=move(attempt.began), checked=move(attempt.checked), launches=launches, signs=signs)
    return replace(moved, ended=move(attempt.ended), handoff=move(attempt.handoff))


Progress = ev.StepSeen | ev.CheckpointSeen
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
_NO_FAULT = ("nothing", "unproven", "ignored")  # results of an incident that cost nothing


class JournalHistory:
    """Collects what an account needs from the journal, event by event. `history` does it at once."""

    def __init__(self) -> None:
        self._begin = self._latest = self._end = None  # type: float | None
        self._state, self._attempt = State(), ""
        self._steps_seen = False
        self._about: dict[str, list[ev.Event]] = {}  # by attempt, without what is in `_progress`
        self._progress = defaultdict[str, list[Progress]](list)
        self._observations: list[Observation] = []

    def hear(self, event: ev.Event, state: State) -> None:
        """Take in the next event. state: after it."""
        at = event.at
        if self._begin is None or self._latest is None:
            self._begin = self._latest = at
        elif at > self._latest:
            self._latest = at
        same = state is self._state  # as for most events of a long journal
        if isinstance(event, ev.StepSeen):
            self._steps_seen = True
            if same:
                self._progress[event.attempt].append(event)
                return
        elif same and isinstance(event, ev.CheckpointSeen):
            if self._attempt:
                self._progress[self._attempt].append(event)
            return
        if isinstance(event, ev.Resumed):
            self._end = None
        if self._end is None and state.phase.over:
            self._end = at
        if name := _about(event, state):
            if isinstance(event, (ev.StepSeen, ev.CheckpointSeen)):
                self._progress[name].append(event)
            else:
                self._about.setdefault(name, []).append(event)
        _add_observation(self._observations, _observation(event, state))
        self._state, self._attempt = state, state.attempt

    def merged(self, attempts: Iterable[Attempt], now: float, *, alive: bool) -> History:
        """Merge the journal and the attempts, as `history`."""
        if self._begin is None or self._latest is None:
            return History(ns(now), ns(now), over=False, alive=alive)
        last, about, end = self._state, self._about, self._end
        by_name = {a.name: a for a in attempts}
        for name in {**about, **self._progress}:
            events, progress = about.get(name, ()), self._progress.get(name, ())
            by_name[name] = _completed(by_name.get(name, Attempt(name)), events, progress)
        incidents = (*last.incidents, *((last.incident,) if last.incident is not None else ()))
        known = [_named(a, incidents, about.get(a.name, ())) for a in sorted(by_name.values(), key=lambda a: a.order)]
        if not any(a.launcher for a in known):
            known = [_scripted(a, self._progress.get(a.name, ())) for a in known]
        exact = any(one.exact for a in known for one in a.launches)
        observations: list[Observation] = []
        for one in sorted(self._observations, key=lambda p: p.at):
            _add_observation(observations, one)
        return History(
            begin=ns(self._begin),
            until=ns(max(self._latest, now) if end is None else end),
            over=end is not None,
            alive=alive,
            steps_seen=exact or self._steps_seen,
            observations=tuple(observations),
            attempts=tuple(known),
            signs=tuple((i.attempt, _sign(i)) for i in incidents if i.result not in _NO_FAULT),
        )


def history(seen: Iterable[Seen], attempts: Iterable[Attempt], now: float, *, alive: bool) -> History:
    """Merge the journal and the attempts.

    Args:
        seen: Events of the journal, each with the state after it.
        now: Unix time, for a run that is not over.
        alive: The operator is alive.
    """
    journal = JournalHistory()
    for event, state in seen:
        journal.hear(event, state)
    return journal.merged(attempts, now, alive=alive)


def _add_observation(found: list[Observation], one: Observation) -> None:
    """Append an observation, unless it repeats the last one."""
    if one.restarted or not found or (one.kind, one.attempt) != (found[-1].kind, found[-1].attempt):
        found.append(one)


def _observation(event: ev.Event, state: State) -> Observation:
    kind = _OF_PHASE.get(state.phase)
    if kind is None:
        busy = state.incident is not None and state.incident.stage is not Stage.STARTING
        waits = state.job.state == "PENDING" and not busy
        kind = Kind.QUEUE if waits else Kind.RESTART
    restarted = isinstance(event, ev.Started) and event.epoch > 1
    return Observation(ns(event.at), kind, state.attempt, restarted)


def _about(event: ev.Event, state: State) -> str:
    """Return the attempt that an event concerns; "" if none."""
    if isinstance(event, ev.JobSeen):
        name = attempt_name(event.job_id, event.restarts)
        return name if event.state == "RUNNING" and name == state.attempt else ""
    if isinstance(event, (ev.LaunchSeen, ev.StepSeen, ev.OutcomeSeen, ev.RecoverySeen)):
        return event.attempt
    return state.attempt if isinstance(event, ev.CheckpointSeen) else ""


def _completed(attempt: Attempt, events: Sequence[ev.Event], progress: Sequence[Progress]) -> Attempt:
    """Add what the operator saw and the launcher has not written."""
    attempt = shifted(attempt, _ahead(attempt, events))
    silent = attempt.ended is None  # the launcher has not written how it ended: it was killed, for example
    for e in events:
        if isinstance(e, ev.JobSeen) and (attempt.began is None or not attempt.launcher):
            attempt = replace(attempt, began=min(attempt.began or ns(e.at), ns(e.at)))
        elif isinstance(e, ev.LaunchSeen) and e.launch not in {one.number for one in attempt.launches}:
            one = Launch(e.launch, ns(e.at), job_step=e.job_step)
            launches = sorted((*attempt.launches, one), key=lambda one: one.number)
            attempt = replace(attempt, launches=tuple(launches), launcher=True)
        elif isinstance(e, ev.OutcomeSeen):
            ended = ns(e.at) if attempt.ended is None else attempt.ended
            attempt = replace(attempt, ended=ended, status=attempt.status or e.status, cause=attempt.cause or e.cause)
            attempt = replace(attempt, step=max(attempt.step, -1 if e.since_start else e.step), launcher=True)
        elif (
            isinstance(e, ev.RecoverySeen)
            and e.what == "seen"
            and e.incident not in {s.incident for s in attempt.signs}
        ):
            attempt = replace(attempt, signs=(*attempt.signs, Sign(ns(e.at), e.incident)), launcher=True)
    known = _with_samples(attempt.launches, progress)
    ends = [e for e in events if isinstance(e, ev.OutcomeSeen)]
    if silent and ends and known and known[-1].exact:
        known = (*known[:-1], _with_last_steps(known[-1], ends[-1], progress))
    return replace(attempt, launches=known)


def _with_last_steps(launch: Launch, end: ev.OutcomeSeen, progress: Sequence[Progress]) -> Launch:
    """Add the steps after the launcher's last line: those that the operator saw, and that the exit records have."""
    last = launch.samples[-1]
    seen = [
        Sample(ns(e.at), e.step)
        for e in progress
        if isinstance(e, ev.StepSeen) and e.since_start == launch.since_start and last.at < ns(e.at) <= ns(end.at)
    ]
    for one in end.exits:
        if one.since_start == launch.since_start and one.step > last.step:
            wall = ns(one.wall)  # on the node's clock
            seen.append(Sample(wall if last.at < wall <= ns(end.at) else ns(end.at), one.step))
    return replace(launch, samples=(*launch.samples, *seen))


def _scripted(attempt: Attempt, progress: Sequence[Progress]) -> Attempt:
    """A user's own script without a launcher may train from its start."""
    if attempt.began is None:
        return attempt
    return replace(attempt, launches=_with_samples((Launch(0, attempt.began),), progress))


def _ahead(attempt: Attempt, events: Sequence[ev.Event]) -> int:
    """Return the shift of the launcher's clock (ns, 0 or less) with which nothing is seen before it happened."""
    at = {one.number: one.at for one in attempt.launches}
    late = [ns(e.at) - at[e.launch] for e in events if isinstance(e, ev.LaunchSeen) and e.launch in at]
    if attempt.ended is not None:
        late += [ns(e.at) - attempt.ended for e in events if isinstance(e, ev.OutcomeSeen)]
    return min((0, *late))


def _with_samples(launches: Sequence[Launch], events: Sequence[Progress]) -> tuple[Launch, ...]:
    """Add samples to launches without any: steps that the operator saw, and steps of published checkpoints.

    Checkpoints count only after the first step of the launch: an older launch may have published late.
    """
    if all(one.exact for one in launches):
        return tuple(launches)
    found: list[Launch] = []
    bounds = [*(one.at for one in launches[1:]), None]
    stepping = any(isinstance(e, ev.StepSeen) for e in events)
    for one, bound in zip(launches, bounds, strict=False):
        end = bound if one.done is None else one.done
        if one.exact:
            found.append(one)
            continue
        samples: list[Sample] = []
        since_start = False
        for e in events:
            if ns(e.at) < one.at or (end is not None and ns(e.at) >= end):
                continue
            if isinstance(e, ev.StepSeen) or samples or not stepping:
                if isinstance(e, ev.StepSeen) and e.since_start != since_start:
                    samples, since_start = [], e.since_start
                if not (since_start and isinstance(e, ev.CheckpointSeen)):
                    samples.append(Sample(ns(e.at), e.step))
        found.append(replace(one, samples=tuple(samples), since_start=since_start))
    return tuple(found)


def _sign(incident: Incident) -> Sign:
    diagnosis = incident.diagnosis
    category = (diagnosis.decided.category or diagnosis.cause) if diagnosis is not None else ""
    return Sign(ns(incident.began), incident.id, category, step=-1 if incident.since_start else incident.step)


def _named(attempt: Attempt, incidents: Iterable[Incident], events: Sequence[ev.Event]) -> Attempt:
    """Use the launcher's time of the first sign, and the operator's name of the incident."""
    marks = {(m.at, m.what, m.words): _sign(i) for i in incidents if i.attempt == attempt.name for m in i.marks}
    reported = [e for e in events if isinstance(e, ev.RecoverySeen)]
    recoveries = {e.incident: sign for e in reported if (sign := marks.get((e.at, "seen", e.words))) is not None}
    signs = [
        replace(
            s,
            incident=recoveries[s.incident].incident,
            category=s.category or recoveries[s.incident].category,
            step=recoveries[s.incident].step,
        )
        if s.incident in recoveries
        else s
        for s in attempt.signs
    ]
    return replace(attempt, signs=tuple(signs))
