"""The nodes of a run: a map with a letter for each, a table of those that differ, and the GPUs of one. Pure.

Ages of GPU readings are differences of one clock, the node's or the file system's. Not exercised on hardware.
"""

from collections.abc import Iterable, Sequence

from transom_cli.health.gpu.status import GpuStatus, NodeGpus, gpus_of
from transom_cli.plural import several
from transom_cli.view.model import NodeView, RunView
from transom_cli.view.node_state import LETTERS
from transom_cli.view.text import LABEL, Line, Span, age, brief, cells, count, line, plain, row, some, span, table

GROUP = 8  # letters
NAMED = 8  # most nodes whose names are shown next to the map
TONES = {
    "ok": "good", "slow": "warn", "silent": "bad", "suspect": "bad", "probing": "note", "isolated": "bad",
    "waiting": "dim",
}  # fmt: skip
WORST_FIRST = ("isolated", "suspect", "silent", "probing", "slow", "waiting", "ok")
_RANKING = {state: n for n, state in enumerate(WORST_FIRST)}
_HEAD = ("NODE", "STATE", "STEP", "BEAT", "RANKS", "GPU", "WORST", "NOTE")
_RIGHT = frozenset({"STEP", "BEAT", "RANKS", "GPU"})
_GPU_TONES = {"fault": "bad", "throttled": "warn", "heavy": "warn", "moderate": "note"}
_GIB = 2**30

# --- map ---


def map_rows(view: RunView, width: int, most: int = 0) -> list[Line]:
    """Return the map, or only names if there is no recent report of the nodes.

    Args:
        most: Lines of the map: of more nodes, a letter shows the worst of several. 0: a letter for each node.
    """
    if not view.node_views or not view.nodes_fresh:
        return _names("nodes", view.nodes, view) + (_names("spares", view.spares, view) if view.spares else [])
    working = tuple(one for one in view.node_views if one.role != "spare")
    spares = tuple(one for one in view.node_views if one.role == "spare")
    explained = {"ok"}
    return [
        *_map("nodes", working, width, most, explained),
        *_map("spares", spares, width, most, explained),
    ]


def _names(label: str, nodes: tuple[str, ...], view: RunView) -> list[Line]:
    if not nodes or view.phase == "held" or (view.slurm_state == "PENDING" and not view.over):
        return []  # the job has no nodes
    return [row(label, f"{len(nodes)}: {some(nodes)}")]


