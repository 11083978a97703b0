"""Incidents: a table of them, and their stories in the words of `transom explain`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transom_cli.core.goodput import NS
from transom_cli.plural import several
from transom_cli.report.shapes import Block, Cell, Section, Stories, Table, Told, Words
from transom_cli.report.timeline import tone_of
from transom_cli.ui.story import SHORT, Story, clock, ending, headline, shown_lines, when
from transom_cli.ui.words import some, span

LISTED = 1000  # incidents in the table
IN_FULL = 100  # stories
OPENED = 3  # of them, from the beginning
_LINES = 60  # of a story


def anchors(stories: Sequence[Story]) -> dict[str, str]:
    """Of the stories that are told in full, by id: those that cost most, and those that are not over."""
    dear = sorted(stories, key=lambda s: (s.lasted is None, s.cost.wall if s.cost else 0, s.began), reverse=True)
    chosen = {story.id for story in dear[:IN_FULL]}
    return {story.id: f"incident-{n}" for n, story in enumerate(stories) if story.id in chosen}


def incidents(run_id: str, stories: Sequence[Story], known: Mapping[str, str]) -> Section:
    """known: as `anchors` gives it."""
    if not stories:
        return Section("incidents", "Incidents", (Words("No incident so far."),))
    shown = stories[-LISTED:]
    rows = tuple(_row(story, known) for story in reversed(shown))
    head = ("id", "began", "category", "on", "result", "took", "cost", "what")
    left = len(stories) - len(shown)
    note = f"{several(left, 'incident')} before them: `transom explain {run_id}` tells all." if left else ""
    blocks: list[Block] = [Table("Incidents, the newest first", head, rows, frozenset({"took", "cost"}), note)]
    told = [_told(story, known[story.id]) for story in reversed(stories) if story.id in known]
    left = len(stories) - len(told)
    more = (
        f"The {len(told)} that cost most are told; `transom explain {run_id}` tells the other {left:,}." if left else ""
    )
    blocks.append(Stories(tuple(told), OPENED, more))
    return Section("incidents", "Incidents", tuple(blocks))


def _row(story: Story, known: Mapping[str, str]) -> tuple[Cell, ...]:
    return (
        Cell(story.id, link=known.get(story.id, "")),
        Cell(when(story.began), "time"),
        Cell(story.category or "not diagnosed"),
        Cell(some(story.nodes, 3) or "-"),
        Cell(story.result, tone_of(story)),
        Cell(span(story.lasted) if story.lasted is not None else "open"),
        Cell(span(story.cost.wall / NS) if story.cost is not None else "-"),
        Cell(story.title),
    )


def _told(story: Story, anchor: str) -> Told:
    shown = list(shown_lines(story))
    times = clock([line.at for line, _ in shown])
    rows, last = [], story.began
    for time, (line, words) in list(zip(times, shown, strict=True))[:_LINES]:
        took = f"+{span(line.at - last)}" if line.at - last >= SHORT else ""
        rows.append((time, took, line.part, words))
        last = line.at
    ends = list(ending(story))
    if len(shown) > _LINES:
        ends.append(("left out", f"{len(shown) - _LINES} more lines: `transom explain` has them"))
    about = f"{when(story.began)}, attempt {story.attempt}: {story.title}"
    return Told(anchor, headline(story), about, tone_of(story), tuple(rows), tuple(ends))
