"""The timeline of an incident as text: what was seen, diagnosed, done and refused, and what it cost. Pure.

`transom explain`, the live screen and the report draw the same entries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from transom_cli.core.category import category_name
from transom_cli.core.events import UNDECIDED, Decided
from transom_cli.core.fault import RESIZED, Fault, fault_of, outcome
from transom_cli.core.goodput import NS, Cause, Kind, Sums, cost
from transom_cli.core.incident import Incident
from transom_cli.core.log_lines import without_advice
from transom_cli.core.operator.state import SavesFail
from transom_cli.plural import several
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.evidence import bounded, grouped
from transom_cli.view.goodput import lost_by_kind
from transom_cli.view.outlook import release_commands
from transom_cli.view.text import NEVER_CUT, clock_time, count, fit, span, utc, wrapped

EVIDENCE = 200  # characters, where an incident is shown in brief
_LABEL = 10
SHORT = 0.05  # seconds: shorter intervals are not shown
_PARTS = {
    "diagnosed": "decided",
    "decided": "decided",
    "nothing": "decided",
    "compared": "decided",
    "spared": "decided",
    "withheld": "withheld",
    "capped": "refused",
    "refused": "refused",
    "seen": "seen",
    "evidence": "seen",
    "found": "seen",
    "probed": "seen",
    "examined": "seen",
    "checked": "seen",
    "reported": "seen",
    "left_out": "seen",
}
_PREFIXES = {"swapped": "spare "}
_REPEATED = {
    "probed": "probed again, same result",
    "diagnosed": "taken as the cause",
    "stopped": "stopping the run because of this",
    "handed_up": "escalated because of this",
}
"""What replaces a message that was shown before; other repeated entries are left out."""
WITHOUT_NODES = (Kind.QUEUE, Kind.HOLD, Kind.IDLE)


@dataclass(frozen=True)
class Entry:
    """An entry of the timeline."""

    at: float
    took: float  # seconds since the entry before
    part: str  # seen, decided, done, refused or withheld
    what: str  # the kind of the journal's mark
    message: str


@dataclass(frozen=True)
class Timeline:
    """An incident with everything that is known of it."""

    id: str
    attempt: str
    began: float
    category: str
    title: str
    fault: Fault
    result: str
    duration: float | None  # seconds from the first sign to the next step, or to the end; None while it is open
    step: int  # the newest step ever finished before it; -1 if none
    nodes: tuple[str, ...]
    decided: Decided
    entries: tuple[Entry, ...]
    lost: int  # steps that had to be repeated; -1 if unknown
    cost: Sums | None  # time by kind; None if unknown
    gpu_hours: float | None  # of the run's own nodes; None if unknown
    since_start: bool = False  # `step` counts from the start of the processes
    root: str = ""  # file and line of the trainer that failed, or of its log; "" if not known


def build_timeline(incident: Incident, book: RunRecord, *, full: bool = False) -> Timeline:
    """Build the timeline of an incident. full: however long it is."""
    diagnosis = incident.diagnosis
    sums = cost(book.account, incident.id)
    cause = next((one for one in book.account.causes if one.key == incident.id), Cause(incident.id))
    suspects = diagnosis.nodes if diagnosis else ()
    nodes = (*suspects, *incident.suspect_nodes, *incident.dead, *(f.node for f in incident.faults))
    marks = grouped(sorted(incident.marks, key=lambda m: m.at))
    if not full:
        marks = bounded(marks, f"transom explain {book.run_id} {incident.id} --full")
    before = [incident.began, *(m.at for m in marks)]
    return Timeline(
        id=incident.id,
        attempt=incident.attempt,
        began=incident.began,
        category=diagnosis.decided.category or diagnosis.cause if diagnosis else "",
        title=diagnosis.words if diagnosis else incident.marks[0].words if incident.marks else "",
        fault=fault_of(incident, book.state.isolation.exclusions),
        result=incident.result or f"open, {incident.stage.value}",
        duration=None if incident.ended_at is None else incident.ended_at - incident.began,
        step=max(incident.step, cause.step),
        nodes=tuple(dict.fromkeys(nodes)),
        decided=diagnosis.decided if diagnosis else UNDECIDED,
        entries=tuple(
            Entry(m.at, m.at - last, _PARTS.get(m.what, "done"), m.what, m.words)
            for m, last in zip(marks, before, strict=False)
        ),
        lost=-1 if incident.since_start and not book.history.from_zero else cause.lost,
        cost=sums,
        gpu_hours=None if sums is None else gpu_hours(sums.without(*WITHOUT_NODES), book),
        since_start=incident.since_start,
    )


def gpu_hours(ns: int, book: RunRecord) -> float | None:
    """Return the GPU-hours of the run's own nodes in this time, without spares; None if unknown."""
    state = book.state
    nodes = max(state.request.num_nodes - state.request.spares, 0) or len(state.job.nodes)
    return ns / NS / 3600 * nodes * book.gpus if book.gpus and nodes else None