def _map(label: str, nodes: tuple[NodeView, ...], width: int, most: int, explained: set[str]) -> list[Line]:
    """explained: The states whose letters need no explanation; those that are explained here are added."""
    per_line = max(1, (width - LABEL + 1) // (GROUP + 1)) * GROUP
    each = max(1, -(-len(nodes) // (per_line * most))) if most else 1
    states = [min((n.state for n in nodes[i : i + each]), key=_RANKING.__getitem__) for i in range(0, len(nodes), each)]
    lines: list[Line] = []
    for start in range(0, len(states), per_line):
        spans: list[Span] = []
        for i, state in enumerate(states[start : start + per_line]):
            gap, letter, tone = " " * bool(i and i % GROUP == 0), LETTERS[state], TONES[state]
            if spans and spans[-1][1] == tone:
                spans[-1] = (spans[-1][0] + gap + letter, tone)
            else:
                spans.append((gap + letter, tone))
        lines.append(row("" if lines else label, *spans))
    if 0 < len(nodes) <= NAMED:
        names = some(tuple(one.node for one in nodes), NAMED)
        lines[0] = (*lines[0], *line((f"{' ' * (NAMED + 1 - len(nodes))}{names}", "dim")))
    elif each > 1:
        lines.append(row("", (f"each letter is the worst of {each} nodes", "dim")))
    new = [one for one in WORST_FIRST if one in states and one not in explained]
    explained.update(new)
    legend = ", ".join(f"{LETTERS[one]} {one}" for one in new)
    if not legend:
        return lines
    last = (*lines[-1], (f"  ({legend})", "dim"))
    return [*lines[:-1], last] if cells(plain(last)) <= width else [*lines, row("", (f"({legend})", "dim"))]


# --- table ---


def node_table(view: RunView, *, everything: bool) -> list[Line]:
    """List the nodes that differ, and count the others; with `everything`, list all."""
    nodes = view.node_views if view.nodes_fresh else ()
    listed = [one for one in nodes if everything or one.differs]
    if not listed:
        return []
    lines = node_rows(listed, shrunk=view.lacking > 0)
    waiting = 0 if everything else sum(one.state == "waiting" and not one.differs for one in nodes)
    well = len(nodes) - len(listed) - waiting
    rest = [f"{several(well, 'node')} ok"] if well else []
    rest += [f"{several(waiting, 'node')} waiting"] if waiting else []
    if rest:
        lines.append(line((f"{', '.join(rest)}, not listed (--all lists them)", "dim")))
    return lines


def node_rows(nodes: Sequence[NodeView], *, shrunk: bool = False) -> list[Line]:
    """Return the column heads and a line per node.

    shrunk: the run continues on fewer nodes, so nothing has replaced a node without ranks.
    To fit 80 columns, GPU and WORST are left out if empty; with them, RANKS is shown only if some ranks have ended.
    """
    shown = any(one.gpus is not None for one in nodes)
    left = set() if shown else {"GPU", "WORST"}
    left |= {"WORST"} if not any(worst(one)[0] for one in nodes) else set()
    left |= {"RANKS"} if shown and all(one.alive >= one.ranks for one in nodes) else set()
    kept = [i for i, name in enumerate(_HEAD) if name not in left]
    body = [_row(one, "left out" if shrunk else "replaced") for one in nodes]
    return table(tuple(_HEAD[i] for i in kept), [tuple(one[i] for i in kept) for one in body], _RIGHT)


def _row(one: NodeView, out: str) -> tuple[str | Span, ...]:
    step = count(one.step) if one.step >= 0 else ""
    beat = brief(one.beat_age) if one.beat_age is not None else ""
    ranks: str | Span = f"{one.alive}/{one.ranks}" if one.ranks else ""
    if one.alive < one.ranks:
        ranks = (f"{one.alive}/{one.ranks}", "bad")
    doing = "" if one.phase in ("", "step") else f"in {one.phase}"
    role = {"spare": "spare", "out": out}.get(one.role, "")
    note = "; ".join(x for x in (role, doing, one.note) if x)
    return one.node, (one.state, TONES[one.state]), step, beat, ranks, answering(one), worst(one), note


# --- GPUs ---


def answering(one: NodeView) -> Span:
    """Return `8/8`; "" if the node reports no GPUs."""
    gpus = one.gpus
    if gpus is None:
        return "", ""
    known = "?" if gpus.answering is None else str(gpus.answering)
    return f"{known}/{gpus.expected}", "bad" if (gpus.answering or 0) < gpus.expected else ""


def worst(one: NodeView) -> Span:
    """Return `gpu3 88 C, heavy`, with its age if it is old; "" if all is well."""
    gpus = one.gpus
    if gpus is None:
        return "", ""
    if not gpus.old(one.gpus_age):
        return gpus.worst, _GPU_TONES.get(gpus.level, "")
    return ", ".join(x for x in (gpus.worst, f"{brief(one.gpus_age)} old") if x), "dim"


def gpu_rows(one: NodeView) -> list[Line]:
    """Return the readings of all GPUs of a node together, then each GPU that needs attention."""
    node = one.gpus
    if node is None:
        return []
    gpus = gpus_of(node)
    number, tone = answering(one)
    old = " (old)" if node.old(one.gpus_age) else ""
    what = (f"  {node.worst}", _GPU_TONES.get(node.level, "")) if node.worst else ""
    lines = [row("gpus", (f"{number} respond", tone), f", read {age(one.gpus_age)} ago{old}", what)]
    if any(gpu.busy is not None for gpu in gpus):
        lines.append(row("", "util " + " ".join("-" if x.busy is None else str(x.busy) for x in gpus) + " %"))
    common = "   ".join(x for x in (_heat(gpus), _power(gpus), _memory(gpus)) if x)
    lines += [row("", common)] if common else []
    lines.append(row("", "   ".join(x for x in (_ecc(gpus), _xid(node, one.gpus_age)) if x)))
    now = node.wall + one.gpus_age
    return lines + [
        row(f"gpu{gpu.index}", problems, (f"  {gpu.uuid}" if gpu.uuid else "", "dim"))
        for gpu in gpus
        if (problems := _problems(gpu, now))
    ]


def _heat(gpus: Iterable[GpuStatus]) -> str:
    found, limits = _spread(gpu.heat for gpu in gpus), _spread(gpu.slowdown for gpu in gpus)
    return f"temp {found} C" + (f", slowdown at {limits}" if limits else "") if found else ""


def _power(gpus: Iterable[GpuStatus]) -> str:
    found, limits = _spread(gpu.power for gpu in gpus), _spread(gpu.power_limit for gpu in gpus)
    return f"power {found}{f' of {limits}' if limits else ''} W" if found else ""


def _memory(gpus: Iterable[GpuStatus]) -> str:
    used = _spread(gpu.memory_used / _GIB for gpu in gpus if gpu.memory_used is not None)
    whole = _spread(gpu.memory_total / _GIB for gpu in gpus if gpu.memory_total is not None)
    return f"memory {used}{f' of {whole}' if whole else ''} GiB" if used else ""


def _ecc(gpus: Iterable[GpuStatus]) -> str:
    hard = [gpu.ecc_uncorrected for gpu in gpus if gpu.ecc_uncorrected is not None]
    soft = sum(gpu.ecc_corrected or 0 for gpu in gpus)
    return f"ECC {count(sum(hard))}{f', {count(soft)} corrected' if soft else ''}" if hard else ""


def _xid(node: NodeGpus, old: float) -> str:
    if node.xid is not None and node.xid_at is not None:
        where = f" on gpu{node.xid_gpu}" if node.xid_gpu is not None else ""
        return f"Xid {node.xid}{where} {age(node.wall + old - node.xid_at)} ago"
    return f"Xid none in {span(node.wall - node.xids_since)}" if node.xids_since is not None else "Xids not monitored"


def _problems(gpu: GpuStatus, now: float) -> str:
    """now: by the node's clock."""
    found = [
        f"no answer: {gpu.trouble}" if gpu.trouble else "",
        f"{gpu.heat} C, {gpu.warmth}" if gpu.warmth in ("moderate", "heavy") else "",
        f"throttled: {', '.join(gpu.throttle)}" if gpu.throttle else "",
        f"{count(gpu.ecc_uncorrected)} uncorrected ECC errors" if gpu.ecc_uncorrected else "",
        "row remapping has failed" if gpu.rows_failed else "row remapping is pending" if gpu.rows_pending else "",
        "page retirement is pending" if gpu.pages_pending else "",
        f"Xid {gpu.xid} {age(now - gpu.xid_at)} ago" if gpu.xid is not None and gpu.xid_at is not None else "",
    ]
    return "; ".join(x for x in found if x)


def _spread(values: Iterable[float | None]) -> str:
    """Return `41-44`, or the common value, or "" if no value is known."""
    known = [round(value) for value in values if value is not None]
    if not known:
        return ""
    return str(known[0]) if min(known) == max(known) else f"{min(known)}-{max(known)}"
