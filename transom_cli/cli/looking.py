"""What `transom status` and `transom list` do: look at runs, and show what they see. They return the exit code.

Called by typer (`cli.status`), and most of the time without it (`cli.quick`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transom_cli.ui.view import RunView

_BY_STANDING = {"healthy": 0, "degraded": 20, "held": 21, "unknown": 22, "done": 0, "failed": 1, "stopped": 1}
LEASE_PATIENCE = 3.0  # seconds, to see the lease of an operator on another host renewed
SLURM_PATIENCE = 3.0  # seconds for Slurm to answer whoever looks on


def show_status(
    run: str | None = None,
    root: Path | None = None,
    json_: bool = False,
    everything: bool = False,
    phases: bool = False,
    exit_code: bool = False,
    no_color: bool = False,
    watch: bool = False,
) -> int:
    from transom_cli.cli.unanswered import bounded
    from transom_cli.config.root import runs_root
    from transom_cli.submit.rundir import find_run
    from transom_cli.ui.read import read_view

    where = runs_root(root, os.environ)
    found = find_run(where if watch else bounded(where, run), run)
    if watch:
        import gc

        from transom_cli.ui.live import watch_status

        gc.enable()  # this one stays
        return watch_status(found, _with_slurm, json_=json_, colours=not no_color)
    from transom_cli.ui.readgoodput import with_goodput

    view = with_goodput(found, _with_slurm(read_view(found, patience=LEASE_PATIENCE)))
    if json_:
        from transom_cli.ui.document import document

        print(document(view))
    else:
        _show(view, everything=everything, phases=phases, colours=not no_color)
    return code_of(view) if exit_code else 0


def _show(view: RunView, *, everything: bool, phases: bool, colours: bool) -> None:
    from transom_cli.ui.colour import show
    from transom_cli.ui.lines import line
    from transom_cli.ui.render import phase_lines, screen
    from transom_cli.ui.terminal import NOTE, under_watch, width

    watched = under_watch()
    room = width(os.environ, watched=watched)
    more = [(), *(line(text) for text in phase_lines(view, room))] if phases else []
    show([*screen(view, room, everything=everything), *more], colours=colours)
    if watched:
        print(NOTE.format(run=view.run_id), file=sys.stderr)


def _with_slurm(view: RunView) -> RunView:
    """With Slurm's own answer, where what is written does not tell enough."""
    from transom_cli.errors import TransomError
    from transom_cli.ui.slurmwords import with_answer, with_error, worth_asking

    view = _with_operator_job(view)
    if not worth_asking(view):
        return view
    from transom_cli.health.history.files import history_dir
    from transom_cli.layout import RunDir
    from transom_cli.slurm.port import NoSuchJob, SlurmUnknown
    from transom_cli.ui.silence import Silence
    from transom_cli.wiring.slurm import slurm_of

    silence = Silence(history_dir(os.environ).parent, os.environ, view.cluster)
    met = silence.met()
    if met is not None:
        return with_error(view, *met)
    try:
        view = with_answer(view, slurm_of(RunDir(Path(view.path)), SLURM_PATIENCE).job(view.job_id))
    except NoSuchJob as error:
        view = with_error(view, error.what)
    except TransomError as error:
        words = error.why.partition("\n")[0].removeprefix("Slurm said: ") or error.what
        if isinstance(error, SlurmUnknown):
            silence.note(words)
            return with_error(view, words)
        view = with_error(view, words)
    silence.over()
    return view


def _with_operator_job(view: RunView) -> RunView:
    """While none is alive: whether the Slurm job that is to be the operator waits. Nothing is added by no answer."""
    if view.over or view.operator or not view.operator_job:
        return view
    import contextlib

    from transom_cli.errors import TransomError
    from transom_cli.layout import RunDir
    from transom_cli.ui.slurmwords import with_operator_job
    from transom_cli.wiring.slurm import slurm_of

    with contextlib.suppress(TransomError):
        return with_operator_job(view, slurm_of(RunDir(Path(view.path)), SLURM_PATIENCE).job(view.operator_job))
    return view


def code_of(view: RunView) -> int:
    """How the run is, as an exit code: of one that is over, its own."""
    return view.exit_code if view.over and view.exit_code is not None else _BY_STANDING[view.standing]


def show_list(root: Path | None = None, json_: bool = False, no_color: bool = False) -> int:
    import json

    from transom_cli.cli.unanswered import bounded
    from transom_cli.config.root import runs_root
    from transom_cli.errors import TransomError
    from transom_cli.plural import several, was
    from transom_cli.submit.rundir import list_runs, unreadable_runs
    from transom_cli.ui.colour import show
    from transom_cli.ui.read import read_view
    from transom_cli.ui.runs import list_lines, list_row
    from transom_cli.ui.terminal import under_watch, width

    where, views = bounded(runs_root(root, os.environ)), []
    for run in list_runs(where):
        try:
            views.append(read_view(run))
        except TransomError as error:
            print(f"warning: {run.run_id}: {error.what}", file=sys.stderr)
    hidden = len(unreadable_runs(where))
    if hidden:
        what = f"{several(hidden, 'run')} in {where} cannot be read, and {was(hidden, 'is', 'are')} left out"
        print(f"warning: {what}: Permission denied", file=sys.stderr)
    if json_:
        print(json.dumps({"schema": 1, "runs": [list_row(view) for view in views]}))
    elif views:
        show(list_lines(views, width(os.environ, watched=under_watch())), colours=not no_color)
    elif not hidden:
        print(f"no runs in {where}; start one with `transom run -- COMMAND`", file=sys.stderr)
    return 0