def growths(book: RunRecord) -> list[tuple[float, str]]:
    """Return when launches had more nodes than the ones before them, which no incident says, and how many."""
    every = (record for one in book.launchers for record in one.records if record.get("what") == "grown")
    return [(record["wall"], str(record["words"])) for record in every if "wall" in record and "words" in record]


def headline(timeline: Timeline) -> str:
    """Return `i2  gpu017 lost  drained, back in 4m 12s`."""
    fault, result = timeline.fault, timeline.result.removeprefix("open, ")
    after = f" {span(timeline.duration)}" if timeline.duration is not None else ""
    done = f"{fault.done}, " if fault.done else ""
    return f"{timeline.id}  {fault.line}  {done}{outcome(result)}{after}"


def brief_lines(timeline: Timeline, width: int = NEVER_CUT) -> list[str]:
    """Return what broke, where, the evidence, what was done and what it cost."""
    category = f", {category_name(timeline.category)}" if timeline.category else ""
    rows = [("when", f"{when(timeline.began)}, attempt {timeline.attempt}{category}")]
    rows += [("evidence", timeline.fault.evidence[:EVIDENCE])] if timeline.fault.evidence else []
    rows += [("root line", timeline.root)] if timeline.root else []
    found = wrapped("", headline(timeline), width)
    for label, text in (*rows, *ending(timeline)):
        found += wrapped(f"  {label:<{_LABEL}}", text, width)
    return [fit(line, width) for line in found]


def timeline_lines(timeline: Timeline, width: int = NEVER_CUT, *, whole: bool = False) -> list[str]:
    """Return the incident in brief, then each entry. whole: with the advice of libraries."""
    return [*brief_lines(timeline, width), *entry_lines(timeline, width, whole=whole)]


def entry_lines(timeline: Timeline, width: int = NEVER_CUT, *, whole: bool = False) -> list[str]:
    found: list[str] = []
    last, shown = timeline.began, list(distinct_entries(timeline, whole=whole))
    for time, (entry, message) in zip(clock([entry.at for entry, _ in shown]), shown, strict=True):
        took = f"+{span(entry.at - last)}" if entry.at - last >= SHORT else ""
        found += wrapped(f"  {time} {took:>9}  {entry.part:<9}", message, width)
        last = entry.at
    return [fit(line, width) for line in found]


def distinct_entries(timeline: Timeline, *, whole: bool = False) -> Iterator[tuple[Entry, str]]:
    """Yield each entry with its message. Launcher and operator record the same facts: no message appears twice."""
    shown: set[str] = set()
    last = ""
    for entry in timeline.entries:
        known = entry.message in shown or (entry.message == timeline.title and bool(shown))
        message = _REPEATED.get(entry.what, "") if known else mark_message(entry.what, entry.message)
        if known and entry.what == "diagnosed" and timeline.fault.title != entry.message:
            message = f"{message}: {timeline.fault.title}"
        shown.add(entry.message)
        if message and message != last:
            last = message
            yield entry, message if whole else without_advice(message)


