"""The document of a report: its sections, from the data that was read. Pure.

Reports are passed on. So values in `job.env` are left out, and those of any setting, or assignment within a value,
whose name suggests a secret.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.category import category_name
from transom_cli.core.goodput import NS, Kind
from transom_cli.core.goodput.partition import START
from transom_cli.plural import several
from transom_cli.supervise.run_record import RunRecord
from transom_cli.supervise.run_record import incidents as incidents_of
from transom_cli.view import advice
from transom_cli.view.explain import newest_step
from transom_cli.view.goodput import duration, percent
from transom_cli.view.model import RunView
from transom_cli.view.report.charts import losses, scale_of, step_time_plot, steps
from transom_cli.view.report.model import (
    Block,
    Cell,
    Document,
    IncidentBlock,
    IncidentBlocks,
    Paragraph,
    Plot,
    ReportData,
    Section,
    Table,
)
from transom_cli.view.report.tables import facts, goodput, nodes
from transom_cli.view.report.timeline import fault_ticks, run_timeline, tone_of
from transom_cli.view.status import screen
from transom_cli.view.text import Line, count, plain, some, span
from transom_cli.view.timeline import (
    SHORT,
    WITHOUT_NODES,
    Timeline,
    build_timeline,
    clock,
    distinct_entries,
    ending,
    gpu_hours,
    gpu_time,
    headline,
    when,
)

CHECKPOINTS = 50  # rows
LISTED = 250  # incidents in the table
IN_FULL = 40  # incidents with a timeline
OPENED = 3  # of them, unfolded at first
HIDDEN = "(left out)"
RULES = ("policy", "rules")
_ENTRIES = 60  # of a timeline
_LONG = 400  # characters of a value
_TONES = {"healthy": "good", "done": "good", "held": "bad", "failed": "bad", "degraded": "warn", "unknown": "warn"}
_BAR = re.compile(r"\[#*-*\]")  # the progress bar of the status screen
_OTHER_SECTIONS = ("nodes", "incidents")  # rows of the status screen that have a section
_SECRET = r"(?:(?:\b|_|-|api|access)key|token(?![is])|secret|passw|credential)"  # not: monkey, tokenizer, tokens
_NAME = re.compile(_SECRET, re.IGNORECASE)
_ASSIGNED = re.compile(rf"([\w-]*{_SECRET}[\w-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;]+)", re.IGNORECASE)
_IN_URL = re.compile(r"(://)[^/\s@]+@")


def document(data: ReportData) -> Document:
    """Arrange a report."""
    book, view = data.book, data.view
    timelines = [build_timeline(one, book) for one in incidents_of(book)]
    known = anchors(timelines)
    scale = scale_of(book)
    rows = _head(view)
    loss = losses(data.losses, data.last, scale)
    if isinstance(loss, Plot) and timelines:
        loss = replace(loss, marks=fault_ticks(timelines, scale), note=f"{loss.note} Dashed lines are incidents.")
    progress = (steps(book.history, scale), step_time_plot(book.history, scale), loss)
    return Document(
        run_id=book.run_id,
        verdict=view.headline,
        tone=_TONES.get(view.health, ""),
        headline=rows[0][1][0][0],
        hero=_hero(data, len(timelines)),
        figures=_figures(data, len(timelines)),
        head=rows[1:],
        sections=(
            Section("timeline", "Timeline", run_timeline(book, timelines)),
            _with(goodput(book.account, known), *_earlier(data)),
            advice.section(data),
            Section("progress", "Progress", progress),
            incidents(book.run_id, timelines, known),
            nodes(data, timelines),
            _checkpoints(book, view),
            _environment(data),
        ),
        made=f"Made {when(view.now)} by transom {data.version} from the run's files; Slurm was not queried.",
    )


def _with(section: Section, *blocks: Block) -> Section:
    return replace(section, blocks=(*section.blocks, *blocks))


# --- head ---


def _head(view: RunView) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return the rows of the status screen above its tables as label and spans; the first row is the headline."""
    found: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    lines = screen(view, None)
    found.append(("", ((plain(lines[0][3:]).strip(" "), ""),)))
    for one in lines[1:]:
        if not one:
            break
        label, spans = one[0][0].strip(" :"), _without_bar(one[1:])
        if label:
            found.append((label, spans))
        elif found:
            found[-1] = (found[-1][0], (*found[-1][1], (", ", ""), *spans))
    return tuple(row for row in found if row[0] not in _OTHER_SECTIONS)


def _without_bar(parts: Line) -> Line:
    barred = any(_BAR.fullmatch(text) for text, _ in parts)
    kept = [(text.strip() if barred else text, tone) for text, tone in parts if not _BAR.fullmatch(text)]
    return tuple(part for n, one in enumerate(kept) for part in ([(", ", ""), one] if barred and n else [one]))


