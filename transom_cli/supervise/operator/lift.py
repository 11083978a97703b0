"""Lifts isolations on request: in the history, in active runs, and in Slurm where transom drained the node."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.errors import TransomError, UsageError
from transom_cli.health.history.files import write_lift
from transom_cli.health.history.nodes import NodeHistory
from transom_cli.health.history.records import Lift
from transom_cli.layout import RunDir
from transom_cli.ownership import require_own
from transom_cli.slurm.port import Node, Slurm, SlurmDenied
from transom_cli.slurm.successor import known_nodes
from transom_cli.supervise.journal import fold
from transom_cli.supervise.operator.drain import is_ours, withdraw
from transom_cli.supervise.requests import LIFT, write_request

DENIED = "denied"
UNKNOWN = "unknown"
DOWN = "it is down; once it responds: scontrol update nodename={} state=resume"
WITHDRAWN = "the request to drain it is withdrawn"


@dataclass(frozen=True)
class Lifted:
    """The result for one node."""

    node: str
    told: tuple[str, ...]  # the active runs that received the request
    slurm: str  # resumed, no longer drained (but down), not drained, denied, unknown, or why it was not ours to resume
    why: str = ""  # Slurm's message if it refused or did not answer
    cluster: str = ""  # as the isolations name it


def to_lift(history: NodeHistory, nodes: tuple[str, ...], run: str) -> None:
    """Raise UsageError unless each node was isolated by a run of this user; by `run`, if that is given."""
    known = {s.isolation.node for s in history.statuses if run in ("", s.isolation.run)}
    stand = sorted({s.isolation.node for s in history.active if run in ("", s.isolation.run)})
    unknown = [n for n in nodes if n not in known]
    if unknown:
        whose = f"run `{run}`" if run else "a run of yours"
        raise UsageError(
            f"not isolated by {whose}: {', '.join(f'`{n}`' for n in unknown)}",
            f"isolated nodes: {', '.join(stand) or 'none'}",
            "`transom nodes --all` also lists past isolations; use `scontrol` for nodes that somebody else drained",
        )


def lift(
    history: NodeHistory,
    nodes: tuple[str, ...],
    run: str,
    who: str,
    folder: Path,
    run_slurm: Callable[[str], Slurm],
    spool: Path | None = None,
) -> list[Lifted]:
    """Lift isolations, first in the history: no run of this user avoids these nodes then, whatever Slurm says later.

    Args:
        run_slurm: Returns the client of a cluster, by its name in the isolations.
        spool: Where a request to drain one of the nodes may still exist; it is withdrawn.

    Raises:
        OSError: The history, or a run's request, cannot be written.
    """
    write_lift(folder, Lift(time.time(), who, nodes, run))
    told = _tell_runs(history, nodes, run, who)
    withdrawn = tuple(node for node in nodes if spool is not None and _withdraw(spool, node))
    lifted: list[Lifted] = []
    for cluster, names in _by_cluster(history, nodes, run).items():
        slurm = run_slurm(cluster)
        try:
            known = {n.name: n for n in known_nodes(slurm, names)}
        except TransomError as error:
            lifted += [Lifted(node, told[node], UNKNOWN, error.why or error.what, cluster) for node in names]
            continue
        of = replace(history, isolations=tuple(i for i in history.isolations if i.cluster == cluster))
        lifted += [Lifted(n, told[n], *_resume(of, known.get(n), run, slurm), cluster=cluster) for n in names]
    return [replace(one, why=one.why or WITHDRAWN) if one.node in withdrawn else one for one in lifted]


def _by_cluster(history: NodeHistory, nodes: tuple[str, ...], run: str) -> dict[str, tuple[str, ...]]:
    """Group the nodes by cluster. Two clusters may have nodes of the same name."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        ours = (i.cluster for i in history.isolations if i.node == node and run in ("", i.run))
        for cluster in dict.fromkeys(ours):
            found[cluster] = (*found.get(cluster, ()), node)
    return found


def _withdraw(spool: Path, node: str) -> bool:
    try:
        return withdraw(spool, node)
    except OSError:
        return False  # it is held to what the user's jobs do then, and grows too old within an hour


def _tell_runs(history: NodeHistory, nodes: tuple[str, ...], run: str, who: str) -> dict[str, tuple[str, ...]]:
    """Send the request to active runs. Return by node the runs that received it."""
    told: dict[str, tuple[str, ...]] = dict.fromkeys(nodes, ())
    ours = (s.isolation for s in history.statuses if s.isolation.node in told and run in ("", s.isolation.run))
    of_run: dict[str, list[str]] = {}
    for one in ours:
        of_run.setdefault(one.folder, []).append(one.node)
    for folder, its in of_run.items():
        if _ask(RunDir(Path(folder)), its, who):
            told.update({node: (*told[node], RunDir(Path(folder)).run_id) for node in its})
    return told


def _ask(run: RunDir, nodes: list[str], who: str) -> bool:
    """Write the request into a run's directory. Return False if the run is over, gone, or not this user's alone."""
    try:
        require_own(run)
        if fold(run.journal).state.phase.over:
            return False
    except TransomError:
        return False
    write_request(run, LIFT, who, nodes=nodes)
    return True


def _resume(history: NodeHistory, node: Node | None, run: str, slurm: Slurm) -> tuple[str, str]:
    if node is None:
        return "not a node of this cluster", ""
    if not node.drain:
        return "not drained", DOWN.format(node.name) if node.state == "down" else ""
    runs = {i.run for i in history.isolations if i.node == node.name and run in ("", i.run)}
    if not any(is_ours(node, one) for one in runs):
        return f"left drained by {node.reason_user or 'somebody'}: {node.reason}", ""
    try:
        slurm.undrain(node.name, reason=node.reason)
    except SlurmDenied as error:
        return DENIED, error.why or error.what
    except TransomError as error:  # somebody was quicker, or Slurm is silent
        return UNKNOWN, error.why or error.what
    down = node.state == "down" and node.not_responding
    silent = "it does not respond yet" if node.not_responding else ""
    return ("no longer drained", DOWN.format(node.name)) if down else ("resumed", silent)
