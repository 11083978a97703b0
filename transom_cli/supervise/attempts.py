"""What a run itself tells of its attempts: when, where, how often the ranks were launched, and how each ended. Pure.

An attempt's launcher tells it, in its journal and its outcome; of one that left no outcome (its host died, a script of
the user's own) the operator's journal does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core import goodput
from transom_cli.core.goodput import NS
from transom_cli.layout import attempt_name, parse_attempt
from transom_cli.supervise.book import Book, incidents

NO_OUTCOME = "nothing tells how it ended"


@dataclass(frozen=True)
class AttemptTold:
    """Times are seconds of the wall clock, None: not known. nodes: of its allocation. launches: (number, when).

    status: done, failed, left or stopped, as its launcher says; "" where none did. words: how it ended. exit_code: of
    its launcher. runs: no end of it is known. incident: for which the operator gave it up, with its diagnosis.
    """

    name: str
    began: float | None = None
    ended: float | None = None
    nodes: tuple[str, ...] = ()
    launches: tuple[tuple[int, float], ...] = ()
    status: str = ""
    words: str = ""
    exit_code: int | None = None
    runs: bool = False
    incident: str = ""
    incident_words: str = ""

    @property
    def number(self) -> tuple[int, int]:
        """Job id and restart count."""
        return parse_attempt(self.name)


def attempts_told(book: Book) -> tuple[AttemptTold, ...]:
    """Oldest first."""
    written = {launcher.attempt: launcher.records for launcher in book.launchers}
    seen = _Seen(book)
    newest = max((parse_attempt(one.name) for one in book.history.attempts), default=None)
    told = (_told(one, written.get(one.name, ()), seen) for one in book.history.attempts)
    return tuple(_open(one, book) if one.ended is None and one.number == newest else one for one in told)


def job_ids(book: Book) -> tuple[int, ...]:
    """Every job that the run is known to have had, whether it ever began or not."""
    kinds = (ev.Submitted, ev.Restarted, ev.JobSeen)
    seen = [event.job_id for event in book.events if isinstance(event, kinds)]
    return tuple(sorted({*seen, *(parse_attempt(one.name)[0] for one in book.history.attempts)}))


class _Seen:
    """What the operator saw, by attempt."""

    def __init__(self, book: Book) -> None:
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
        """When this start was seen to be over, or there was a later one."""
        told = [at for other, at in self._first.items() if other > number]
        told += [at for at in (self._over.get(number), self._gone.get(number[0])) if at is not None]
        return min(told, default=None)


def _told(one: goodput.Attempt, records: Iterable[Mapping[str, Any]], seen: _Seen) -> AttemptTold:
    """The launcher's own nodes come first: Slurm tells of a completing job's nodes as they go."""
    outcome, written = _newest(records, "outcome"), _newest(records, "attempt").get("nodes")
    code, (incident, why) = outcome.get("exit_code"), seen.given_up.get(one.name, ("", ""))
    return AttemptTold(
        name=one.name,
        began=one.began / NS if one.began is not None else None,
        ended=one.ended / NS if one.ended is not None else seen.ended(parse_attempt(one.name)),
        nodes=tuple(map(str, written)) if isinstance(written, list) else seen.nodes.get(one.name, ()),
        launches=tuple((launch.number, launch.at / NS) for launch in one.launches if one.launcher),
        status=one.status,
        words=str(outcome.get("why", "")) or seen.why.get(one.name, NO_OUTCOME),
        exit_code=code if isinstance(code, int) else None,
        incident=incident,
        incident_words=why,
    )


def _open(one: AttemptTold, book: Book) -> AttemptTold:
    state = book.state
    if state.phase.over:
        return one
    runs = state.attempt == one.name and state.job.state == "RUNNING"
    return replace(one, runs=True, words="it runs" if runs else "no end of it is known")


def _newest(records: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    return next((r for r in reversed(list(records)) if r.get("type") == kind), {})