def _hero(data: ReportData, incidents: int) -> str:
    """Return the run in a sentence: steps, time, nodes, goodput, and what incidents cost."""
    book, view, whole = data.book, data.view, data.book.account.whole
    step = max(newest_step(book), view.step)  # the record of a live run lags behind
    of = f" of {count(view.steps)}" if view.steps else ""
    did = f"{count(step)}{of} steps" if step >= 0 else "No step was seen"
    nodes = f" on {several(len(view.nodes), 'node')}" if view.nodes else ""
    share = f"; {percent(whole.goodput)} of it went into new steps" if book.account.steps_seen else ""
    faults = [sums for cause, sums in book.account.by_cause if cause.key != START and not cause.planned]
    lost, hours = sum(one.wall for one in faults), gpu_hours(sum(one.without(*WITHOUT_NODES) for one in faults), book)
    price = f", {_cost(hours, data.settings)}" if hours else ""
    cost = f"; {several(incidents, 'incident')} cost {duration(lost)}{price}" if incidents and lost else ""
    return f"{did} in {duration(whole.wall)}{nodes}{share}{cost}."


def _cost(hours: float, settings: Mapping[str, Any] | str) -> str:
    """Return GPU-hours, and money if a price is set."""
    report = settings.get("report") if isinstance(settings, Mapping) else None
    price = report.get("gpu_hour") if isinstance(report, Mapping) else None
    if not isinstance(price, (int, float)) or price <= 0 or not isinstance(report, Mapping):
        return gpu_time(hours)
    return f"{gpu_time(hours)}, {hours * price:,.2f} {report.get('currency', 'USD')}"


def _figures(data: ReportData, incidents: int) -> tuple[tuple[str, str, str], ...]:
    book, view = data.book, data.view
    hours = gpu_hours(book.account.whole.without(*WITHOUT_NODES), book)
    spent, _, money = _cost(hours, data.settings).partition(", ") if hours else ("", "", "")
    account, saved = book.account, view.durable >= 0
    of = f"of {count(view.steps)}" if view.steps else ""
    progress = book.state.progress
    step = view.step if progress.since_start else max(view.step, newest_step(book))  # a new attempt has none yet
    return (
        ("goodput", percent(account.whole.goodput), f"of {duration(account.whole.wall)}"),
        ("newest step", count(step) if step >= 0 else "-", "since this start" if progress.since_start else of),
        (
            "incidents",
            count(incidents),
            f"{several(view.starts, 'restart')}, {several(len(account.attempts), 'attempt')}",
        ),
        ("lost time", duration(account.whole.without(Kind.PRODUCTIVE)), ""),
        ("on disk", count(view.durable) if saved else "-", "newest checkpoint" if saved else ""),
        *([("spent", spent, money)] if hours else []),
    )


def _earlier(data: ReportData) -> tuple[Table, ...]:
    """Compare the run with earlier ones of its name."""
    whole = data.book.account.whole
    now = replace(data.view, goodput=whole.goodput if data.book.account.steps_seen else None)
    rows = tuple(
        (
            Cell(one.run_id + (" (this run)" if one is now else "")),
            Cell(one.phase, _TONES.get(one.phase, "")),
            Cell(span((one.since if one.over else one.now) - one.submitted) if one.submitted else "-"),
            Cell(count(one.step) if one.step >= 0 else "-"),
            Cell(count(one.starts)),
            Cell(percent(one.goodput)),
        )
        for one in (now, *data.earlier)
    )
    head = ("run", "state", "duration", "newest step", "restarts", "goodput")
    return (Table("Runs of the same name, newest first", head, rows, frozenset(head[2:])),) if data.earlier else ()


# --- checkpoints ---


def _checkpoints(book: RunRecord, view: RunView) -> Section:
    seen = [e for e in book.events if isinstance(e, ev.CheckpointSeen)]
    waited = book.account.whole.ns[Kind.CHECKPOINT]
    text = f"Newest on disk: step {count(view.durable)}." if view.durable >= 0 else "None was seen on disk."
    text += f" In memory: step {count(view.memory)} ({view.memory_protection})." if view.memory >= 0 else ""
    text += f" Saves: {view.save_schedule}." if view.save_schedule else ""
    text += f" The training waited {duration(waited)} for checkpoints." if waited else ""
    blocks: list[Block] = [Paragraph(text)]
    rows = []
    for before, one in zip([None, *seen], seen, strict=False):
        after = span(one.at - before.at) if before is not None else "-"
        rows.append((Cell(count(one.step)), Cell(when(one.at), "time"), Cell(after)))
    shown = tuple(reversed(rows[-CHECKPOINTS:]))
    left = len(rows) - len(shown)
    note = f"{count(left)} earlier." if left else ""
    if shown:
        caption = f"On disk, newest first: {count(len(rows))} seen"
        blocks.append(Table(caption, ("step", "seen", "after"), shown, frozenset({"step"}), note))
    return Section("checkpoints", "Checkpoints", tuple(blocks))


# --- incidents ---


