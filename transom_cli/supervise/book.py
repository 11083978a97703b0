"""What a run's journals say together, for whoever tells its story: incidents of operator and launchers. Pure.

An operator that was away reads a launcher's words late; here each has the time at which the launcher wrote it. What no
operator heard of is an incident all the same, by the launcher's own name for it (7.0/l1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.core.codec import BadRecord, build
from transom_cli.core.events import Event, HealSeen
from transom_cli.core.goodput import Account, History
from transom_cli.core.incident import Diagnosis, Incident, Mark, Stage
from transom_cli.core.operator.state import State
from transom_cli.layout import parse_attempt

LATE = 5.0  # seconds after which the operator was not there to hear it at once


@dataclass(frozen=True)
class Launcher:
    """The journal of one attempt's launcher: JSON objects as they stand there."""

    attempt: str
    records: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Book:
    """now: seconds. held: why the job waits for a person, "" if it does not. gpus: a node's, 0: not known."""

    run_id: str
    now: float
    state: State
    events: tuple[Event, ...]
    launchers: tuple[Launcher, ...]  # oldest first
    history: History
    account: Account
    held: str = ""
    gpus: int = 0


def incidents(book: Book) -> tuple[Incident, ...]:
    """Oldest first."""
    state = book.state
    heard = (*state.incidents, *((state.incident,) if state.incident is not None else ()))
    written = {launcher.attempt: _written(launcher) for launcher in book.launchers}
    own = [_in_time(incident, written.get(incident.attempt, {})) for incident in sorted(heard, key=lambda i: i.began)]
    known = {(i.attempt, m.words) for i in heard for m in i.marks if m.what == "seen"}
    alone = [i for launcher in book.launchers for i in _alone(launcher, known)]
    return tuple(sorted((*own, *alone), key=lambda i: i.began))


def heals(records: tuple[Mapping[str, Any], ...], attempt: str) -> Iterator[HealSeen]:
    """The launcher's story, at its own times."""
    for record in records:
        wall = record.get("wall")
        if record.get("type") == "heal" and isinstance(wall, (int, float)):
            try:
                yield build(HealSeen, {**record, "at": float(wall), "attempt": attempt})
            except BadRecord:
                continue  # another version's


def _written(launcher: Launcher) -> dict[tuple[str, str], list[float]]:
    """When the launcher said what, and in which words."""
    written: dict[tuple[str, str], list[float]] = {}
    for told in heals(launcher.records, launcher.attempt):
        written.setdefault((told.what, told.words), []).append(told.at)
    return written


def _in_time(incident: Incident, written: Mapping[tuple[str, str], list[float]]) -> Incident:
    """Takes from `written` what it has used: a launcher says the same words of one fault after the other."""

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
    """What the launcher took up, and no operator heard of."""
    job_id, restarts = parse_attempt(launcher.attempt)
    found: dict[str, Incident] = {}
    for told in heals(launcher.records, launcher.attempt):
        name = told.incident
        if told.what == "seen" and name and (launcher.attempt, told.words) not in known and name not in found:
            found[name] = Incident(f"{launcher.attempt}/{name}", job_id, restarts, told.at, -1, Stage.HEALING)
        if name not in found:
            continue
        one = found[name]
        if told.what == "diagnosed":
            diagnosis = Diagnosis(told.cause, told.words, told.nodes, False, "none", True, decided=told.decided)
            one = replace(one, diagnosis=diagnosis)
        if told.what == "recovered":
            one = replace(one, stage=Stage.CLOSED, result="recovered", ended_at=told.at)
        found[name] = replace(one, marks=(*one.marks, Mark(told.at, told.what, told.words)))
    ended = next((r for r in launcher.records if r.get("type") == "outcome"), None)
    for one in found.values():
        yield _handed_up(one, ended) if not one.result and ended is not None else one


def _handed_up(incident: Incident, outcome: Mapping[str, Any]) -> Incident:
    wall = outcome.get("wall")
    at = float(wall) if isinstance(wall, (int, float)) else incident.began
    marks = (*incident.marks, Mark(at, "handed_up", str(outcome.get("why", ""))))
    return replace(incident, stage=Stage.CLOSED, result="handed up", ended_at=at, marks=marks)
