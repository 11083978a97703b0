"""The story of an incident in words a colleague can read: seen, thought, done, refused, and what it cost. Pure.

The same text for `transom explain` and for the live screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from transom_cli.core.decided import UNDECIDED, Decided
from transom_cli.core.goodput import NS, Cause, Kind, Sums, cost
from transom_cli.core.state import Incident
from transom_cli.plural import several
from transom_cli.supervise.book import Book
from transom_cli.ui.goodput import spent
from transom_cli.ui.todo import release_line
from transom_cli.ui.words import clock_time, count, fit, span, utc
from transom_cli.ui.wrapping import NEVER_CUT, wrapped

_LABEL = 10
SHORT = 0.05  # seconds that are not worth telling
_PARTS = {
    "diagnosed": "thought",
    "decided": "thought",
    "nothing": "thought",
    "spared": "thought",
    "capped": "refused",
    "refused": "refused",
    "seen": "seen",
    "evidence": "seen",
    "found": "seen",
    "probed": "seen",
    "examined": "seen",
    "checked": "seen",
    "reported": "seen",
}
_BEFORE = {"swapped": "spare "}
_SAID = {
    "probed": "the same once more",
    "diagnosed": "diagnosed as said above",
    "stopped": "the run is stopped for that",
    "handed_up": "handed up for that",
}
"""Words for a line that would repeat what stands above it. Others are left out then."""
_WITHOUT_NODES = (Kind.QUEUE, Kind.HOLD, Kind.IDLE)


@dataclass(frozen=True)
class Line:
    """took: seconds since the line before it. part: seen, thought, done or refused; what: the journal's own word."""

    at: float
    took: float
    part: str
    what: str
    words: str


@dataclass(frozen=True)
class Story:
    """lasted: seconds from the first sign to the first new step, or to its end; None: it is open. step: the newest one
    that was ever done when it came, -1: none. lost: steps that had to be done again, -1: not known. cost: None where
    none is known. gpu_hours: of the run's own nodes, None: not known.
    """

    id: str
    attempt: str
    began: float
    category: str
    title: str
    result: str
    lasted: float | None
    step: int
    nodes: tuple[str, ...]
    decided: Decided
    lines: tuple[Line, ...]
    lost: int
    cost: Sums | None
    gpu_hours: float | None


def story_of(incident: Incident, book: Book) -> Story:
    told = incident.diagnosis
    title = told.words if told else incident.marks[0].words if incident.marks else ""
    sums = cost(book.account, incident.id)
    cause = next((one for one in book.account.causes if one.key == incident.id), Cause(incident.id))
    nodes = (*(told.nodes if told else ()), *incident.quiet_nodes, *incident.dead, *(f.node for f in incident.faults))
    marks = sorted(incident.marks, key=lambda m: m.at)
    before = [incident.began, *(m.at for m in marks)]
    lines = (
        Line(m.at, m.at - last, _PARTS.get(m.what, "done"), m.what, m.words)
        for m, last in zip(marks, before, strict=False)
    )
    return Story(
        id=incident.id,
        attempt=incident.attempt,
        began=incident.began,
        category=told.decided.category or told.cause if told else "",
        title=title,
        result=incident.result or f"open, {incident.stage.value}",
        lasted=None if incident.ended_at is None else incident.ended_at - incident.began,
        step=max(incident.step, cause.step),
        nodes=tuple(dict.fromkeys(nodes)),
        decided=told.decided if told else UNDECIDED,
        lines=tuple(lines),
        lost=cause.lost,
        cost=sums,
        gpu_hours=None if sums is None else _gpu_hours(sums, book),
    )


def _gpu_hours(sums: Sums, book: Book) -> float | None:
    """Of the nodes that were the run's and did nothing new; those that a queue kept from it were others'."""
    state = book.state
    nodes = max(state.num_nodes - state.spares, 0) or len(state.nodes)
    return sums.without(*_WITHOUT_NODES) / NS / 3600 * nodes * book.gpus if book.gpus and nodes else None


def headline(story: Story) -> str:
    """`i2  gpu_hardware on n3  recovered in 4m 12s`"""
    where = f" on {', '.join(story.nodes[:3])}" if story.nodes else ""
    after = f" in {span(story.lasted)}" if story.lasted is not None else ""
    return f"{story.id}  {story.category or 'not diagnosed'}{where}  {story.result}{after}"


