"""What stands on the live screen's tabs: items, each a line with a name of its own and what is told when it is opened.

Pure. The names keep the selection where it is when rows move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.health.gpu.shown import LEVELS
from transom_cli.ui.gpus import gpu_rows
from transom_cli.ui.lines import Line, line, plain, row
from transom_cli.ui.nodemap import TONES, node_rows
from transom_cli.ui.render import incident_line, incident_lines
from transom_cli.ui.saving import next_words
from transom_cli.ui.view import IncidentView, NodeView, RunView
from transom_cli.ui.words import age, count, day_time

NODES, INCIDENTS, CHECKPOINTS, LOG, PLOTS = TABS = ("nodes", "incidents", "checkpoints", "log", "plots")
_WORST_FIRST = ("isolated", "suspect", "silent", "probing", "slow", "waiting", "ok")


@dataclass(frozen=True)
class Item:
    """details: what is told when it is opened. command: what a person would type about it."""

    key: str
    line: Line
    details: tuple[Line, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Wish:
    """What is to be seen of the nodes. sort: one of `SORTS`."""

    everything: bool = False
    words: str = ""  # what a line must hold
    sort: str = "state"
    backwards: bool = False


_BY: dict[str, Callable[[NodeView], object]] = {
    "state": lambda one: (_WORST_FIRST.index(one.state), -LEVELS.index(one.gpus.level if one.gpus else "")),
    "step": lambda one: one.step,
    "beat": lambda one: -(one.beat_age if one.beat_age is not None else float("inf")),
    "name": lambda one: one.node,
}
SORTS = tuple(_BY)


def node_items(view: RunView, wish: Wish, opened: str | None = None) -> tuple[Line, list[Item]]:
    """The heads of the columns, and the nodes: those that differ, or with `everything` all of them.

    opened: the key of the one whose details are wanted; those of thousands would take longer than to draw the screen.
    """
    nodes = [one for one in view.node_views if wish.everything or one.differs]
    nodes.sort(key=_BY[wish.sort], reverse=wish.backwards)  # type: ignore[arg-type]
    head, *rows = node_rows(nodes)
    items = [
        Item(key, drawn, _about_node(view, one) if key == opened else (), f"transom explain {view.run_id} {one.node}")
        for one, drawn in zip(nodes, rows, strict=True)
        for key in [f"node {one.node}"]
    ]
    return head, _with_words(items, wish.words)


def incident_items(view: RunView, wish: Wish, stories: Mapping[str, tuple[str, ...]]) -> list[Item]:
    """Newest first. stories: of those that are open, as `transom explain` tells them."""
    items = [
        Item(
            f"incident {one.id}",
            line((incident_line(one), _tone(one))),
            tuple(line(text) for text in stories.get(one.id, ()) or incident_lines(one, 10_000)[1:]),
            f"transom explain {view.run_id} {one.id}",
        )
        for one in view.incidents
    ]
    return _with_words(items, wish.words)


def checkpoint_items(view: RunView) -> list[Item]:
    command = f"transom ckpt ls {view.run_id}"
    told: list[tuple[str, Line]] = []
    if view.memory >= 0:
        old = f", {age(view.memory_age)} ago" if view.memory_age is not None else ""
        told.append(("memory", row("memory", f"step {count(view.memory)}{old}, {view.memory_protection}")))
    if view.durable >= 0:
        old = f", seen {age(view.durable_age)} ago" if view.durable_age is not None else ""
        told.append(("disk", row("disk", f"step {count(view.durable)}{old}")))
    told += [(f"now {one.what} {one.step}", row("now", one.words)) for one in view.under_way]
    if ahead := next_words(view.next_save, view.next_durable, view.now):
        told.append(("next", row("next", ahead)))
    if view.rhythm:
        told.append(("saves", row("saves", view.rhythm)))
    if view.checkpoints:
        told.append(("where", row("where", view.checkpoints)))
    return [Item(f"checkpoint {key}", one, (), command) for key, one in told]


def log_items(path: str, text: str, wish: Wish) -> list[Item]:
    """The newest lines of the job's output, the newest last. path: as a shell takes it."""
    items = [Item(f"log {n}", line(words), (line(words),), f"less {path}") for n, words in _numbered(text)]
    return _with_words(items, wish.words)


def _numbered(text: str) -> Sequence[tuple[int, str]]:
    lines = [words.rpartition("\r")[2] for words in text.splitlines()]
    return [(n, words) for n, words in enumerate(lines)]


def _with_words(items: list[Item], words: str) -> list[Item]:
    return [one for one in items if words.lower() in plain(one.line).lower()] if words else items


def _about_node(view: RunView, one: NodeView) -> tuple[Line, ...]:
    beat = f", beat {age(one.beat_age)} ago" if one.beat_age is not None else ""
    told = [row("state", (one.state, TONES[one.state]), f"  {one.note}" if one.note else "")]
    if one.ranks:
        last = f"last step {count(one.step)}" if one.step >= 0 else "no step yet"
        told.append(
            row("ranks", f"{one.alive} of {one.ranks} live; {last}{beat}{f', in {one.phase}' if one.phase else ''}")
        )
    told += gpu_rows(one)
    kept = [f"{how}: {reason}" for node, how, reason in view.excluded if node == one.node]
    told += [row("kept off", words) for words in kept]
    told += [row("noticed", words) for words in view.reports if one.node in words]
    for incident in view.incidents:
        if one.node in incident.nodes:
            told.append(row(incident.id, f"{day_time(incident.began, view.now)}  {incident.words}"))
    return tuple(told)


def _tone(one: IncidentView) -> str:
    return "warn" if one.lasted is None else ""
