"""A run along its time: kinds of time, attempts, launches, incidents, checkpoints, each a strip. Pure.

What lies closer together than can be seen is drawn as one, and its title says how many that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from transom_cli.core import events as ev
from transom_cli.core.goodput import NS, Kind, Span
from transom_cli.plural import several
from transom_cli.report.scale import Scale
from transom_cli.report.shapes import Bar, Key, Strip, Strips, Tick
from transom_cli.supervise.book import Book
from transom_cli.ui.goodput import WORDS
from transom_cli.ui.story import Story, when
from transom_cli.ui.words import span, zone

EXACT = 400  # spans up to which each is drawn by itself
COLUMNS = 300  # else the time is cut into so many
CELLS = 400  # places for ticks
LABEL_ROOM = 8.0  # percent that a label takes on a narrow window
_THIN = 0.15  # percent: no bar is thinner
_RESULTS = {
    "recovered": "good",
    "nothing": "dim",
    "ignored": "dim",
    "done": "dim",
    "stopped": "bad",
    "failed again": "bad",
}
_WEIGHT = {"good": 1, "warn": 2, "bad": 3}  # of tones, where several ticks share a place


def timeline(book: Book, stories: Sequence[Story]) -> tuple[Strips, Key]:
    scale = scale_of(book)
    spans = book.account.spans
    summed = len(spans) > EXACT
    strips = [_kinds(spans, scale, summed)]
    strips += [strip for strip in (_attempts(spans, scale), _launches(book, scale)) if strip is not None]
    strips += [strip for strip in (_incidents(stories, scale), _checkpoints(book, scale)) if strip is not None]
    note = f"Times in {zone(scale.begin)}, from {when(scale.begin)} to {when(scale.end)}."
    if summed:
        each = span((scale.end - scale.begin) / COLUMNS)
        note += f" {several(len(spans), 'span')} of time are drawn as {COLUMNS} columns of {each}, by their shares."
    present = {one.kind for one in spans}
    key = Key(tuple((kind.value, kind.value) for kind in Kind if kind in present))
    return Strips("The run along its time", tuple(strips), scale.axis(), note), key


def scale_of(book: Book) -> Scale:
    return Scale.over(book.account.begin / NS, book.account.until / NS)


def _kinds(spans: Sequence[Span], scale: Scale, summed: bool) -> Strip:
    bars = _columns(spans, scale) if summed else tuple(_span(one, scale) for one in spans)
    return Strip("time", "What the time was spent on, by kind; the table of goodput has the sums.", bars)


def _span(one: Span, scale: Scale) -> Bar:
    x, end = scale.at(one.begin / NS), scale.at(one.end / NS)
    cause = f", {one.cause}" if one.cause else ""
    title = f"{one.kind.value} {span(one.length / NS)}{cause}, from {when(one.begin / NS)}: {WORDS[one.kind]}"
    return Bar(x, max(_THIN, round(end - x, 3)), one.kind.value, title)


def _columns(spans: Sequence[Span], scale: Scale) -> tuple[Bar, ...]:
    """Each column is filled by the kinds of its time, as high as their share."""
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
        title = f"{kind.value}: {height:.0f} % of {span(each / NS)}"
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
        return Strip("attempts", f"The beginning of each of {several(len(ends), 'attempt')}.", (), ticks)
    bars = []
    for n, (name, (begin, end)) in enumerate(ends.items()):
        x, width = scale.at(begin / NS), scale.at(end / NS) - scale.at(begin / NS)
        title = f"attempt {name}, {span((end - begin) / NS)} from {when(begin / NS)}"
        bars.append(Bar(x, max(_THIN, round(width, 3)), ("attempt", "attempt-other")[n % 2], title))
    return Strip("attempts", f"{several(len(ends), 'attempt')}, one after the other.", tuple(bars))


def _launches(book: Book, scale: Scale) -> Strip | None:
    told = [
        (one.at / NS, "plain", f"launch {one.number} of {attempt.name}", "")
        for attempt in book.history.attempts
        for one in attempt.launches
    ]
    about = f"{several(len(told), 'start')} of the training step."
    return Strip("launches", about, (), _ticks(told, scale, "launches")) if told else None


def _incidents(stories: Sequence[Story], scale: Scale) -> Strip | None:
    told = [(s.began, tone_of(s), f"{s.id}, {s.category or 'not diagnosed'}: {s.result}", s.id) for s in stories]
    about = f"{several(len(told), 'incident')}; the table of incidents tells each."
    return Strip("incidents", about, (), _ticks(told, scale, "incidents")) if told else None


def tone_of(story: Story) -> str:
    return "warn" if story.lasted is None else _RESULTS.get(story.result, "warn")


def _checkpoints(book: Book, scale: Scale) -> Strip | None:
    told = [(e.at, "checkpoint", f"step {e.step:,}", "") for e in book.events if isinstance(e, ev.CheckpointSeen)]
    about = f"{several(len(told), 'checkpoint')} on disk."
    return Strip("checkpoints", about, (), _ticks(told, scale, "checkpoints")) if told else None


def _ticks(told: Sequence[tuple[float, str, str, str]], scale: Scale, what: str) -> tuple[Tick, ...]:
    """(when, tone, title, label) of each; one tick for those that fall into the same place, by the worst of tones."""
    places: dict[int, list[tuple[float, str, str, str]]] = {}
    for one in told:
        places.setdefault(round(scale.at(one[0]) * CELLS / 100), []).append(one)
    found: list[Tick] = []
    for here in (places[n] for n in sorted(places)):
        at, tone, title, label = max(here, key=lambda one: _WEIGHT.get(one[1], 0))
        if len(here) > 1:
            title, label = f"{len(here)} {what}, from {here[0][2]} to {here[-1][2]}", f"{label} +{len(here) - 1}"
        found.append(Tick(scale.at(at), tone, f"{title}, {when(at)}", label if here[0][3] else ""))
    return tuple(_labelled(found))


def _labelled(ticks: list[Tick]) -> Iterator[Tick]:
    """With the labels that have room before the next tick."""
    for tick, after in zip_longest(ticks, ticks[1:]):
        room = (100.0 if after is None else after.x) - tick.x
        yield tick if room >= LABEL_ROOM else replace(tick, label="")
