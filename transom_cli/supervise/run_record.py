"""Combines a run's journals: incidents of operator and launchers, and attempts. Pure.

An operator that was away reads a launcher's records late; here, each has the launcher's own time. A fault that no
operator read about is an incident too, under the launcher's own name for it (7.0/l1).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core import goodput
from transom_cli.core.codec import BadRecord, build
from transom_cli.core.events import Event, RecoverySeen
from transom_cli.core.goodput import NS, Account, History
from transom_cli.core.incident import Diagnosis, Incident, Mark, Stage
from transom_cli.core.journal_times import JournalTimes
from transom_cli.core.operator.state import State
from transom_cli.layout import attempt_name, parse_attempt

LATE = 5.0  # seconds after which the operator was not there to hear it at once


@dataclass(frozen=True)
class Launcher:
    """The journal of one attempt's launcher, as JSON objects."""

    attempt: str
    records: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class RunRecord:
    """What the journals of a run say."""

    run_id: str
    now: float  # Unix time
    state: State
    events: tuple[Event, ...]  # of the operator's journal, without steps
    launchers: tuple[Launcher, ...]  # oldest first
    history: History
    account: Account
    held: str = ""  # why the job waits for a person; "" if it does not
    gpus: int = 0  # of a node; 0 if unknown
    times: JournalTimes = field(default_factory=JournalTimes)


def incidents(book: RunRecord) -> tuple[Incident, ...]:
    """Oldest first."""
    state = book.state
    heard = (*state.incidents, *((state.incident,) if state.incident is not None else ()))
    written = {launcher.attempt: _written(launcher) for launcher in book.launchers}
    own = [_in_time(incident, written.get(incident.attempt, {})) for incident in sorted(heard, key=lambda i: i.began)]
    known = {(i.attempt, m.words) for i in heard for m in i.marks if m.what == "seen"}
    alone = [i for launcher in book.launchers for i in _alone(launcher, known)]
    return tuple(sorted((*own, *alone), key=lambda i: i.began))


def recoveries(records: tuple[Mapping[str, Any], ...], attempt: str) -> Iterator[RecoverySeen]:
    """Return the launcher's recoveries, with its own times."""
    for record in records:
        wall = record.get("wall")
        if record.get("type") == "recovery" and isinstance(wall, (int, float)):
            try:
                yield build(RecoverySeen, {**record, "at": float(wall), "attempt": attempt})
            except BadRecord:
                continue  # another version's


def _written(launcher: Launcher) -> dict[tuple[str, str], list[float]]:
    """Return when the launcher recorded each message."""
    written: dict[tuple[str, str], list[float]] = {}
    for record in recoveries(launcher.records, launcher.attempt):
        written.setdefault((record.what, record.words), []).append(record.at)
    return written


def _in_time(incident: Incident, written: Mapping[tuple[str, str], list[float]]) -> Incident:
    """Use the launcher's times, and remove them from `written`: the same message may occur for several faults."""

    def right(mark: Mark) -> Mark:
        times = written.get((mark.what, mark.words), [])
        at_once = [at for at in times if abs(mark.at - at) <= LATE]
        earlier = [at for at in times if at < mark.at]
        if not at_once and not earlier:
            return mark
        at = at_once[0] if at_once else earlier[0]
        times.remove(at)
        return mark if at_once else replace(mark, at=at)

    marks = tuple(map(right, incident.marks))
    began = min((incident.began, *(m.at for m in marks)))
    return replace(incident, marks=marks, began=began)


def _alone(launcher: Launcher, known: set[tuple[str, str]]) -> Iterator[Incident]:
    """Return what the launcher handled and no operator read about."""
    job_id, restarts = parse_attempt(launcher.attempt)
    found: dict[str, Incident] = {}
    for record in recoveries(launcher.records, launcher.attempt):
        name = record.incident
        if record.what == "seen" and name and (launcher.attempt, record.words) not in known and name not in found:
            found[name] = Incident(f"{launcher.attempt}/{name}", job_id, restarts, record.at, -1, Stage.RELAUNCHING)
        if name not in found:
            continue
        one = found[name]
        if record.what == "diagnosed":
            diagnosis = Diagnosis(record.cause, record.words, record.nodes, False, "none", True, decided=record.decided)
            one = replace(one, diagnosis=diagnosis)
        if record.what == "recovered":
            one = replace(one, stage=Stage.CLOSED, result="recovered", ended_at=record.at)
        found[name] = replace(one, marks=(*one.marks, Mark(record.at, record.what, record.words)))
    ended = next((r for r in launcher.records if r.get("type") == "outcome"), None)
    for one in found.values():
        yield _handed_up(one, ended) if not one.result and ended is not None else one


def _handed_up(incident: Incident, outcome: Mapping[str, Any]) -> Incident:
    wall = outcome.get("wall")
    at = float(wall) if isinstance(wall, (int, float)) else incident.began
    marks = (*incident.marks, Mark(at, "handed_up", str(outcome.get("why", ""))))
    return replace(incident, stage=Stage.CLOSED, result="handed up", ended_at=at, marks=marks)


NO_OUTCOME = "nothing tells how it ended"


