"""A run along its time, as strips: kinds of time, attempts, launches, incidents, checkpoints. Pure.

Marks that are too close to tell apart are drawn as one, with their number in its title.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from transom_cli.core import events as ev
from transom_cli.core.goodput import NS, Kind, Span
from transom_cli.plural import several
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.goodput import DESCRIPTIONS
from transom_cli.view.report.charts import Scale, scale_of
from transom_cli.view.report.model import Bar, Legend, Strip, Strips, Tick
from transom_cli.view.text import span, zone
from transom_cli.view.timeline import Timeline, when

EXACT = 400  # most spans and attempts that are drawn one by one
COLUMNS = 200  # into which the time is divided otherwise
CELLS = 200  # positions for ticks
LABEL_ROOM = 8.0  # percent of the width that a label needs in a narrow window
_THIN = 0.15  # percent: narrowest bar
_RESULTS = {
    "recovered": "good",
    "nothing": "dim",
    "unproven": "dim",
    "ignored": "dim",
    "done": "dim",
    "stopped": "bad",
    "failed again": "bad",
}
_WEIGHT = {"good": 1, "warn": 2, "bad": 3}  # which tone wins if ticks share a position


def run_timeline(book: RunRecord, timelines: Sequence[Timeline]) -> tuple[Strips, Legend]:
    scale = scale_of(book)
    spans = book.account.spans
    summed = len(spans) > EXACT
    strips = [_kinds(spans, scale, summed)]
    strips += [strip for strip in (_attempts(spans, scale), _launches(book, scale)) if strip is not None]
    strips += [strip for strip in (_incidents(timelines, scale), _checkpoints(book, scale)) if strip is not None]
    note = f"Times in {zone(scale.begin)}, from {when(scale.begin)} to {when(scale.end)}."
    if summed:
        each = span((scale.end - scale.begin) / COLUMNS)
        note += f" {several(len(spans), 'span')} are drawn as {COLUMNS} columns of {each}, by their shares."
    present = {one.kind for one in spans}
    legend = Legend(tuple((kind.value, kind.value) for kind in Kind if kind in present))
    return Strips("Timeline of the run", tuple(strips), scale.axis(), note), legend


def _kinds(spans: Sequence[Span], scale: Scale, summed: bool) -> Strip:
    bars = _columns(spans, scale) if summed else tuple(_span(one, scale) for one in spans)
    return Strip("time", "Kinds of time; the table of goodput has the sums.", bars)


def _span(one: Span, scale: Scale) -> Bar:
    x, end = scale.at(one.begin / NS), scale.at(one.end / NS)
    cause = f", {one.cause}" if one.cause else ""
    title = f"{one.kind.value} {span(one.length / NS)}{cause}, from {when(one.begin / NS)}: {DESCRIPTIONS[one.kind]}"
    return Bar(x, max(_THIN, round(end - x, 3)), one.kind.value, title)


def _columns(spans: Sequence[Span], scale: Scale) -> tuple[Bar, ...]:
    """Stack the kinds of time in each column, as high as their share."""
    begin, each = scale.begin * NS, (scale.end - scale.begin) * NS / COLUMNS
    sums: list[dict[Kind, float]] = [{} for _ in range(COLUMNS)]
    for one in spans:
        first = min(COLUMNS - 1, int((one.begin - begin) // each))
        last = min(COLUMNS - 1, int((one.end - begin) // each))
        for n in range(max(0, first), last + 1):
            part = min(one.end, begin + (n + 1) * each) - max(one.begin, begin + n * each)
            if part > 0:
                sums[n][one.kind] = sums[n].get(one.kind, 0.0) + part
    return tuple(bar for n, kinds in enumerate(sums) for bar in _stacked(n, kinds, each))


def _stacked(column: int, kinds: dict[Kind, float], each: float) -> Iterable[Bar]:
    below = 100.0
    width = 100.0 / COLUMNS
    for kind in (kind for kind in Kind if kind in kinds):
        height = 100.0 * kinds[kind] / each
        below -= height
        title = f"{kind.value}: {height:.0f}% of {span(each / NS)}"
        yield Bar(
            round(column * width, 3), round(width, 3), kind.value, title, round(max(below, 0), 2), round(height, 2)
        )


def _attempts(spans: Sequence[Span], scale: Scale) -> Strip | None:
    ends: dict[str, tuple[int, int]] = {}
    for one in spans:
        if one.attempt:
            begin, end = ends.get(one.attempt, (one.begin, one.end))
            ends[one.attempt] = min(begin, one.begin), max(end, one.end)
    if not ends:
        return None
    if len(ends) > EXACT:
        ticks = _ticks([(begin / NS, "plain", name, "") for name, (begin, _) in ends.items()], scale, "attempts")
        return Strip("attempts", f"The start of each of {several(len(ends), 'attempt')}.", (), ticks)
    bars = []
    for n, (name, (begin, end)) in enumerate(ends.items()):
        x, width = scale.at(begin / NS), scale.at(end / NS) - scale.at(begin / NS)
        title = f"attempt {name}, {span((end - begin) / NS)} from {when(begin / NS)}"
        bars.append(Bar(x, max(_THIN, round(width, 3)), ("attempt", "attempt-other")[n % 2], title))
    return Strip("attempts", f"{several(len(ends), 'attempt')}.", tuple(bars))


def _launches(book: RunRecord, scale: Scale) -> Strip | None:
    marks = [
        (one.at / NS, "plain", f"launch {one.number} of {attempt.name}", "")
        for attempt in book.history.attempts
        for one in attempt.launches
    ]
    about = f"{several(len(marks), 'start')} of the training step."
    return Strip("launches", about, (), _ticks(marks, scale, "launches")) if marks else None


def _incidents(timelines: Sequence[Timeline], scale: Scale) -> Strip | None:
    about = f"{several(len(timelines), 'incident')}; listed in the table of incidents."
    return Strip("incidents", about, (), fault_ticks(timelines, scale)) if timelines else None


def fault_ticks(timelines: Sequence[Timeline], scale: Scale) -> tuple[Tick, ...]:
    marks = [(s.began, tone_of(s), f"{s.id}, {s.fault.line}: {s.result}", s.id) for s in timelines]
    return _ticks(marks, scale, "incidents")


def tone_of(timeline: Timeline) -> str:
    return "warn" if timeline.duration is None else _RESULTS.get(timeline.result, "warn")


def _checkpoints(book: RunRecord, scale: Scale) -> Strip | None:
    marks = [(e.at, "checkpoint", f"step {e.step:,}", "") for e in book.events if isinstance(e, ev.CheckpointSeen)]
    about = f"{several(len(marks), 'checkpoint')} on disk."
    return Strip("checkpoints", about, (), _ticks(marks, scale, "checkpoints")) if marks else None


def _ticks(marks: Sequence[tuple[float, str, str, str]], scale: Scale, what: str) -> tuple[Tick, ...]:
    """Make ticks of (time, tone, title, label); marks at the same position share one, with the worst tone."""
    places: dict[int, list[tuple[float, str, str, str]]] = {}
    for one in marks:
        places.setdefault(round(scale.at(one[0]) * CELLS / 100), []).append(one)
    found: list[Tick] = []
    for here in (places[n] for n in sorted(places)):
        at, tone, title, label = max(here, key=lambda one: _WEIGHT.get(one[1], 0))
        if len(here) > 1:
            title, label = f"{len(here)} {what}, from {here[0][2]} to {here[-1][2]}", f"{label} +{len(here) - 1}"
        found.append(Tick(scale.at(at), tone, f"{title}, {when(at)}", label if here[0][3] else ""))
    return tuple(_labelled(found))


def _labelled(ticks: list[Tick]) -> Iterator[Tick]:
    """Keep the labels that have room before the next tick."""
    for tick, after in zip_longest(ticks, ticks[1:]):
        room = (100.0 if after is None else after.x) - tick.x
        yield tick if room >= LABEL_ROOM else replace(tick, label="")
