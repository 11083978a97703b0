"""`transom nodes`: list the nodes that your runs have isolated, why and until when, and lift isolations."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.common import run_to_read
from transom_cli.cli.options import Json, Root, run_ids
from transom_cli.errors import NotPermitted, TransomError, Unknown, UsageError, printable
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Node, Slurm, SlurmUnknown, cluster_command
from transom_cli.view.text import NEVER_CUT

if TYPE_CHECKING:
    from transom_cli.health.history.nodes import NodeHistory
    from transom_cli.supervise.operator.lift import Lifted


def nodes(
    lift: Annotated[
        str | None, typer.Option("--lift", metavar="NODES", help="Use these nodes again, such as n3 or n[1-4],n7.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Only nodes of this run (ID, name or path).", autocompletion=run_ids)
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also show isolations of the last 90 days that have ended.")
    ] = False,
    root: Root = None,
    json_: Json = False,
) -> None:
    """List isolated nodes and repeat offenders."""

    from transom_cli.health.history.files import history_dir, read_history
    from transom_cli.health.history.nodes import fold
    from transom_cli.ownership import is_own
    from transom_cli.submit.rundir import path_error

    found = run_to_read(root, run) if run is not None else None
    if lift is not None and found is not None and not is_own(found):
        _request_lift(found, _names(lift), json_=json_)
        return
    of_run = found.run_id if found is not None else ""
    folder, now = history_dir(os.environ), time.time()
    try:
        history = fold(read_history(folder, now), now)
    except OSError as error:
        raise path_error(error, folder, doing="read the node history in", instead="set TRANSOM_STATE_DIR") from error
    if lift is None:
        _list(history, of_run, now, ended=all_, json_=json_)
    else:
        _lift(history, _names(lift), of_run, folder, json_=json_)


def _names(expression: str) -> tuple[str, ...]:
    from transom_cli.slurm.parse import parse_nodes

    try:
        names, why = parse_nodes(expression), "It names no node."
    except SlurmUnknown as error:
        names, why = (), error.why
    if not names:
        raise UsageError(f"`--lift {expression}` is not a list of nodes", why, "Write it as n3 or n[1-4],n7.")
    return names


def _list(history: NodeHistory, run: str, now: float, *, ended: bool, json_: bool) -> None:

    from transom_cli.config.load import load
    from transom_cli.core.codec import plain
    from transom_cli.health.check import limits_of
    from transom_cli.health.history.nodes import HistoryLimits, judge_history
    from transom_cli.slurm.parse import fold_nodes
    from transom_cli.view.tables import node_lines, node_rows, repeat_offender_lines
    from transom_cli.view.terminal import width

    known, here, error = _ask_slurm(history)
    rows = [row for row in node_rows(history, known, ended=ended) if run in ("", row.standing.isolation.run)]
    limits = limits_of(HistoryLimits, load(None, {}, os.environ).health.limits)
    offenders = () if run else judge_history(history, limits)  # judged over all runs
    if json_:
        found = [row.as_json() for row in rows]
        print(json.dumps({"schema": 1, "nodes": found, "repeat_offenders": plain(offenders), "slurm": error}))
        return
    room = width() or NEVER_CUT
    blocks = ["\n".join(node_lines(row, now, room, here)) for row in rows]
    blocks += ["\n".join(repeat_offender_lines(offenders, room))] if offenders else []
    none = "no node is isolated by your runs now"
    if not blocks and not ended and node_rows(history, known, ended=True):
        none += "; `transom nodes --all` shows isolations that ended, such as those of runs that are over"
    print("\n\n".join(blocks) or none)
    if held := [row.standing.isolation.node for row in rows if not row.ended]:
        print(f"hint: transom nodes --lift {fold_nodes(dict.fromkeys(held))}", file=sys.stderr)
    if error:
        print(f"warning: Slurm does not answer, so the nodes' states in Slurm are missing: {error}", file=sys.stderr)


def _ask_slurm(history: NodeHistory) -> tuple[dict[str, dict[str, Node]], str, str]:
    """Return nodes by cluster and name as Slurm knows them, the name of the cluster here, and Slurm's error or ""."""
    from transom_cli.bootstrap.slurm import slurm_client
    from transom_cli.slurm.successor import known_nodes

    known: dict[str, dict[str, Node]] = {}
    failed = ""
    try:
        here = _cluster_here(history)
    except TransomError as error:
        return known, "", error.why or error.what
    for cluster in sorted({s.isolation.cluster for s in history.statuses}):
        names = tuple(sorted({s.isolation.node for s in history.statuses if s.isolation.cluster == cluster}))
        try:
            slurm = slurm_client(cluster=_cluster_option(cluster, here))
            known[cluster] = {node.name: node for node in known_nodes(slurm, names)}
        except TransomError as error:  # other clusters may still answer
            failed = error.why or error.what
    return known, here, failed


