"""A run's incidents as lines: one each, with what came of it and how long it took. Pure."""

from __future__ import annotations

from transom_cli.ui.lines import Line, Span, line, plain, table
from transom_cli.ui.view import IncidentView, RunView
from transom_cli.ui.words import cells, count, day_time, span, zone

SHOWN = 3  # on the status screen
_MENDED = {"swapped": "swapped", "requeued": "requeued", "launched": "relaunched"}  # by what its story has
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
    """The newest first, each on a line, or with its outcome below where that is too long; then how many more."""
    if not view.incidents:
        return []
    shown = view.incidents if everything else view.incidents[:SHOWN]
    told = [(one.id, day_time(one.began, view.now), _nodes(one), one.words) for one in shown]
    outcomes = [_outcome(one, view.now) for one in shown]
    side = [(*words, outcome) for words, outcome in zip(told, outcomes, strict=True)]
    lines = table(("",) * 5, side, frozenset())[1:]
    if width is not None and max(cells(plain(one)) for one in lines) > width:
        above = table(("",) * 4, told, frozenset())[1:]
        indent = cells(plain(table(("",) * 3, [words[:3] for words in told], frozenset())[1])) + 2
        below = [line(" " * indent, outcome) for outcome in outcomes]
        lines = [one for pair in zip(above, below, strict=True) for one in pair]
    lines = [line(("incidents", "strong"), (f"   times in {zone(view.now)}", "dim")), *lines]
    if len(view.incidents) > len(shown):
        more = len(view.incidents) - len(shown)
        lines.append(line((f"{count(more)} earlier: `transom explain {view.run_id}` tells all", "dim")))
    return lines


def _nodes(incident: IncidentView) -> str:
    more = f" +{len(incident.nodes) - 1}" if len(incident.nodes) > 1 else ""
    return f"{incident.nodes[0]}{more}" if incident.nodes else "-"


def _outcome(incident: IncidentView, now: float) -> Span:
    """What came of it, with what was done about a node, or else how it was mended."""
    did = " and ".join(dict.fromkeys(how for _, how in incident.isolated)) or _mended(incident)
    did = f"{did}, " if did else ""
    if incident.lasted is None:
        words, tone = _OPEN.get(incident.result, (incident.result, "warn"))
        return f"{did}{words}, {span(now - incident.began)} so far", tone
    words, tone = _CLOSED.get(incident.result, (f"{incident.result} after", ""))
    return f"{did}{words} {span(incident.lasted)}", tone


def _mended(incident: IncidentView) -> str:
    did = {what for _, what, _ in incident.marks}
    if incident.result != "recovered":
        return ""
    return next((words for what, words in _MENDED.items() if what in did), "")