@dataclass(frozen=True)
class AttemptSummary:
    """One attempt. Times are Unix time; None if unknown."""

    name: str
    began: float | None = None
    ended: float | None = None
    nodes: tuple[str, ...] = ()  # of its allocation
    launches: tuple[tuple[int, float], ...] = ()  # (number, when)
    status: str = ""  # done, failed, left or stopped, as its launcher says; "" if it says nothing
    words: str = ""  # how it ended
    exit_code: int | None = None  # of its launcher
    runs: bool = False  # its end is not known
    incident: str = ""  # for which the operator ended it, with its diagnosis
    incident_words: str = ""

    @property
    def number(self) -> tuple[int, int]:
        """Return job ID and restart count."""
        return parse_attempt(self.name)


def attempt_summaries(book: RunRecord) -> tuple[AttemptSummary, ...]:
    """Oldest first."""
    written = {launcher.attempt: launcher.records for launcher in book.launchers}
    seen = _Seen(book)
    newest = max((parse_attempt(one.name) for one in book.history.attempts), default=None)
    attempts = (_summary(one, written.get(one.name, ()), seen) for one in book.history.attempts)
    return tuple(_open(one, book) if one.ended is None and one.number == newest else one for one in attempts)


def job_ids(book: RunRecord) -> tuple[int, ...]:
    """Return every job that the run is known to have had, also those that never started."""
    kinds = (ev.Submitted, ev.Restarted, ev.JobSeen)
    seen = [event.job_id for event in book.events if isinstance(event, kinds)]
    return tuple(sorted({*seen, *(parse_attempt(one.name)[0] for one in book.history.attempts)}))


class _Seen:
    """What the operator saw, by attempt."""

    def __init__(self, book: RunRecord) -> None:
        self._first: dict[tuple[int, int], float] = {}  # when each start was first heard of
        self._over: dict[tuple[int, int], float] = {}
        self._gone: dict[int, float] = {}
        self.nodes: dict[str, tuple[str, ...]] = {}
        self.why: dict[str, str] = {}
        for e in book.events:
            self._hear(e)
        known = [(i, i.diagnosis.words) for i in incidents(book) if i.diagnosis is not None]
        diagnosed = {i.attempt: words for i, words in known}
        self.given_up = {i.attempt: (i.id, words) for i, words in known if any(m.what == "requeued" for m in i.marks)}
        state = book.state
        if state.phase.over and state.verdict:
            diagnosed[state.attempt] = state.verdict
        self.why = {**diagnosed, **self.why}

    def _hear(self, e: ev.Event) -> None:
        if isinstance(e, ev.JobSeen | ev.Restarted):
            number = (e.job_id, e.restarts)
            self._first.setdefault(number, e.at)
            if isinstance(e, ev.JobSeen) and e.ended:
                self._over.setdefault(number, e.at)
            if isinstance(e, ev.JobSeen) and e.state == "RUNNING":
                self.nodes.setdefault(attempt_name(*number), e.nodes)
        elif isinstance(e, ev.JobGone):
            self._gone.setdefault(e.job_id, e.at)
        elif isinstance(e, ev.LaunchSeen) and e.launch == 0:
            self.nodes[e.attempt] = (*e.nodes, *e.idle)
        elif isinstance(e, ev.OutcomeSeen):
            self.why[e.attempt] = e.why

    def ended(self, number: tuple[int, int]) -> float | None:
        """Return when this start was seen to end, or a later one to begin."""
        times = [at for other, at in self._first.items() if other > number]
        times += [at for at in (self._over.get(number), self._gone.get(number[0])) if at is not None]
        return min(times, default=None)


def _summary(one: goodput.Attempt, records: Iterable[Mapping[str, Any]], seen: _Seen) -> AttemptSummary:
    """Summarize an attempt. The launcher's nodes come first: Slurm drops those of a completing job one by one."""
    records = tuple(records)
    last = records[-1] if records and records[-1].get("type") == "job_step" else {}  # the script ended after it
    outcome, written = _newest(records, "outcome") or last, _newest(records, "attempt").get("nodes")
    code, (incident, why) = outcome.get("exit_code"), seen.given_up.get(one.name, ("", ""))
    return AttemptSummary(
        name=one.name,
        began=one.began / NS if one.began is not None else None,
        ended=one.ended / NS if one.ended is not None else seen.ended(parse_attempt(one.name)),
        nodes=tuple(map(str, written)) if isinstance(written, list) else seen.nodes.get(one.name, ()),
        launches=tuple((launch.number, launch.at / NS) for launch in one.launches if one.launcher),
        status=one.status or str(last.get("status", "")),
        words=str(outcome.get("why", "")) or seen.why.get(one.name, NO_OUTCOME),
        exit_code=code if isinstance(code, int) else None,
        incident=incident,
        incident_words=why,
    )


def _open(one: AttemptSummary, book: RunRecord) -> AttemptSummary:
    state = book.state
    if state.phase.over:
        return one
    runs = state.attempt == one.name and state.job.state == "RUNNING"
    return replace(one, runs=True, words="it runs" if runs else "no end of it is known")


def _newest(records: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    return next((r for r in reversed(list(records)) if r.get("type") == kind), {})