def story_lines(story: Story, width: int = NEVER_CUT) -> list[str]:
    found = wrapped("", headline(story), width)
    found += wrapped("    ", f"{when(story.began)}, attempt {story.attempt}: {story.title}", width)
    last, shown = story.began, list(shown_lines(story))
    for time, (line, words) in zip(clock([line.at for line, _ in shown]), shown, strict=True):
        took = f"+{span(line.at - last)}" if line.at - last >= SHORT else ""
        found += wrapped(f"  {time} {took:>9}  {line.part:<9}", words, width)
        last = line.at
    found += [line for label, words in ending(story) for line in wrapped(f"  {label:<{_LABEL}}", words, width)]
    return [fit(line, width) for line in found]


def shown_lines(story: Story) -> Iterator[tuple[Line, str]]:
    """Each line with its words. Launcher and operator see the same things: no words stand there twice."""
    told: set[str] = set()
    last = ""
    for line in story.lines:
        known = line.words in told or (line.words == story.title and bool(told))
        words = _SAID.get(line.what, "") if known else said(line.what, line.words)
        told.add(line.words)
        if words and words != last:
            last = words
            yield line, words


def said(what: str, words: str) -> str:
    """The words of a mark, as far as they do not tell by themselves what was done."""
    return _BEFORE.get(what, "") + words


def clock(times: Sequence[float]) -> list[str]:
    """As a clock shows them, with the day where they are of more than one."""
    days = {datetime.fromtimestamp(at).date() for at in times}
    return [datetime.fromtimestamp(at).strftime("%m-%d %H:%M:%S") if len(days) > 1 else clock_time(at) for at in times]


def when(at: float) -> str:
    """With the day and the zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def ending(story: Story) -> Iterator[tuple[str, str]]:
    if story.cost is not None:
        told = ", ".join(f"{kind} {time}" for kind, time in spent(story.cost))
        hours = f"; {_gpu_time(story.gpu_hours)}" if story.gpu_hours is not None else ""
        yield "cost", f"{span(story.cost.wall / NS)}: {told}{hours}"
    if story.lost >= 0 and story.step >= 0:
        again = f"{several(story.lost, 'step')} done again" if story.lost else "none was lost"
        yield "steps", f"{count(story.step)} was the newest seen before it; {again}"


def _gpu_time(hours: float) -> str:
    return f"{hours:,.1f} GPU-hours" if hours >= 1 else f"{hours * 60:.1f} GPU-minutes"


def held_lines(book: Book, width: int = NEVER_CUT) -> list[str]:
    """Why a run is held, and what now: the end of its story. Empty where it is not."""
    if not book.held:
        return []
    since = [s.begin for s in book.account.spans if s.kind is Kind.HOLD and s.end == book.account.until]
    found = wrapped(f"held {clock_time(since[-1] / NS)}  " if since else "held  ", book.held, width)
    if book.state.job_id:
        found.append(f"{'go on':<{_LABEL}}{release_line(book.state.job_id, book.state.slurm_reason)}")
    return [fit(line, width) for line in (*found, f"{'give up':<{_LABEL}}transom stop {book.run_id}")]


def story_document(story: Story) -> dict[str, Any]:
    """As JSON values; docs/explain.md tells what each means."""
    decided = story.decided
    return {
        "id": story.id,
        "began": story.began,
        "words": story.title,
        "result": story.result,
        "lasted": story.lasted,
        "marks": [(line.at, line.what, line.words) for line in story.lines],
        "category": story.category,
        "rule": decided.rule,
        "action": decided.action,
        "fingerprint": decided.fingerprint,
        "attempt": story.attempt,
        "nodes": list(story.nodes),
        "step": story.step if story.step >= 0 else None,
        "lost_steps": story.lost if story.lost >= 0 else None,
        "gpu_hours": story.gpu_hours,
        "cost_seconds": None if story.cost is None else story.cost.wall / NS,
        "cost": None if story.cost is None else {k.value: n / NS for k, n in story.cost.ns.items() if n},
        "lines": [line_document(line) for line in story.lines],
    }


def line_document(line: Line) -> dict[str, Any]:
    about = {"part": line.part, "what": line.what, "words": line.words}
    return {"at": utc(line.at), "took_seconds": line.took, **about}
