"""A run's attempts, each with Slurm's accounting record of that start, as text and as JSON. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transom_cli.plural import several
from transom_cli.slurm.accounting import Attempt, match_attempts, own_starts
from transom_cli.slurm.parse import fold_nodes
from transom_cli.slurm.port import JobState, Start
from transom_cli.slurm.tags import run_tag
from transom_cli.supervise.run_record import AttemptSummary
from transom_cli.view.text import (
    NEVER_CUT,
    Line,
    Span,
    cells,
    count,
    cut,
    day_time,
    line,
    span,
    table,
    utc,
    wrapped,
    zone,
)

SCHEMA = 2
LATE = 60.0  # seconds that accounting may lag behind
RESIZED = "RESIZED"
_TONES = {"done": "good", "failed": "bad"}
_NO_RECORD = "the run has no record of this start"
_RESIZED = f"{RESIZED}: the job gave up nodes, and Slurm (22.05) overwrote the end of this start with the next one"
_NEVER = "cancelled before it could start"


@dataclass(frozen=True)
class Accounting:
    """Slurm's accounting records. starts: None if accounting did not answer; error: why."""

    starts: tuple[Start, ...] | None
    error: str = ""


@dataclass(frozen=True)
class Row:
    """A start of the job."""

    attempt: AttemptSummary | None  # the run's record; None if only accounting knows of it
    start: Start | None  # accounting's record; None if it has none
    differences: tuple[str, ...] = ()  # what the two contradict each other in

    @property
    def began(self) -> float | None:
        if self.attempt is not None and self.attempt.began is not None:
            return self.attempt.began
        return self.start.began if self.start is not None else None

    @property
    def ended(self) -> float | None:
        if self.attempt is not None:
            return self.attempt.ended
        return self.start.ended if self.start is not None else None

    @property
    def nodes(self) -> tuple[str, ...]:
        if self.attempt is not None:
            return tuple(self.attempt.nodes)
        return tuple(self.start.nodes) if self.start is not None else ()


def attempt_rows(
    run_id: str, attempts: Sequence[AttemptSummary], accounting: Accounting, since: float, now: float
) -> tuple[Row, ...]:
    """Match the run's attempts with accounting, oldest first. since: when the run began (Unix time)."""
    if accounting.starts is None:
        return tuple(Row(one, None) for one in attempts)
    known = [Attempt(*one.number, one.began, one.nodes) for one in attempts]
    matched = match_attempts(known, own_starts(accounting.starts, since, run_tag(run_id)))
    pairs = zip(attempts, matched.starts, strict=True)
    rows = [Row(one, start, tuple(_differences(one, start, now))) for one, start in pairs]
    rows += [Row(None, start) for start in matched.alone]
    return tuple(sorted(rows, key=_order))


def _order(row: Row) -> float:
    return next((at for at in (row.began, row.ended) if at is not None), 0.0)


def _differences(attempt: AttemptSummary, start: Start | None, now: float) -> Iterator[str]:
    """Compare only what both know for sure: accounting records things late."""
    if start is None:
        if attempt.began is not None and now - attempt.began > LATE:
            yield "accounting has no such start"
        return
    state = slurm_state(start)
    if attempt.runs and start.ended is not None:
        yield f"the run has no end, accounting has {state}"
    over = attempt.ended is not None and now - attempt.ended > LATE
    if over and start.ended is None and start.state is JobState.RUNNING:
        yield f"the run has an end, accounting has {state}"
    if start.state.ended and (attempt.status == "done") != (start.state is JobState.COMPLETED) and attempt.status:
        yield f"the run has {attempt.status}, accounting has {state}"
    elif start.state is JobState.FAILED and not start.exit_signal and attempt.exit_code not in (None, start.exit_code):
        yield f"the launcher ended with exit code {attempt.exit_code}, accounting has {start.exit_code}"
    if attempt.nodes and start.nodes and set(attempt.nodes) != set(start.nodes):
        yield f"the run has {fold_nodes(attempt.nodes)}, accounting has {fold_nodes(start.nodes)}"


def slurm_state(start: Start, name: Callable[[int], str] = str) -> str:
    """Return a short form of sacct's state. name: maps a user ID to a name."""
    if start.state is JobState.UNKNOWN and start.ended is not None:
        return RESIZED
    if start.state is JobState.PENDING and start.ended is not None:
        return "REQUEUED"
    if start.state is JobState.CANCELLED and start.by is not None:
        return f"CANCELLED by {name(start.by)}"
    if start.state is JobState.FAILED or start.exit_code:
        return f"{start.state.value} {start.exit_code}:{start.exit_signal}"
    return start.state.value


# --- text ---


