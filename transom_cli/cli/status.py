"""`transom status`, `list`, `explain`, `stop`: what a person asks about a run, and the one thing they tell it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.complete import run_ids
from transom_cli.errors import Unknown, UsageError

if TYPE_CHECKING:
    from transom_cli.core.state import State
    from transom_cli.layout import RunDir
    from transom_cli.ui.view import RunView

Run = Annotated[str | None, typer.Argument(help="Run id, name or path [default: the newest].", autocompletion=run_ids)]
Root = Annotated[Path | None, typer.Option("--root", help="Where run directories live.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]

_BY_PHASE = {"held": 21, "recovering": 20, "failed": 1, "stopped": 1}
STOP_PATIENCE = 60.0  # seconds: Slurm gives a job 30 between TERM and KILL, in which it may save


def status(
    run: Run = None,
    root: Root = None,
    json_: Json = False,
    phases: Annotated[bool, typer.Option("--phases", help="And what each rank spends a step on.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="0 healthy, 20 degraded, 21 held, 22 unknown; of a run that is over, its own."
        ),
    ] = False,
) -> None:
    """How is my run? One screen, once."""
    import json
    import math
    import shutil

    from transom_cli.submit.rundir import find_run
    from transom_cli.ui.read import read_view
    from transom_cli.ui.render import phase_lines, status_lines
    from transom_cli.wiring import runs_root

    view = read_view(find_run(runs_root(root), run), patience=3.0)
    if json_:
        loss = view.loss if view.loss is not None and math.isfinite(view.loss) else None  # JSON has no word for others
        print(json.dumps({"schema": 1, **asdict(view), "loss": loss}))
    else:
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10_000
        print("\n".join([*status_lines(view, width), *(["", *phase_lines(view, width)] if phases else [])]))
    if exit_code:
        raise typer.Exit(_code(view))


def _code(view: RunView) -> int:
    if view.over and view.exit_code is not None:
        return view.exit_code
    unknown = not view.over and (not view.operator or bool(view.slurm_lost))
    return 22 if unknown else _BY_PHASE.get(view.phase, 0)


def list_(root: Root = None, json_: Json = False) -> None:
    """All my runs, newest first."""
    import json

    from transom_cli.errors import TransomError
    from transom_cli.submit.rundir import list_runs
    from transom_cli.ui.read import read_view
    from transom_cli.ui.render import headline
    from transom_cli.wiring import runs_root

    rows = []
    for run in list_runs(runs_root(root)):
        try:
            view = read_view(run)
        except TransomError as error:
            print(f"warning: {run.run_id}: {error.what}", file=sys.stderr)
            continue
        told = {"run_id": view.run_id, "phase": view.phase, "job_id": view.job_id, "step": view.step}
        rows.append({**told, "verdict": view.verdict})
        if not json_:
            print(headline(view) + (f"  {view.verdict}" if view.phase == "held" else ""))
    if json_:
        print(json.dumps({"schema": 1, "runs": rows}))


def explain(
    run: Run = None,
    incident: Annotated[str | None, typer.Option("--incident", "-i", help="Only this one, as i2.")] = None,
    root: Root = None,
    json_: Json = False,
) -> None:
    """What happened: the story of each incident, from the journal."""
    import json

    from transom_cli.submit.rundir import find_run
    from transom_cli.ui.read import read_view
    from transom_cli.ui.render import held_lines, incident_lines
    from transom_cli.wiring import runs_root

    view = read_view(find_run(runs_root(root), run))
    chosen = [i for i in reversed(view.incidents) if incident in (None, i.id)]
    if incident is not None and not chosen:
        known = ", ".join(i.id for i in reversed(view.incidents)) or "none"
        raise UsageError(f"Run `{view.run_id}` has no incident `{incident}`", f"it has: {known}")
    if json_:
        told = {"schema": 1, "run_id": view.run_id, "phase": view.phase, "verdict": view.verdict}
        print(json.dumps({**told, "incidents": [asdict(i) for i in chosen]}))
        return
    stories = ["\n".join(incident_lines(i, 10_000)) for i in chosen]
    if view.phase == "held" and incident is None:
        stories.append("\n".join(held_lines(view)))
    print("\n\n".join(stories) or f"{view.run_id}: no incident so far")


def stop(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """Cancel the run's job and end the run. Exit code 22 when it has not ended within a minute."""
    import json

    from transom_cli.submit.rundir import find_run
    from transom_cli.supervise.background import start_operator
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive
    from transom_cli.wiring import runs_root

    found = find_run(runs_root(root), run)
    state = fold(found.journal).state
    already = " already" if state.phase.over else ""
    if not already:
        _ask_to_stop(found, state)
        if operator_alive(found) is None:
            start_operator(found)
        state = _until_over(found)
        _require_stopped(found, state)
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "phase": state.phase.value, "was_over": bool(already)}))
    else:
        print(f"run {found.run_id} {'is over' if already else state.phase.value}{already}", file=sys.stderr)


def _require_stopped(run: RunDir, state: State) -> None:
    if not state.phase.over:
        why = f"Slurm does not answer: {state.slurm_lost}" if state.slurm_lost else f"it is {state.phase.value}"
        hint = f"The request stands, and the operator goes on; look with `transom status {run.run_id}`."
        raise Unknown(f"Run `{run.run_id}` has not stopped yet", why, hint)
    if state.exit_code == Unknown.exit_code:
        raise Unknown(f"Job {state.job_id} may live on", state.verdict, f"scancel {state.job_id}")


def _ask_to_stop(run: RunDir, state: State) -> None:
    import getpass
    import json
    import os
    import socket
    import time

    from transom_cli.files import publish_text
    from transom_cli.submit.rundir import explain

    asked = {"ask": "stop", "who": f"{getpass.getuser()} on {socket.gethostname()}"}
    try:
        run.requests.mkdir(mode=0o700, exist_ok=True)
        publish_text(run.requests / f"stop-{time.time_ns()}-{os.getpid()}.json", json.dumps(asked))
    except OSError as error:
        instead = f"end the job by hand: `scancel {state.job_id}`" if state.job_id else "ask the run's owner"
        raise explain(error, run.requests, doing="put a request into", instead=instead) from error


def _until_over(run: RunDir) -> State:
    import time

    from transom_cli.supervise.journal import fold

    deadline = time.monotonic() + STOP_PATIENCE
    while not (state := fold(run.journal).state).phase.over and time.monotonic() < deadline:
        time.sleep(0.2)
    return state
