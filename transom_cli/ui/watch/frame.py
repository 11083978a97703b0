"""What stands around the list on the live screen: the head, the tabs, and why a list is empty. Pure."""

from __future__ import annotations

from transom_cli.ui.lines import Line, line, plain
from transom_cli.ui.render import screen
from transom_cli.ui.view import RunView
from transom_cli.ui.watch.content import CHECKPOINTS, INCIDENTS, NODES, TABS, Wish

HEAD = 0.4  # share of the rows that the head may take, at most
_LEAST_FIRST = ("saves", "goodput", "kept off", "next", "slurm", "written", "noticed", "checkpoint", "nodes")


def head(view: RunView, width: int, height: int) -> list[Line]:
    """The one-shot screen without its tables. Where there is no room for all of it, what matters least is left out:
    what is wrong, what a person can do and what warns stay.
    """
    lines = screen(view, width)
    shown = _rows(lines[: lines.index(())] if () in lines else lines)
    most = max(3, int(HEAD * height))
    for label in _LEAST_FIRST:
        if sum(len(one) for _, one in shown) <= most:
            break
        shown = [(name, one) for name, one in shown if name != label]
    for at in reversed(range(len(shown))):  # of what is left, the first line of each
        if sum(len(one) for _, one in shown) > most:
            shown[at] = (shown[at][0], shown[at][1][:1])
    return [line for _, one in shown for line in one][:most]


def _rows(lines: list[Line]) -> list[tuple[str, list[Line]]]:
    """Label and lines; a line without a label goes on with what the one before it tells."""
    found: list[tuple[str, list[Line]]] = []
    for one in lines:
        label = plain(one[:1]).strip(" :")
        if label or not found:
            found.append((label, [one]))
        else:
            found[-1][1].append(one)
    return found


def tabs(view: RunView, tab: str, wish: Wish, shown: int) -> Line:
    """shown: how many nodes are listed."""
    counts = {NODES: f" ({shown} of {len(view.node_views)})" if tab == NODES else ""}
    counts[INCIDENTS] = f" ({len(view.incidents)})" if view.incidents else ""
    parts: list[tuple[str, str]] = []
    for n, name in enumerate(TABS, 1):
        parts += [(f"{n} {name}{counts.get(name, '')}", "strong" if name == tab else "dim"), ("  ", "")]
    about = [f"/{wish.words}" if wish.words else "", f"by {wish.sort}{' reversed' if wish.backwards else ''}"]
    about = about if tab == NODES else about[:1]
    return line(*parts, (" ".join(x for x in about if x), "note"))


def none(view: RunView, tab: str, wish: Wish) -> str:
    """Why there is nothing to be seen on a tab."""
    if wish.words:
        return f"no line has `{wish.words}`; esc shows all"
    if tab == NODES:
        return f"{_all(len(view.node_views))} ok; a lists them" if view.node_views else "no node tells anything"
    return {INCIDENTS: "none so far", CHECKPOINTS: "none so far"}.get(tab, "nothing was printed yet")


def _all(nodes: int) -> str:
    return "the node is" if nodes == 1 else f"all {nodes} nodes are"
