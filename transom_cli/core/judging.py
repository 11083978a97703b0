"""From a diagnosis to what is done: the policy's table is asked, and its word becomes part of the diagnosis. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from transom_cli.core.category import category_of
from transom_cli.core.decided import Decided, Taken
from transom_cli.core.diagnose import REPORTED, TOLD_BY_CODE, first_bad
from transom_cli.core.fingerprint import fingerprint
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator.state import State
from transom_cli.core.policy import STOP, Facts, Verdict, decide_by, root_line

_BY_LINE = ("rank_failed", "rank_killed", "job_failed", "user_error")  # causes that the log of a rank explains


def judged(diagnosis: Diagnosis | None, incident: Incident, state: State, at: float) -> Diagnosis | None:
    """The diagnosis with what the first rule of the run's table makes of it.

    Without a rule that fits it stays as it is: so do the journals of runs that were begun without a table.
    """
    if diagnosis is None or not state.policy.rules:
        return diagnosis
    facts = facts_of(diagnosis, incident, state)
    history = (*state.taken, *taken_in(state.incidents))
    verdict = _stopped_by_launcher(incident, facts) or decide_by(state.policy.rules, facts, history, at)
    if verdict is None:
        return replace(diagnosis, decided=Decided("", "", facts.category, facts.fingerprint))
    decided = Decided(verdict.rule, verdict.action, facts.category, facts.fingerprint, verdict.evidence)
    stops = verdict.action == STOP
    words = _stopped(diagnosis.words, verdict.evidence, facts) if stops else diagnosis.words
    return replace(diagnosis, words=words, restart=not stops, decided=decided)


def _stopped(words: str, evidence: str, facts: Facts) -> str:
    """With which rule stops, and nothing twice: the root line mostly stands in the diagnosis, and all that a launcher
    has judged in what it said."""
    line = root_line(facts)
    told = evidence.replace(line, "") if line and facts.line in words else evidence
    return words if told in words else f"{words}; {told}"


def _stopped_by_launcher(incident: Incident, facts: Facts) -> Verdict | None:
    """It may have counted attempts that no operator has seen. A stop of its own for the same failure stands."""
    outcome = incident.outcome
    if outcome is None:
        return None
    reported = outcome.cause in REPORTED  # where the launcher alone knows of what
    same = (t.decided for t in outcome.taken if reported or t.decided.fingerprint == facts.fingerprint)
    stops = (decided for decided in same if decided.action == STOP)
    return next((Verdict(STOP, d.rule, d.words) for d in stops), None)


def facts_of(diagnosis: Diagnosis, incident: Incident, state: State) -> Facts:
    exits = incident.outcome.exits if incident.outcome else ()
    first = first_bad(exits)
    signal = first.signal if first is not None else None
    told = signal is None or incident.log_category != "unknown"  # of a killed rank the last line need not tell
    line = incident.log_line if told else ""
    category = category_of(
        diagnosis.cause,
        incident.log_category,
        line,
        signalled=signal is not None,
        checks={f.check for f in diagnosis.faults},
    )
    codes = {first.code if first is not None else incident.exit_code}
    if diagnosis.cause in TOLD_BY_CODE:  # by any of the ranks
        codes |= {incident.exit_code, *(x.code for x in exits)}
    codes_told = tuple(sorted(c for c in codes if c))
    about = line if diagnosis.cause in _BY_LINE else ""
    return Facts(
        category,
        diagnosis.cause,
        line,
        fingerprint(category, about or _how(diagnosis, signal, codes_told), state.nodes),
        diagnosis.nodes,
        codes_told,
        (signal,) if signal is not None else (),
        incident.ended,
        before_first_step=max(state.max_step, state.durable, state.step) < 0,
        first_attempt=state.starts == 0,
        against_node=any(diagnosis.by_evidence(n) != "none" for n in diagnosis.nodes),
    )


def taken_in(incidents: Iterable[Incident]) -> tuple[Taken, ...]:
    """What was decided of incidents that are over, for the budgets of rules; also where no rule decided."""
    told = ((i.began, i.diagnosis) for i in incidents)
    return tuple(Taken(at, d.decided, d.nodes) for at, d in told if d is not None and d.decided.fingerprint)


def _how(diagnosis: Diagnosis, signal: int | None, codes: tuple[int, ...]) -> str:
    """Where no line tells of it: how it ended, and what checks found."""
    ended = f"signal {signal}" if signal is not None else " ".join(f"exit code {c}" for c in codes)
    found = " ".join(sorted({f.check for f in diagnosis.faults}))
    return " ".join(x for x in (diagnosis.cause, ended, found) if x)