def attempt_lines(
    run_id: str, rows: Sequence[Row], accounting: Accounting, now: float, width: int | None, name: Callable[[int], str]
) -> list[Line]:
    """Return a table with details below each row. width: None for a pipe, where nothing is cut."""
    number = several(sum(1 for row in rows if row.attempt is not None), "attempt")
    made = [line((run_id, "strong"), f"  {number}", (f"   times in {zone(now)}", "dim"))]
    with_slurm = accounting.starts is not None
    if rows:
        head = ("", "ATTEMPT", "BEGAN", "FOR", "NODES", "LAUNCHES", *(["SLURM"] if with_slurm else []))
        body = [_cells(n, row, now, name, with_slurm=with_slurm) for n, row in enumerate(rows, 1)]
        drawn = table(head, body, frozenset({"", "FOR", "NODES", "LAUNCHES"}))
        indent = " " * (cells(body[-1][0] if isinstance(body[-1][0], str) else "") + 2)
        made += [(), drawn[0]]
        for row, one in zip(rows, drawn[1:], strict=True):
            made += [one, *_details(row, indent, width)]
    if any(row.start is not None and slurm_state(row.start) == RESIZED for row in rows):
        made += [(), *_dim(_RESIZED, width)]
    if not with_slurm:
        made += [(), *_dim(f"no answer from Slurm's accounting: {accounting.error}", width)]
    return made if width is None else [cut(one, width) for one in made]


def _dim(text: str, width: int | None) -> Iterator[Line]:
    return (line((one, "dim")) for one in wrapped("", text, NEVER_CUT if width is None else width))


def _cells(
    number: int, row: Row, now: float, name: Callable[[int], str], *, with_slurm: bool
) -> tuple[str | Span, ...]:
    began, attempt = row.began, row.attempt
    until = now if attempt is not None and attempt.runs else row.ended
    slurm = slurm_state(row.start, name) if row.start is not None else "-"
    return (
        str(number),
        attempt.name if attempt is not None else f"{row.start.job_id if row.start is not None else ''}",
        day_time(began, now) if began is not None else "-",
        span(until - began) if began is not None and until is not None else "-",
        count(len(row.nodes)) if row.nodes else "-",
        count(len(attempt.launches)) if attempt is not None and attempt.launches else "-",
        *([(slurm, "warn" if row.differences or attempt is None else "")] if with_slurm else []),
    )


def _details(row: Row, indent: str, width: int | None) -> Iterator[Line]:
    room, attempt = NEVER_CUT if width is None else width, row.attempt
    if row.nodes:
        yield from (line((one, "dim")) for one in wrapped(f"{indent}on ", fold_nodes(row.nodes), room))
    text, tone = _outcome(row)
    yield from (line((one, tone)) for one in wrapped(indent, text, room))
    if attempt is not None and attempt.incident and attempt.incident_words != attempt.words:
        yield from map(line, wrapped(f"{indent}{attempt.incident}: ", attempt.incident_words, room))
    for difference in row.differences:
        yield from (line((one, "warn")) for one in wrapped(f"{indent}differs: ", difference, room))


def _outcome(row: Row) -> Span:
    if row.attempt is None:
        return (_NO_RECORD if row.began is not None else _NEVER), "warn"
    one = row.attempt
    return f"{one.status}: {one.words}" if one.status else one.words, _TONES.get(one.status, "")


# --- JSON ---


def attempts_document(
    run_id: str, rows: Sequence[Row], accounting: Accounting, name: Callable[[int], str]
) -> dict[str, Any]:
    """Return JSON values; view/schema/attempts.json describes them."""
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "accounting": accounting.starts is not None,
        "accounting_error": accounting.error,
        "attempts": [_object(n, row, name) for n, row in enumerate(rows, 1)],
    }


def _object(number: int, row: Row, name: Callable[[int], str]) -> dict[str, Any]:
    one, start = row.attempt, row.start
    job_id, restarts = one.number if one is not None else (start.job_id if start is not None else 0, None)
    return {
        "number": number,
        "attempt": one.name if one is not None else None,
        "job_id": job_id,
        "restarts": restarts,
        **_moments(row.began, row.ended),
        "nodes": list(one.nodes) if one is not None else [],
        "launches": [{"launch": n, "at": at, "at_utc": utc(at)} for n, at in (one.launches if one else ())],
        "status": one.status if one is not None else "",
        "message": one.words if one is not None else "",
        "exit_code": one.exit_code if one is not None else None,
        "runs": one is not None and one.runs,
        "incident": one.incident if one is not None else "",
        "incident_message": one.incident_words if one is not None else "",
        "slurm": _start(start, name) if start is not None else None,
        "differences": list(row.differences),
    }


def _start(start: Start, name: Callable[[int], str]) -> dict[str, Any]:
    return {
        "state": slurm_state(start).partition(" ")[0],
        "exit_code": start.exit_code,
        "exit_signal": start.exit_signal,
        "by": name(start.by) if start.by is not None else None,
        **_moments(start.began, start.ended),
        "nodes": list(start.nodes),
    }


def _moments(began: float | None, ended: float | None) -> dict[str, Any]:
    utcs = {"began_utc": utc(began) if began else None, "ended_utc": utc(ended) if ended else None}
    return {"began": began, "ended": ended, **utcs}
