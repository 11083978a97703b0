"""What transom would have done in observed runs, beside what people did (`transom observe --summary`)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from transom_cli.core.incident import Incident
from transom_cli.core.operator.state import State, WouldHave
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.ownership import is_own
from transom_cli.plural import several, times
from transom_cli.slurm.port import Node, Slurm
from transom_cli.slurm.successor import known_nodes
from transom_cli.submit.rundir import list_runs
from transom_cli.supervise.journal import fold
from transom_cli.view.text import span, utc

_DONE = {"requeue": "requeued", "relaunch": "relaunched", "cancel": "cancelled"}
_FATES = {
    "interrupted": "cancelled by hand",
    "failed": "not restarted",
    "done": "ended well without it",
    "recovered": "recovered without it",
    "": "still open",
}


@dataclass(frozen=True)
class Compared:
    """A withheld action and what happened instead."""

    run: str
    incident: str
    at: float
    what: str  # as in `WouldHave`
    words: str
    nodes: tuple[str, ...]
    fate: str  # in words
    after: float | None  # seconds until then; None if nothing has happened, or it is not known when


@dataclass(frozen=True)
class Summary:
    since: float
    until: float
    runs: int  # number of observed runs
    compared: tuple[Compared, ...]
    nodes_error: str = ""  # why Slurm's view of the nodes is missing


def read_summary(root: Path, since: float, now: float, connect: Callable[[RunDir], Slurm]) -> Summary:
    """Read the user's runs in `root`, and what became of the nodes in Slurm."""
    runs, compared, error = 0, [], ""
    for run in list_runs(root):
        try:
            if not is_own(run) or run.journal.stat().st_mtime < since:
                continue
            state = fold(run.journal).state
        except (OSError, TransomError):
            continue
        if not state.policy.observe:
            continue
        runs += 1
        wanted = [one for one in state.withheld if one.at >= since]
        named = tuple(dict.fromkeys(n for one in wanted if one.what in ("drain", "exclude") for n in one.nodes))
        nodes: dict[str, Node] = {}
        if named:
            try:
                nodes = {node.name: node for node in known_nodes(connect(run), named)}
            except TransomError as failed:
                error = failed.why or failed.what
        compared += list(compare(run.run_id, state, wanted, nodes))
    return Summary(since, now, runs, tuple(sorted(compared, key=lambda one: one.at)), error)


def compare(run: str, state: State, wanted: Iterable[WouldHave], nodes: dict[str, Node]) -> Iterator[Compared]:
    """Pair each action with its fate: of an incident, how it ended; of a node, what Slurm says of it."""
    incidents = {i.id: i for i in (*state.incidents, *((state.incident,) if state.incident is not None else ()))}
    for one in wanted:
        if one.what in ("drain", "exclude"):
            fate, at = _node_fate(nodes.get(one.nodes[0]), one.at)
        elif one.incident in incidents:
            fate, at = _incident_fate(incidents[one.incident], state)
        else:
            fate, at = "", None
        after = None if at is None else max(0.0, at - one.at)
        yield Compared(run, one.incident, one.at, one.what, one.words, one.nodes, fate, after)


def _incident_fate(incident: Incident, state: State) -> tuple[str, float | None]:
    if incident.result in ("failed", "interrupted") and state.stop_requested:
        return "the observation was ended", incident.ended_at
    return _FATES.get(incident.result, incident.result), incident.ended_at


def _node_fate(node: Node | None, at: float) -> tuple[str, float | None]:
    if node is None:
        return "unknown", None
    if not node.drain and node.state != "down":
        return "nobody drained it, or it is back", None
    since = None
    try:
        since = datetime.fromisoformat(node.reason_at).timestamp()
    except ValueError:
        return f"drained by {node.reason_user or 'somebody'}: {node.reason}", None
    what = "drained" if node.drain else "down, set"
    if since < at:
        return f"was {what} before by {node.reason_user}: {node.reason}", None
    return f"{what} by {node.reason_user}: {node.reason}", since


def summary_lines(found: Summary) -> list[str]:
    lines = [f"observed in {span(found.until - found.since)}: {several(found.runs, 'run')}"]
    if not found.compared:
        return [*lines, "transom would have done nothing"]
    for what, done in _DONE.items():
        same = [one for one in found.compared if one.what == what]
        if not same:
            continue
        lines.append(f"would have {done} {times(len(same))}")
        for fate in dict.fromkeys(one.fate for one in same):
            ones = [one for one in same if one.fate == fate]
            known = [one.after for one in ones if one.after is not None]
            after = (
                f", after {span(sum(known) / len(known))}" + (" on average" if len(known) > 1 else "") if known else ""
            )
            which = ", ".join(f"{one.run} {one.incident}" for one in ones[:3]) + (", ..." if len(ones) > 3 else "")
            lines.append(f"  {len(ones)} {fate}{after}  ({which})")
    for one in found.compared:
        if one.what not in _DONE:
            after = f", {span(one.after)} later" if one.after is not None else ""
            lines += [f"would have {one.words}", *([f"  {one.fate}{after}"] if one.fate else [])]
    if found.nodes_error:
        lines.append(f"warning: Slurm's view of the nodes is missing: {found.nodes_error}")
    return lines


def summary_document(found: Summary) -> dict[str, Any]:
    """Return JSON values; docs/observe.md describes them."""
    return {
        "schema": 1,
        "since": found.since,
        "since_utc": utc(found.since),
        "until_utc": utc(found.until),
        "runs": found.runs,
        "nodes_error": found.nodes_error,
        "withheld": [{**asdict(one), "at_utc": utc(one.at)} for one in found.compared],
    }