def _cluster_here(history: NodeHistory) -> str:
    """Return the name of the cluster that Slurm's commands talk to; "" if no isolation names one."""
    from transom_cli.bootstrap.slurm import cluster_name

    return cluster_name() if any(s.isolation.cluster for s in history.statuses) else ""


def _cluster_option(cluster: str, here: str) -> str:
    """Return the cluster to name in Slurm's commands: "" for the one here, which then needs no slurmdbd."""
    return "" if cluster == here else cluster


def _lift(history: NodeHistory, names: tuple[str, ...], run: str, folder: Path, *, json_: bool) -> None:
    import socket

    from transom_cli.bootstrap.slurm import slurm_client
    from transom_cli.config.load import load
    from transom_cli.health.history.files import read_history
    from transom_cli.health.history.nodes import fold
    from transom_cli.health.history.shared import publish
    from transom_cli.submit.rundir import path_error
    from transom_cli.supervise.operator.lift import lift, to_lift

    to_lift(history, names, run)
    try:
        here = _cluster_here(history)
    except TransomError:  # reported per node below
        here = ""
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    isolate = load(None, {}, os.environ).isolate

    def client(cluster: str) -> Slurm:
        return slurm_client(cluster=_cluster_option(cluster, here))

    try:
        lifted = lift(history, names, run, who, folder, client, isolate.drain_spool)
        if isolate.shared_history is not None:
            now = time.time()
            publish(isolate.shared_history, fold(read_history(folder, now), now))
    except OSError as error:
        raise path_error(error, folder, doing="write into", instead="set TRANSOM_STATE_DIR") from error
    if not json_:
        for one in lifted:
            runs = f" (notified: {', '.join(one.told)})" if one.told else ""
            slurm = f"{one.slurm} ({one.why})" if one.why else one.slurm
            print(printable(f"{one.node}: your runs may use it again{runs}; Slurm: {slurm}"), file=sys.stderr)
    _require_resumed(lifted, here)
    if json_:
        print(json.dumps({"schema": 1, "lifted": [asdict(one) for one in lifted]}))


def _request_lift(found: RunDir, names: tuple[str, ...], *, json_: bool) -> None:
    """Ask the operator of another user's run to use the nodes again."""

    from transom_cli.cli.requests import await_request, submit_request

    result = await_request(found, submit_request(found, "lift", nodes=list(names))).result
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "request": "lift", "result": result}))
        return
    print(printable(f"run {found.run_id}: {result}; a node that Slurm drains stays drained"), file=sys.stderr)


def _require_resumed(lifted: list[Lifted], here: str) -> None:
    from transom_cli.supervise.operator.lift import DENIED, UNKNOWN

    for word, error in ((DENIED, NotPermitted), (UNKNOWN, Unknown)):
        drained = [one for one in lifted if one.slurm == word]
        if drained:
            names = ",".join(one.node for one in drained)
            what = f"{names}: your runs may use it again, but Slurm may still drain it"
            cluster = _cluster_option(drained[0].cluster, here)
            same = ",".join(one.node for one in drained if one.cluster == drained[0].cluster)
            command = cluster_command(f"scontrol update nodename={same} state=resume", cluster)
            hint = f"An administrator can resume it: {command}" if word == DENIED else command
            raise error(what, drained[0].why, hint)
