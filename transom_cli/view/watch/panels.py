"""The content of the live screen: head, tabs, and the items of each tab. Pure.

An item has a key, by which the selection stays where it is when rows move.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from transom_cli.health.gpu.status import LEVELS
from transom_cli.plural import several, was
from transom_cli.view.model import NodeView, RunView
from transom_cli.view.node_table import TONES, WORST_FIRST, gpu_rows, node_rows
from transom_cli.view.outlook import planned_saves_line
from transom_cli.view.status import folded, outcome_tone, screen
from transom_cli.view.text import Line, age, cells, count, day_time, line, plain, row

NODES, INCIDENTS, CHECKPOINTS, OUTPUT, PLOTS = TABS = ("nodes", "incidents", "checkpoints", "output", "plots")
BELOW, PLOT_ROWS = 5, 8  # incidents below the nodes; fewest free rows for plots
HEAD = 0.4  # largest share of the rows for the head
MAP = 8  # rows of the screen for each line of the map of nodes
FOOT = "q quit  ? help  / filter  a all  s sort  enter open  y copy  p pause  w wrap"
HELP = """\
 transom status --watch only reads; it changes nothing

 1-5 tab      nodes, incidents, checkpoints, output, plots
 j k arrows   move
 < >          output of the rank before, of the next; left, right
 g G          first, last; also home and end
 ctrl-d -u    half a page down, up; pgdn, pgup a whole one;
              in an open item if it is longer than its pane
 enter        open the selected item; esc closes it
 /            filter lines; esc shows all
 a            all nodes, or only those that differ
 s S          sort by the next column; reverse
 w            wrap long lines of an open item
 y            copy the command for details
 p r          pause; refresh now
 q ctrl-c     leave; the run continues
 mouse        click: a tab, an item; twice: open; wheel: move

 . ok  s slow  ! silent  ? suspect  p probing
 x isolated  - waiting

 any key closes this page"""
_LEAST_FIRST = (
    "requests",
    "saves",
    "goodput",
    "excluded",
    "next",
    "slurm",
    "updated",
    "noticed",
    "trend",
    "checkpoint",
    "nodes",
)


@dataclass(frozen=True)
class Item:
    key: str
    line: Line
    details: tuple[Line, ...] = ()  # shown when the item is open
    command: str = ""  # what `y` copies


@dataclass(frozen=True)
class Filter:
    """What to list. text: contained in the line. sort: one of `SORTS`."""

    everything: bool = False
    text: str = ""
    sort: str = "state"
    backwards: bool = False


_BY: dict[str, Callable[[NodeView], object]] = {
    "state": lambda one: (WORST_FIRST.index(one.state), -LEVELS.index(one.gpus.level if one.gpus else "")),
    "step": lambda one: one.step,
    "beat": lambda one: -(one.beat_age if one.beat_age is not None else float("inf")),
    "name": lambda one: one.node,
}
SORTS = tuple(_BY)

# --- items ---


def node_items(view: RunView, chosen: Filter, opened: str | None = None) -> tuple[Line, list[Item]]:
    """Return the column heads, and the nodes.

    Args:
        opened: The key of the item whose details are made; those of thousands would take too long.
    """
    nodes = [one for one in view.node_views if chosen.everything or one.differs]
    nodes.sort(key=_BY[chosen.sort], reverse=chosen.backwards)  # type: ignore[arg-type]
    head, *rows = node_rows(nodes, shrunk=view.lacking > 0) if nodes else [()]
    items = [
        Item(key, drawn, _node_details(view, one) if key == opened else (), f"transom explain {view.run_id} {one.node}")
        for one, drawn in zip(nodes, rows, strict=True)
        for key in [f"node {one.node}"]
    ]
    return head, _matching(items, chosen.text)


def incident_items(view: RunView, chosen: Filter, timelines: Mapping[str, tuple[str, ...]]) -> list[Item]:
    """Return incidents, newest first. timelines: of open items, as `transom explain` prints them."""
    items = []
    for group in folded(view.incidents):
        one, tone = group[0], outcome_tone(group[0])
        ids = one.id if len(group) == 1 else f"{group[-1].id} to {one.id}"
        when = day_time(one.began, view.now)  # what is cut on a narrow screen is the long message
        shown = line(f"{ids:<3} {when}  ", (one.outcome(view.now), tone), f"  {one.fault.line}")
        details = timelines.get(one.id, ()) or ("reading ...",)
        command = f"transom explain {view.run_id} {one.id}"
        items.append(Item(f"incident {one.id}", shown, tuple(map(line, details)), command))
    return _matching(items, chosen.text)


def checkpoint_items(view: RunView) -> list[Item]:
    command = f"transom ckpt ls {view.run_id}"
    rows: list[tuple[str, Line]] = []
    if view.memory >= 0:
        old = f", {age(view.memory_age)} ago" if view.memory_age is not None else ""
        rows.append(("memory", row("memory", f"step {count(view.memory)}{old}, {view.memory_protection}")))
    if view.durable >= 0:
        old = f", seen {age(view.durable_age)} ago" if view.durable_age is not None else ""
        rows.append(("disk", row("disk", f"step {count(view.durable)}{old}")))
    if (own := view.own_checkpoint) is not None:
        seal = "sealed" if own.sealed else "not sealed"
        rows.append(("own", row("own", f"step {count(own.step)}, {seal}: {own.path}")))
    rows += [(f"now {one.what} {one.step}", row("now", one.message)) for one in view.operations]
    if planned := planned_saves_line(view.next_save, view.next_durable, view.now):
        rows.append(("next", row("next", planned)))
    if view.saves_fail is not None:
        rows.append(("fail", row("SAVES FAIL", (f"{view.saves_fail.words}; {view.saves_fail.advice}", "bad"))))
    if view.save_schedule:
        rows.append(("saves", row("saves", view.save_schedule)))
    if view.checkpoints:
        rows.append(("where", row("where", view.checkpoints)))
    return [Item(f"checkpoint {key}", one, (), command) for key, one in rows]


def output_items(run_id: str, rank: int | None, lines: list[Line], chosen: Filter) -> list[Item]:
    """Return the last lines of a rank's output. rank: None for the output of the job."""
    command = f"transom logs {run_id}{'' if rank is None else f' --rank {rank}'} --follow"
    return _matching([Item(f"output {n}", one, (one,), command) for n, one in enumerate(lines)], chosen.text)