def mark_message(what: str, message: str) -> str:
    """Return a mark's message, with its kind if the message alone does not say it."""
    prefix = "" if message.startswith(RESIZED) else _PREFIXES.get(what, "")
    return prefix + message


def clock(times: Sequence[float]) -> list[str]:
    """Format times of day, with the date if there is more than one day."""
    days = {datetime.fromtimestamp(at).date() for at in times}
    return [datetime.fromtimestamp(at).strftime("%m-%d %H:%M:%S") if len(days) > 1 else clock_time(at) for at in times]


def when(at: float) -> str:
    """Format date, time and zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def ending(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """Yield (label, text): cost and steps."""
    if timeline.cost is not None:
        kinds = ", ".join(f"{kind} {time}" for kind, time in lost_by_kind(timeline.cost))
        hours = f"; {gpu_time(timeline.gpu_hours)}" if timeline.gpu_hours is not None else ""
        yield "cost", f"{span(timeline.cost.wall / NS)}: {kinds}{hours}"
    if timeline.step >= 0 and (timeline.since_start or timeline.lost >= 0):
        again = f"; {several(timeline.lost, 'step')} repeated" if timeline.lost else "; no step lost"
        counted = " since its start" if timeline.since_start else ""
        yield "steps", f"last step before it: {count(timeline.step)}{counted}{again if timeline.lost >= 0 else ''}"


def gpu_time(hours: float) -> str:
    return f"{hours:,.1f} GPU-hours" if hours >= 1 else f"{hours * 60:.1f} GPU-minutes"


def held_lines(book: RunRecord, width: int = NEVER_CUT, cluster: str = "") -> list[str]:
    """Return why a run is held, and the commands to continue or stop; [] if it is not. cluster: as `job.cluster`."""
    if not book.held:
        return []
    since = [s.begin for s in book.account.spans if s.kind is Kind.HOLD and s.end == book.account.until]
    found = wrapped(f"held {clock_time(since[-1] / NS)}  " if since else "held  ", book.held, width)
    state = book.state
    if state.job.id and not state.policy.observe:
        commands = release_commands(state.job.id, state.job.reason, state.isolation.excluded, cluster)
        found += [f"{label:<{_LABEL}}{command}" for label, command in commands]
    return [fit(line, width) for line in (*found, f"{'stop':<{_LABEL}}transom stop {book.run_id}")]


def save_failure_lines(fails: SavesFail, width: int = NEVER_CUT) -> list[str]:
    """Return since when and why saves fail. Nothing is done about it, and a fault would cost all steps since."""
    found = wrapped(f"SAVES FAIL  {clock_time(fails.since)}  ", f"{fails.words} (last at step {fails.step:,})", width)
    found += wrapped(" " * 12, f"a fault would lose all steps since the last good save; {fails.advice}", width)
    return [fit(line, width) for line in found]


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """Return JSON values; docs/explain.md describes them."""
    decided, sums = timeline.decided, timeline.cost
    return {
        "id": timeline.id,
        "began": timeline.began,
        "message": timeline.title,
        "result": timeline.result,
        "duration": timeline.duration,
        "marks": [(entry.at, entry.what, entry.message) for entry in timeline.entries],
        "category": timeline.category,
        "rule": decided.rule,
        "action": decided.action,
        "fingerprint": decided.fingerprint,
        "attempt": timeline.attempt,
        "nodes": list(timeline.nodes),
        "root": timeline.root or None,
        "step": timeline.step if timeline.step >= 0 else None,
        "steps_since_start": timeline.since_start,
        "lost_steps": timeline.lost if timeline.lost >= 0 else None,
        "gpu_hours": timeline.gpu_hours,
        "cost_seconds": None if sums is None else sums.wall / NS,
        "cost": None if sums is None else {kind.value: n / NS for kind, n in sums.ns.items() if n},
        "entries": [_entry_document(entry) for entry in timeline.entries],
    }


def _entry_document(entry: Entry) -> dict[str, Any]:
    about = {"part": entry.part, "what": entry.what, "message": entry.message}
    return {"at": utc(entry.at), "took_seconds": entry.took, **about}