def anchors(timelines: Sequence[Timeline]) -> dict[str, str]:
    """Return anchors by incident for those shown in full: the open and the most expensive ones."""
    dear = sorted(timelines, key=lambda s: (s.duration is None, s.cost.wall if s.cost else 0, s.began), reverse=True)
    chosen = {one.id for one in dear[:IN_FULL]}
    return {one.id: f"incident-{n}" for n, one in enumerate(timelines) if one.id in chosen}


def incidents(run_id: str, timelines: Sequence[Timeline], known: Mapping[str, str]) -> Section:
    """Return a table of incidents and the timelines of those in `known` (see `anchors`)."""
    if not timelines:
        return Section("incidents", "Incidents", (Paragraph("No incident so far."),))
    shown = timelines[-LISTED:]
    rows = tuple(_incident_row(one, known) for one in reversed(shown))
    head = ("id", "began", "what", "on", "result", "took", "cost", "category")
    left = len(timelines) - len(shown)
    note = f"{several(left, 'earlier incident')} not listed: see `transom explain {run_id}`." if left else ""
    table = Table("Incidents, newest first", head, rows, frozenset({"took", "cost"}), note)
    full = [_incident(one, known[one.id]) for one in reversed(timelines) if one.id in known]
    left = len(timelines) - len(full)
    more = f"The {len(full)} most expensive; `transom explain {run_id}` shows the other {left:,}." if left else ""
    return Section("incidents", "Incidents", (table, IncidentBlocks(tuple(full), OPENED, more)))


def _incident_row(timeline: Timeline, known: Mapping[str, str]) -> tuple[Cell, ...]:
    return (
        Cell(timeline.id, link=known.get(timeline.id, "")),
        Cell(when(timeline.began), "time"),
        Cell(timeline.fault.title),
        Cell(some(timeline.nodes, 3) or "-"),
        Cell(timeline.result, tone_of(timeline)),
        Cell(span(timeline.duration) if timeline.duration is not None else "open"),
        Cell(span(timeline.cost.wall / NS) if timeline.cost is not None else "-"),
        Cell(category_name(timeline.category) or "not diagnosed"),
    )


def _incident(timeline: Timeline, anchor: str) -> IncidentBlock:
    shown = list(distinct_entries(timeline))
    times = clock([entry.at for entry, _ in shown])
    rows, last = [], timeline.began
    for time, (entry, message) in list(zip(times, shown, strict=True))[:_ENTRIES]:
        took = f"+{span(entry.at - last)}" if entry.at - last >= SHORT else ""
        rows.append((time, took, entry.part, message))
        last = entry.at
    ends = list(ending(timeline))
    if len(shown) > _ENTRIES:
        ends.append(("left out", f"{len(shown) - _ENTRIES} more entries: see `transom explain`"))
    about = f"{when(timeline.began)}, attempt {timeline.attempt}: {timeline.fault.evidence or timeline.title}"
    return IncidentBlock(anchor, headline(timeline), about, tone_of(timeline), tuple(rows), tuple(ends))


# --- settings and environment ---


def _environment(data: ReportData) -> Section:
    table = facts(data.checked)
    none = Paragraph("Node facts (system, Python, driver): not recorded.", "dim")
    blocks = (*settings_tables(data.settings), table if table.rows else none)
    return Section("settings", "Settings and environment", blocks)


def settings_tables(settings: Mapping[str, Any] | str) -> tuple[Table | Paragraph, ...]:
    """Return the settings without secrets, and the policy. settings: run.toml, or why it cannot be read."""
    if isinstance(settings, str):
        return (Paragraph(f"Settings: not recorded. {settings}", "dim"),)
    rows = tuple((Cell(name), Cell(value)) for name, value in _flat(settings))
    return (Table("Settings, frozen at submission (run.toml)", ("setting", "value"), rows), *_rules(settings))


def _flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        where = (*path, str(key))
        if where == RULES:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, where)
        elif value not in ("", [], None):
            hidden = path[:2] == ("job", "env") or _NAME.search(str(key))
            yield ".".join(where), HIDDEN if hidden else _value(value)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = _IN_URL.sub(rf"\1{HIDDEN}@", _ASSIGNED.sub(rf"\1{HIDDEN}", text))
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text):,} characters)"


def _rules(settings: Mapping[str, Any]) -> tuple[Table, ...]:
    policy = settings.get("policy")
    rules = policy.get("rules") if isinstance(policy, Mapping) else None
    rows = []
    for rule in rules if isinstance(rules, list) else ():
        if not isinstance(rule, Mapping):
            continue
        about = {k: v for k, v in rule.items() if k not in ("name", "action", "source") and v not in ("", [], None)}
        condition = ", ".join(f"{key} {_value(value)}" for key, value in about.items())
        cells = (rule.get("name", ""), rule.get("action", ""), condition, rule.get("source", ""))
        rows.append(tuple(Cell(str(text)) for text in cells))
    head = ("rule", "action", "for", "from")
    return (Table("Policy: the first matching rule decides", head, tuple(rows)),) if rows else ()
