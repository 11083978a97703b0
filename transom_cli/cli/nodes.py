"""`transom nodes`: the nodes that your runs keep away from, why and until when; and the end of that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.complete import run_ids
from transom_cli.errors import NotPermitted, Unknown, UsageError

if TYPE_CHECKING:
    from transom_cli.health.history.fold import NodeHistory
    from transom_cli.slurm.port import Node
    from transom_cli.supervise.operator.lifting import Lifted


def nodes(
    lift: Annotated[
        str | None, typer.Option("--lift", metavar="NODES", help="Use these nodes again, as n3 or n[1-4],n7.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Of this run only: its id, name or path.", autocompletion=run_ids)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also what has ended, of the last 90 days.")] = False,
    root: Annotated[Path | None, typer.Option("--root", help="Where run directories live.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """The nodes that your runs isolated: why, until when, and which of them fail again and again."""
    import os
    import time

    from transom_cli.health.history.files import history_dir, read_history
    from transom_cli.health.history.fold import fold
    from transom_cli.submit.rundir import explain, find_run
    from transom_cli.wiring.settings import runs_root

    of_run = find_run(runs_root(root), run).run_id if run is not None else ""
    folder, now = history_dir(os.environ), time.time()
    try:
        history = fold(read_history(folder, now), now)
    except OSError as error:
        raise explain(error, folder, doing="read the history in", instead="set TRANSOM_STATE_DIR") from error
    if lift is None:
        _list(history, of_run, now, ended=all_, json_=json_)
    else:
        _lift(history, _names(lift), of_run, folder, json_=json_)


def _names(expression: str) -> tuple[str, ...]:
    from transom_cli.slurm.parse import parse_nodes
    from transom_cli.slurm.port import SlurmUnknown

    try:
        names, why = parse_nodes(expression), "it names none"
    except SlurmUnknown as error:
        names, why = (), error.why
    if not names:
        raise UsageError(f"`--lift {expression}` is not a list of nodes", why, "as n3 or n[1-4],n7")
    return names


def _list(history: NodeHistory, run: str, now: float, *, ended: bool, json_: bool) -> None:
    import json
    import os
    import shutil
    from dataclasses import asdict

    from transom_cli.config.load import load
    from transom_cli.core.codec import plain
    from transom_cli.health.checks import limits_of
    from transom_cli.health.history.lemons import HistoryLimits, judge_history
    from transom_cli.ui.nodes import lemon_lines, node_lines, node_rows

    told, here, silent = _ask_slurm(history)
    rows = [row for row in node_rows(history, told, ended=ended) if run in ("", row.run)]
    limits = limits_of(HistoryLimits, load(None, {}, os.environ).health.limits)
    lemons = () if run else judge_history(history, limits)  # they are those of all runs together
    if json_:
        document = {"schema": 1, "nodes": [asdict(row) for row in rows], "lemons": plain(lemons), "slurm": silent}
        print(json.dumps(document))
        return
    width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000
    blocks = ["\n".join(node_lines(row, now, width, here)) for row in rows]
    blocks += ["\n".join(lemon_lines(lemons, width))] if lemons else []
    print("\n\n".join(blocks) or "no node is kept away by your runs")
    if silent:
        print(f"warning: Slurm does not answer, so nothing is said of what it shows: {silent}", file=sys.stderr)


def _ask_slurm(history: NodeHistory) -> tuple[dict[str, dict[str, Node]], str, str]:
    """The nodes that Slurm knows, by cluster and name; the name of the cluster here; and an error of Slurm's, or ""."""
    from transom_cli.errors import TransomError
    from transom_cli.slurm.known import known_nodes
    from transom_cli.wiring.slurm import slurm_client

    told: dict[str, dict[str, Node]] = {}
    silent = ""
    try:
        here = _cluster_here(history)
    except TransomError as error:
        return told, "", error.why or error.what
    for cluster in sorted({s.isolation.cluster for s in history.standings}):
        names = tuple(sorted({s.isolation.node for s in history.standings if s.isolation.cluster == cluster}))
        try:
            slurm = slurm_client(cluster=_asked(cluster, here))
            told[cluster] = {node.name: node for node in known_nodes(slurm, names)}
        except TransomError as error:  # the others may answer all the same
            silent = error.why or error.what
    return told, here, silent


def _cluster_here(history: NodeHistory) -> str:
    """The name of the cluster that Slurm's commands speak to; "" where no isolation names one. The port's errors."""
    from transom_cli.wiring.slurm import cluster_name

    return cluster_name() if any(s.isolation.cluster for s in history.standings) else ""


def _asked(cluster: str, here: str) -> str:
    """As Slurm's commands are to be told: the one here needs no name, and no slurmdbd then."""
    return "" if cluster == here else cluster


def _lift(history: NodeHistory, names: tuple[str, ...], run: str, folder: Path, *, json_: bool) -> None:
    import getpass
    import json
    import os
    import socket
    from dataclasses import asdict

    from transom_cli.config.load import load
    from transom_cli.errors import TransomError, printable
    from transom_cli.submit.rundir import explain
    from transom_cli.supervise.operator.lifting import lift, to_lift
    from transom_cli.wiring.slurm import slurm_client

    to_lift(history, names, run)
    try:
        here = _cluster_here(history)
    except TransomError:  # it is asked for each node below, and told then
        here = ""
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    spool = load(None, {}, os.environ).isolate.drain_spool
    try:
        lifted = lift(history, names, run, who, folder, lambda name: slurm_client(cluster=_asked(name, here)), spool)
    except OSError as error:
        raise explain(error, folder, doing="write into", instead="set TRANSOM_STATE_DIR") from error
    if not json_:
        for one in lifted:
            told = f"; told: {', '.join(one.told)}" if one.told else ""
            slurm = f"{one.slurm} ({one.why})" if one.why else one.slurm
            print(printable(f"{one.node}: no run keeps off it any more{told}; Slurm: {slurm}"), file=sys.stderr)
    _require_resumed(lifted, here)
    if json_:
        print(json.dumps({"schema": 1, "lifted": [asdict(one) for one in lifted]}))


def _require_resumed(lifted: list[Lifted], here: str) -> None:
    from transom_cli.slurm.byhand import by_hand
    from transom_cli.supervise.operator.lifting import DENIED, UNKNOWN

    for word, error in ((DENIED, NotPermitted), (UNKNOWN, Unknown)):
        left = [one for one in lifted if one.slurm == word]
        if left:
            names = ",".join(one.node for one in left)
            what = f"{names}: your runs no longer keep off, but Slurm may"
            there = _asked(left[0].cluster, here)
            of_it = ",".join(one.node for one in left if one.cluster == left[0].cluster)
            hint = by_hand(f"scontrol update nodename={of_it} state=resume", there)
            raise error(what, left[0].why, f"an administrator resumes with: {hint}" if word == DENIED else hint)