def _matching(items: list[Item], text: str) -> list[Item]:
    return [one for one in items if text.lower() in plain(one.line).lower()] if text else items


def _node_details(view: RunView, one: NodeView) -> tuple[Line, ...]:
    beat = f", beat {age(one.beat_age)} ago" if one.beat_age is not None else ""
    rows = [row("state", (one.state, TONES[one.state]), f"  {one.note}" if one.note else "")]
    if one.ranks:
        last = f"last step {count(one.step)}" if one.step >= 0 else "no step yet"
        phase = f", in {one.phase}" if one.phase else ""
        rows.append(row("ranks", f"{one.alive} of {one.ranks} alive; {last}{beat}{phase}"))
    rows += gpu_rows(one)
    rows += [row("excluded", f"{how}: {reason}") for node, how, reason in view.excluded if node == one.node]
    rows += [row("noticed", report) for report in view.reports if one.node in report]
    for incident in view.incidents:
        if one.node in incident.nodes:
            rows.append(row(incident.id, f"{day_time(incident.began, view.now)}  {incident.fault.title}"))
    return tuple(rows)


# --- head and tabs ---


def head(view: RunView, width: int, height: int, trend: Line = ()) -> list[Line]:
    """Return the status screen without its tables. If there is no room, the least important rows are left out.

    Args:
        trend: Sparklines, shown below the step.
    """
    lines = screen(view, width, map_lines=max(2, height // MAP))
    shown = _rows(lines[: lines.index(())] if () in lines else lines)
    if view.fresh and view.nodes_fresh:  # what is shown is a second old
        shown = [(name, one) for name, one in shown if name != "updated"]
    if trend:
        below = next((n for n, (name, _) in enumerate(shown, 1) if name == "step"), len(shown))
        if below and shown[below - 1][0] == "step" and "loss " in plain(trend) and view.loss == view.loss:
            shown[below - 1] = ("step", shown[below - 1][1][:1])
        shown.insert(below, ("trend", [trend]))
    most = max(3, int(HEAD * height))
    for label in _LEAST_FIRST:
        if sum(len(one) for _, one in shown) <= most:
            break
        shown = [(name, one) for name, one in shown if name != label]
    for at in reversed(range(len(shown))):  # then only the first line of each row
        if sum(len(one) for _, one in shown) > most:
            shown[at] = (shown[at][0], shown[at][1][:1])
    return [line for _, one in shown for line in one][:most]


def _rows(lines: list[Line]) -> list[tuple[str, list[Line]]]:
    """Group lines by row; a line without a label continues the row before."""
    found: list[tuple[str, list[Line]]] = []
    for one in lines:
        label = plain(one[:1]).strip(" :")
        if label or not found:
            found.append((label, [one]))
        else:
            found[-1][1].append(one)
    return found


def tabs(view: RunView, tab: str, chosen: Filter, shown: int, rank: int | None) -> Line:
    """Return the line of tabs. shown: the number of nodes listed. rank: whose output is shown."""
    nodes = len(view.node_views)  # if none is listed, "0 of 64" would read as 64 lost ones
    listed = f"{shown} of {nodes}" if shown or chosen.text else str(nodes)
    counts = {NODES: f" ({listed})" if nodes and tab == NODES else ""}
    counts[INCIDENTS] = f" ({len(view.incidents)})" if view.incidents else ""
    counts[OUTPUT] = "" if tab != OUTPUT else " of the job" if rank is None else f" of rank {rank}, < > others"
    parts: list[tuple[str, str]] = []
    for n, name in enumerate(TABS, 1):
        parts += [(f"[{n}] {name}{counts.get(name, '')}", "strong" if name == tab else "dim"), ("  ", "")]
    about = [f"/{chosen.text}" if chosen.text else ""]
    about += [f"by {chosen.sort}{' reversed' if chosen.backwards else ''}"] if tab == NODES else []
    return line(*parts, (" ".join(x for x in about if x), "note"))


def tab_at(shown: Line, column: int) -> str:
    """Return the tab at a column of the line of tabs, or ""."""
    for n, (text, _) in enumerate(shown[: 2 * len(TABS)]):
        if column < cells(text):
            return TABS[n // 2] if n % 2 == 0 else ""
        column -= cells(text)
    return ""


def empty(view: RunView, tab: str, chosen: Filter) -> str:
    """Return why a tab has no items."""
    if chosen.text:
        return f"no line contains `{chosen.text}`; esc shows all"
    if tab == NODES:
        nodes = sum(one.role == "ranks" for one in view.node_views)
        if view.preflight is not None or (nodes and view.confirmed == "starting"):
            heard, every_one = sum(one.state != "waiting" for one in view.node_views), len(view.node_views)
            said = f"{heard} of {several(every_one, 'node')} {was(heard, 'has', 'have')} reported; no step yet"
            return view.condition or said
        every = {1: "the node is", 2: "both nodes are"}.get(nodes, f"all {nodes} nodes are")
        waits = view.status in ("submitting", "pending", "held", "starved")
        none = "the job has not started" if waits else "no node has reported yet"
        return f"{every} ok; a lists them" if nodes else none
    return {INCIDENTS: "none so far", CHECKPOINTS: "none so far"}.get(tab, "no output yet")
