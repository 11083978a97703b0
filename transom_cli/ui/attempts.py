"""A run's attempts, each beside Slurm's own account of that start, as rows, as lines and as JSON values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transom_cli.plural import several
from transom_cli.slurm.parse import fold_nodes
from transom_cli.slurm.port import JobState, Start
from transom_cli.slurm.starts import Attempt, match, own
from transom_cli.slurm.tags import run_tag
from transom_cli.supervise.attempts import AttemptTold
from transom_cli.ui.lines import Line, Span, cut, line, table
from transom_cli.ui.words import cells, count, day_time, span, utc, zone
from transom_cli.ui.wrapping import NEVER_CUT, wrapped

SCHEMA = 1
LATE = 60.0  # seconds by which accounting may hear of an end later than the run
_TONES = {"done": "good", "failed": "bad"}
_NO_RECORD = "the run has no record of this start"
RESIZED = "RESIZED"
_RESIZED = f"{RESIZED}: nodes were given up, and Slurm (22.05) wrote the next start over the end of this one"
_NEVER = "it was cancelled before it could start"


@dataclass(frozen=True)
class Accounts:
    """What accounting told. starts: None where it did not answer; why: the reason, "" where it did."""

    starts: tuple[Start, ...] | None
    why: str = ""


@dataclass(frozen=True)
class Row:
    """told: None for a start of which accounting alone knows. start: None where accounting has none. differs: what the
    two say differently, in words."""

    told: AttemptTold | None
    start: Start | None
    differs: tuple[str, ...] = ()

    @property
    def began(self) -> float | None:
        if self.told is not None and self.told.began is not None:
            return self.told.began
        return self.start.began if self.start is not None else None

    @property
    def ended(self) -> float | None:
        if self.told is not None:
            return self.told.ended
        return self.start.ended if self.start is not None else None


def attempt_rows(
    run_id: str, told: Sequence[AttemptTold], accounts: Accounts, since: float, now: float
) -> tuple[Row, ...]:
    """Oldest first. since: when the run began; both in seconds of the wall clock."""
    if accounts.starts is None:
        return tuple(Row(one, None) for one in told)
    known = [Attempt(*one.number, one.began, one.nodes) for one in told]
    matched = match(known, own(accounts.starts, since, run_tag(run_id)))
    rows = [Row(one, start, tuple(_differs(one, start, now))) for one, start in zip(told, matched.starts, strict=True)]
    rows += [Row(None, start) for start in matched.alone]
    return tuple(sorted(rows, key=_order))


def _order(row: Row) -> float:
    return next((at for at in (row.began, row.ended) if at is not None), 0.0)


def _differs(told: AttemptTold, start: Start | None, now: float) -> Iterator[str]:
    """Only of what both know for sure: accounting hears of things late."""
    if start is None:
        if told.began is not None and now - told.began > LATE:
            yield "accounting has no such start"
        return
    said = slurm_words(start)
    if told.runs and start.ended is not None:
        yield f"the run knows of no end, accounting has {said}"
    over = told.ended is not None and now - told.ended > LATE
    if over and start.ended is None and start.state is JobState.RUNNING:
        yield f"the run has an end of it, accounting {said}"
    if start.state.ended and (told.status == "done") != (start.state is JobState.COMPLETED) and told.status:
        yield f"the run says {told.status}, accounting {said}"
    elif start.state is JobState.FAILED and not start.exit_signal and told.exit_code not in (None, start.exit_code):
        yield f"its launcher ended with exit code {told.exit_code}, accounting has {start.exit_code}"
    if told.nodes and start.nodes and set(told.nodes) != set(start.nodes):
        yield f"the run had {fold_nodes(told.nodes)}, accounting has {fold_nodes(start.nodes)}"


def slurm_words(start: Start, name: Callable[[int], str] = str) -> str:
    """As sacct has it, shorter. name: of a user by its id."""
    if start.state is JobState.UNKNOWN and start.ended is not None:
        return RESIZED
    if start.state is JobState.PENDING and start.ended is not None:
        return "REQUEUED"
    if start.state is JobState.CANCELLED and start.by is not None:
        return f"CANCELLED by {name(start.by)}"
    if start.state is JobState.FAILED or start.exit_code:
        return f"{start.state.value} {start.exit_code}:{start.exit_signal}"
    return start.state.value


def lines(
    run_id: str, rows: Sequence[Row], accounts: Accounts, now: float, width: int | None, name: Callable[[int], str]
) -> list[Line]:
    """width: None for a pipe, where nothing is cut."""
    told = several(sum(1 for row in rows if row.told is not None), "attempt")
    made = [line((run_id, "strong"), f"  {told}", (f"   times in {zone(now)}", "dim"))]
    asked = accounts.starts is not None
    if rows:
        head = ("", "ATTEMPT", "BEGAN", "FOR", "NODES", "LAUNCHES", *(["SLURM"] if asked else []))
        body = [_cells(n, row, now, name, asked=asked) for n, row in enumerate(rows, 1)]
        drawn = table(head, body, frozenset({"", "FOR", "NODES", "LAUNCHES"}))
        indent = " " * (cells(body[-1][0] if isinstance(body[-1][0], str) else "") + 2)
        made += [(), drawn[0]]
        for row, one in zip(rows, drawn[1:], strict=True):
            made += [one, *_below(row, indent, width)]
    if any(row.start is not None and slurm_words(row.start) == RESIZED for row in rows):
        made += [(), *_dim(_RESIZED, width)]
    if not asked:
        made += [(), *_dim(f"Slurm's accounting tells nothing: {accounts.why}", width)]
    return made if width is None else [cut(one, width) for one in made]


def _dim(words: str, width: int | None) -> Iterator[Line]:
    return (line((one, "dim")) for one in wrapped("", words, NEVER_CUT if width is None else width))


def _cells(number: int, row: Row, now: float, name: Callable[[int], str], *, asked: bool) -> tuple[str | Span, ...]:
    began, ended = row.began, row.ended
    until = now if row.told is not None and row.told.runs else ended
    lasted = span(until - began) if began is not None and until is not None else "-"
    nodes = row.told.nodes if row.told is not None else row.start.nodes if row.start is not None else ()
    slurm = slurm_words(row.start, name) if row.start is not None else "-"
    return (
        str(number),
        row.told.name if row.told is not None else f"{row.start.job_id if row.start is not None else ''}",
        day_time(began, now) if began is not None else "-",
        lasted,
        count(len(nodes)) if nodes else "-",
        count(len(row.told.launches)) if row.told is not None and row.told.launches else "-",
        *([(slurm, "warn" if row.differs or row.told is None else "")] if asked else []),
    )


def _below(row: Row, indent: str, width: int | None) -> Iterator[Line]:
    room = NEVER_CUT if width is None else width
    nodes = row.told.nodes if row.told is not None else row.start.nodes if row.start is not None else ()
    if nodes:
        yield from (line((one, "dim")) for one in wrapped(f"{indent}on ", fold_nodes(nodes), room))
    words, tone = _words(row)
    yield from (line((one, tone)) for one in wrapped(indent, words, room))
    if row.told is not None and row.told.incident and row.told.incident_words != row.told.words:
        yield from map(line, wrapped(f"{indent}{row.told.incident}: ", row.told.incident_words, room))
    for differs in row.differs:
        yield from (line((one, "warn")) for one in wrapped(f"{indent}differs: ", differs, room))


def _words(row: Row) -> Span:
    if row.told is None:
        return (_NO_RECORD if row.began is not None else _NEVER), "warn"
    said = f"{row.told.status}: {row.told.words}" if row.told.status else row.told.words
    return said, _TONES.get(row.told.status, "")


def document(run_id: str, rows: Sequence[Row], accounts: Accounts, name: Callable[[int], str]) -> dict[str, Any]:
    """ui/schema/attempts.json tells what each means."""
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "accounting": accounts.starts is not None,
        "accounting_error": accounts.why,
        "attempts": [_object(n, row, name) for n, row in enumerate(rows, 1)],
    }


def _object(number: int, row: Row, name: Callable[[int], str]) -> dict[str, Any]:
    told, start = row.told, row.start
    job_id, restarts = told.number if told is not None else (start.job_id if start is not None else 0, None)
    return {
        "number": number,
        "attempt": told.name if told is not None else None,
        "job_id": job_id,
        "restarts": restarts,
        **_moments(row.began, row.ended),
        "nodes": list(told.nodes) if told is not None else [],
        "launches": [{"launch": n, "at": at, "at_utc": utc(at)} for n, at in (told.launches if told else ())],
        "status": told.status if told is not None else "",
        "words": told.words if told is not None else "",
        "exit_code": told.exit_code if told is not None else None,
        "runs": told is not None and told.runs,
        "incident": told.incident if told is not None else "",
        "incident_words": told.incident_words if told is not None else "",
        "slurm": _start(start, name) if start is not None else None,
        "differs": list(row.differs),
    }


def _start(start: Start, name: Callable[[int], str]) -> dict[str, Any]:
    return {
        "state": slurm_words(start).partition(" ")[0],
        "exit_code": start.exit_code,
        "exit_signal": start.exit_signal,
        "by": name(start.by) if start.by is not None else None,
        **_moments(start.began, start.ended),
        "nodes": list(start.nodes),
    }


def _moments(began: float | None, ended: float | None) -> dict[str, Any]:
    utcs = {"began_utc": utc(began) if began else None, "ended_utc": utc(ended) if ended else None}
    return {"began": began, "ended": ended, **utcs}
