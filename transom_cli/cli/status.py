"""`transom status`, `transom list` and `transom stop`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.options import run_ids
from transom_cli.cli.show import show_list, show_status
from transom_cli.errors import Unknown

if TYPE_CHECKING:
    from transom_cli.core.operator.state import State
    from transom_cli.layout import RunDir

Run = Annotated[
    str | None, typer.Argument(help="Run ID, name or path [default: the newest run].", autocompletion=run_ids)
]
Root = Annotated[Path | None, typer.Option("--root", help="Folder that holds the run directories.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
NoColor = Annotated[
    bool, typer.Option("--no-color", help="Do not use colours (NO_COLOR in the environment does the same).")
]

STOP_PATIENCE = 60.0  # seconds; Slurm gives a job 30 s between TERM and KILL, in which it may save


def status(
    run: Run = None,
    root: Root = None,
    json_: Json = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every node and every incident.")] = False,
    phases: Annotated[bool, typer.Option("--phases", help="Also show how each rank spends a step.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with 0 (healthy), 20 (degraded), 21 (held), 22 (unknown), or the code that the run ended with.",
        ),
    ] = False,
    no_color: NoColor = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the live screen; in a pipe, one line per change.")
    ] = False,
) -> None:
    """Show the state of a run on one screen.

    The first line has the answer. Each node has a letter: . ok, s slow, ! silent, ? suspect, p probing, x isolated,
    - no sign yet.

    Examples: transom status; transom status llama-70b --all; transom status --watch; transom status --json | jq .step
    """
    _leave(show_status(run, root, json_, everything, phases, exit_code, no_color, watch))


def list_(root: Root = None, json_: Json = False, no_color: NoColor = False) -> None:
    """List your runs, newest first.

    FOR: time in this state, or the duration of a run that has ended. AGE: time since submission.
    """
    _leave(show_list(root, json_, no_color))


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)


def stop(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """Cancel the run's job and end the run. Exit code 22: it has not ended within a minute."""
    import json

    from transom_cli.bootstrap.slurm import require_own_cluster
    from transom_cli.cli.common import bounded, run_to_act_on
    from transom_cli.cli.run import cancel_pending_operator
    from transom_cli.config.run_settings import runs_root
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive
    from transom_cli.supervise.operator.background import start_operator
    from transom_cli.view.terminal import waiting

    found = run_to_act_on(bounded(runs_root(root), run), run)
    state = fold(found.journal).state
    already = " already" if state.phase.over else ""
    if not already:
        if operator_alive(found) is None:
            require_own_cluster(found)  # else a new operator could do nothing
        _ask_to_stop(found, state)
        with waiting(f"stopping {found.run_id}: ranks may save, Slurm gives them 30 s"):
            if operator_alive(found) is None:
                start_operator(found)
            state = _until_over(found)
        _require_stopped(found, state)
        cancel_pending_operator(found)
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "phase": state.phase.value, "was_over": bool(already)}))
    else:
        print(f"run {found.run_id} {'is over' if already else state.phase.value}{already}", file=sys.stderr)


def _require_stopped(run: RunDir, state: State) -> None:
    from transom_cli.slurm.port import cluster_command
    from transom_cli.view.read import read_run_settings

    if not state.phase.over:
        why = f"Slurm does not respond: {state.slurm_error}" if state.slurm_error else f"it is {state.phase.value}"
        hint = f"The operator continues to stop it; check with `transom status {run.run_id}`."
        raise Unknown(f"Run `{run.run_id}` has not stopped yet", why, hint)
    if state.exit_code == Unknown.exit_code:
        scancel = cluster_command(f"scancel {state.job.id}", read_run_settings(run).cluster)
        raise Unknown(f"Job {state.job.id} may still be running", state.verdict, scancel)


def _ask_to_stop(run: RunDir, state: State) -> None:
    import getpass
    import json
    import os
    import socket
    import time

    from transom_cli.files import publish_text
    from transom_cli.slurm.port import cluster_command
    from transom_cli.submit.rundir import path_error
    from transom_cli.view.read import read_run_settings

    request = {"ask": "stop", "who": f"{getpass.getuser()} on {socket.gethostname()}"}
    try:
        run.requests.mkdir(mode=0o700, exist_ok=True)
        publish_text(run.requests / f"stop-{time.time_ns()}-{os.getpid()}.json", json.dumps(request))
    except OSError as error:
        scancel = cluster_command(f"scancel {state.job.id}", read_run_settings(run).cluster)
        instead = f"cancel the job yourself: `{scancel}`" if state.job.id else "ask the run's owner"
        raise path_error(error, run.requests, doing="write a request to", instead=instead) from error


def _until_over(run: RunDir) -> State:
    import time

    from transom_cli.supervise.journal import fold

    deadline = time.monotonic() + STOP_PATIENCE
    while not (state := fold(run.journal).state).phase.over and time.monotonic() < deadline:
        time.sleep(0.2)
    return state
