"""A run's incidents as lines: one each, with what came of it and how long it took. Pure."""

from __future__ import annotations

from transom_cli.ui.lines import Line, Span, line, table
from transom_cli.ui.view import IncidentView, RunView
from transom_cli.ui.words import cells, count, day_time, fit, span, zone

SHOWN = 3  # on the status screen
_LEAST = 16  # columns for what it was
_OPEN = {
    "healing": ("the launcher is at it", "warn"),
    "examining": ("being examined", "warn"),
    "isolating": ("isolating", "warn"),
    "waiting": ("waits for its restart", "warn"),
    "restarting": ("restarting", "warn"),
    "starting": ("coming back", "warn"),
}
_CLOSED = {
    "recovered": ("back in", "good"),
    "nothing": ("false alarm, over in", "dim"),
    "ignored": ("ignored, over in", "dim"),
    "stopped": ("stopped the run after", "bad"),
    "failed again": ("failed again after", "bad"),
    "done": ("the run ended after", "dim"),
}


def incident_rows(view: RunView, width: int | None, *, everything: bool) -> list[Line]:
    """A table, the newest first; where there are more, how to see them."""
    if not view.incidents:
        return []
    shown = view.incidents if everything else view.incidents[:SHOWN]
    cells_of = [(one, _outcome(one, view.now)) for one in shown]
    nodes = [_nodes(one) for one in shown]
    beside = 4 + 14 + max(map(cells, nodes)) + max(cells(text) for _, (text, _) in cells_of) + 6
    room = None if width is None else max(_LEAST, width - beside)
    body = [
        (one.id, day_time(one.began, view.now), who, one.words if room is None else fit(one.words, room), outcome)
        for (one, outcome), who in zip(cells_of, nodes, strict=True)
    ]
    head = line(("incidents", "strong"), (f"   times in {zone(view.now)}", "dim"))
    lines = [head, *table(("", "", "", "", ""), body, frozenset())[1:]]
    if len(view.incidents) > len(shown):
        more = len(view.incidents) - len(shown)
        lines.append(line((f"{count(more)} earlier: `transom explain {view.run_id}` tells all", "dim")))
    return lines


def _nodes(incident: IncidentView) -> str:
    more = f" +{len(incident.nodes) - 1}" if len(incident.nodes) > 1 else ""
    return f"{incident.nodes[0]}{more}" if incident.nodes else "-"


def _outcome(incident: IncidentView, now: float) -> Span:
    """What came of it, with what was done about a node."""
    ways = dict.fromkeys(how for _, how in incident.isolated)
    did = f"{' and '.join(ways)}, " if ways else ""
    if incident.lasted is None:
        words, tone = _OPEN.get(incident.result, (incident.result, "warn"))
        return f"{did}{words}, {span(now - incident.began)} so far", tone
    words, tone = _CLOSED.get(incident.result, (f"{incident.result} after", ""))
    return f"{did}{words} {span(incident.lasted)}", tone
