"""The report of a run: its sections, from all that was read of it. Pure."""

from __future__ import annotations

import re

from transom_cli.core import events as ev
from transom_cli.core.goodput import Kind
from transom_cli.plural import several
from transom_cli.report.asked import asked
from transom_cli.report.curves import losses, step_times, steps
from transom_cli.report.incidents import anchors, incidents
from transom_cli.report.material import Material
from transom_cli.report.nodes import facts, nodes
from transom_cli.report.shapes import Block, Cell, Document, Section, Table, Words
from transom_cli.report.spent import goodput
from transom_cli.report.timeline import scale_of, timeline
from transom_cli.supervise.book import Book
from transom_cli.supervise.book import incidents as incidents_of
from transom_cli.ui.goodput import percent
from transom_cli.ui.lines import Line, plain
from transom_cli.ui.render import screen
from transom_cli.ui.story import story_of, when
from transom_cli.ui.view import RunView
from transom_cli.ui.words import count, span

CHECKPOINTS = 50  # rows
_TONES = {"healthy": "good", "done": "good", "held": "bad", "failed": "bad", "degraded": "warn", "unknown": "warn"}
_BAR = re.compile(r"\[#*-*\]")  # of letters, which a page has no need of
_NOT_HERE = ("nodes", "incidents")  # rows of the status screen that a section tells better


def document(material: Material) -> Document:
    book, view = material.book, material.view
    stories = [story_of(one, book) for one in incidents_of(book)]
    known = anchors(stories)
    scale = scale_of(book)
    rows = _head(view)
    sections = (
        Section("timeline", "Timeline", timeline(book, stories)),
        goodput(book.account, known),
        Section(
            "progress",
            "Progress",
            (
                steps(book.history, scale),
                step_times(book.history, scale),
                losses(material.losses, material.last, scale),
            ),
        ),
        incidents(book.run_id, stories, known),
        nodes(material, stories),
        _checkpoints(book, view),
        _environment(material),
    )
    return Document(
        run_id=book.run_id,
        verdict=view.word.upper(),
        tone=_TONES.get(view.standing, ""),
        headline=rows[0][1][0][0],
        figures=_figures(book, view, len(stories)),
        head=rows[1:],
        sections=sections,
        made=f"Made {when(view.now)} by transom {material.version} from the run's own files; Slurm was not asked.",
    )


def _without_bar(parts: Line) -> Line:
    """The figures of a report tell what the bar does, and its blanks go with it."""
    barred = any(_BAR.fullmatch(text) for text, _ in parts)
    kept = [(text.strip() if barred else text, tone) for text, tone in parts if not _BAR.fullmatch(text)]
    return tuple(part for n, one in enumerate(kept) for part in ([(", ", ""), one] if barred and n else [one]))


def _head(view: RunView) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The status screen above its tables: label, and words with their tones. The first row is the headline."""
    found: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    lines = screen(view, None)
    found.append(("", ((plain(lines[0][3:]).strip(" "), ""),)))
    for one in lines[1:]:
        if not one:
            break
        label, words = one[0][0].strip(" :"), _without_bar(one[1:])
        if label:
            found.append((label, words))
        elif found:
            found[-1] = (found[-1][0], (*found[-1][1], (", ", ""), *words))
    return tuple(row for row in found if row[0] not in _NOT_HERE)


def _figures(book: Book, view: RunView, incidents: int) -> tuple[tuple[str, str, str], ...]:
    account = book.account
    lost = account.whole.without(Kind.PRODUCTIVE) / 1e9
    of = f"of {count(view.steps)}" if view.steps else ""
    step = max(view.step, book.state.max_step)  # a new attempt has none yet
    return (
        ("goodput", percent(account.whole.goodput), f"of {span(account.whole.wall / 1e9)}"),
        ("newest step", count(step) if step >= 0 else "-", of),
        ("restarts", count(view.starts), several(len(account.attempts), "attempt")),
        ("incidents", count(incidents), ""),
        ("not productive", span(lost), ""),
        (
            "on disk",
            count(view.durable) if view.durable >= 0 else "-",
            "newest checkpoint" if view.durable >= 0 else "",
        ),
    )


def _checkpoints(book: Book, view: RunView) -> Section:
    seen = [e for e in book.events if isinstance(e, ev.CheckpointSeen)]
    blocks: list[Block] = []
    waited = book.account.whole.ns[Kind.CHECKPOINT] / 1e9
    words = f"Newest on disk: step {count(view.durable)}." if view.durable >= 0 else "None on disk was seen."
    words += f" In memory: step {count(view.memory)} ({view.memory_protection})." if view.memory >= 0 else ""
    words += f" Saves: {view.rhythm}." if view.rhythm else ""
    words += f" The training waited {span(waited)} for checkpoints." if waited else ""
    blocks.append(Words(words))
    rows = []
    for before, one in zip([None, *seen], seen, strict=False):
        after = span(one.at - before.at) if before is not None else "-"
        rows.append((Cell(count(one.step)), Cell(when(one.at), "time"), Cell(after)))
    shown = tuple(reversed(rows[-CHECKPOINTS:]))
    left = len(rows) - len(shown)
    note = f"{count(left)} before them." if left else ""
    if shown:
        head = ("step", "seen", "after")
        blocks.append(
            Table(f"On disk, the newest first: {count(len(rows))} seen", head, shown, frozenset({"step"}), note)
        )
    return Section("checkpoints", "Checkpoints", tuple(blocks))


def _environment(material: Material) -> Section:
    told = facts(material.examined)
    none = Words("What nodes say of themselves (system, Python, driver): not recorded.", "dim")
    return Section("settings", "Settings and environment", (*asked(material.settings), told if told.rows else none))
