"""`transom status`, `list`, `stop`: what a person asks about a run, and the one thing they tell it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.complete import run_ids
from transom_cli.cli.looking import show_list, show_status
from transom_cli.errors import Unknown

if TYPE_CHECKING:
    from transom_cli.core.state import State
    from transom_cli.layout import RunDir

Run = Annotated[str | None, typer.Argument(help="Run id, name or path [default: the newest].", autocompletion=run_ids)]
Root = Annotated[Path | None, typer.Option("--root", help="Where run directories live.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR in the environment does the same.")]

STOP_PATIENCE = 60.0  # seconds: Slurm gives a job 30 between TERM and KILL, in which it may save


def status(
    run: Run = None,
    root: Root = None,
    json_: Json = False,
    everything: Annotated[bool, typer.Option("--all", help="Every node and every incident.")] = False,
    phases: Annotated[bool, typer.Option("--phases", help="And what each rank spends a step on.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="0 healthy, 20 degraded, 21 held, 22 unknown; of a run that is over, its own."
        ),
    ] = False,
    no_color: NoColor = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="The live screen; piped, a line for each change.")
    ] = False,
) -> None:
    """How is my run? One screen, once.

    The first line has the answer. A letter for each node: . ok, s slow, ! silent, ? suspect, p probing, x isolated,
    - not heard of yet.

    Examples: transom status; transom status llama-70b --all; transom status --watch; transom status --json | jq .step
    """
    _leave(show_status(run, root, json_, everything, phases, exit_code, no_color, watch))


def list_(root: Root = None, json_: Json = False, no_color: NoColor = False) -> None:
    """All my runs, newest first.

    FOR: how long a run has been so, or how long it took. AGE: since it was submitted.
    """
    _leave(show_list(root, json_, no_color))


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)


def stop(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """Cancel the run's job and end the run. Exit code 22 when it has not ended within a minute."""
    import json

    from transom_cli.cli.operating import forget_operator
    from transom_cli.cli.unanswered import bounded
    from transom_cli.submit.rundir import find_run
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive
    from transom_cli.supervise.operator.background import start_operator
    from transom_cli.ui.waiting import waiting
    from transom_cli.wiring.settings import runs_root
    from transom_cli.wiring.slurm import require_own_cluster

    found = find_run(bounded(runs_root(root), run), run)
    state = fold(found.journal).state
    already = " already" if state.phase.over else ""
    if not already:
        if operator_alive(found) is None:
            require_own_cluster(found)  # else an operator is started that may do nothing
        _ask_to_stop(found, state)
        with waiting(f"{found.run_id} is asked to stop: ranks may save, Slurm gives them 30 s"):
            if operator_alive(found) is None:
                start_operator(found)
            state = _until_over(found)
        _require_stopped(found, state)
        forget_operator(found)
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "phase": state.phase.value, "was_over": bool(already)}))
    else:
        print(f"run {found.run_id} {'is over' if already else state.phase.value}{already}", file=sys.stderr)


def _require_stopped(run: RunDir, state: State) -> None:
    from transom_cli.slurm.byhand import by_hand
    from transom_cli.ui.asked import read_asked

    if not state.phase.over:
        why = f"Slurm does not answer: {state.slurm_lost}" if state.slurm_lost else f"it is {state.phase.value}"
        hint = f"The request stands, and the operator goes on; look with `transom status {run.run_id}`."
        raise Unknown(f"Run `{run.run_id}` has not stopped yet", why, hint)
    if state.exit_code == Unknown.exit_code:
        scancel = by_hand(f"scancel {state.job_id}", read_asked(run).cluster)
        raise Unknown(f"Job {state.job_id} may live on", state.verdict, scancel)


def _ask_to_stop(run: RunDir, state: State) -> None:
    import getpass
    import json
    import os
    import socket
    import time

    from transom_cli.files import publish_text
    from transom_cli.slurm.byhand import by_hand
    from transom_cli.submit.rundir import explain
    from transom_cli.ui.asked import read_asked

    asked = {"ask": "stop", "who": f"{getpass.getuser()} on {socket.gethostname()}"}
    try:
        run.requests.mkdir(mode=0o700, exist_ok=True)
        publish_text(run.requests / f"stop-{time.time_ns()}-{os.getpid()}.json", json.dumps(asked))
    except OSError as error:
        scancel = by_hand(f"scancel {state.job_id}", read_asked(run).cluster)
        instead = f"end the job by hand: `{scancel}`" if state.job_id else "ask the run's owner"
        raise explain(error, run.requests, doing="put a request into", instead=instead) from error


def _until_over(run: RunDir) -> State:
    import time

    from transom_cli.supervise.journal import fold

    deadline = time.monotonic() + STOP_PATIENCE
    while not (state := fold(run.journal).state).phase.over and time.monotonic() < deadline:
        time.sleep(0.2)
    return state
