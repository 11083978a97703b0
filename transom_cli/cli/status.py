"""`transom status`, `transom top` and `transom list`."""

from typing import Annotated

import typer

from transom_cli.cli.options import Json, Plain, Root, Run
from transom_cli.cli.show import show_list, show_status


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
            help="Exit with 0 (healthy), 20 (degraded), 21 (held or starved), 22 (unknown), 23 (crash loop), "
            "or the code that the run ended with.",
        ),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the live screen; in a pipe, one line per change.")
    ] = False,
    as_lines: Plain = False,
) -> None:
    """Show the state of a run on one screen.

    The first line is a summary. Each node has a letter: . ok, s slow, ! silent, ? suspect, p probing, x isolated,
    - waiting: for its agent, or for the next start.
    """
    _leave(show_status(run, root, json_, everything, phases, exit_code, watch, as_lines))


def top(run: Run = None, root: Root = None, as_lines: Plain = False) -> None:
    """Show the live screen: `transom status --watch`."""
    _leave(show_status(run, root, watch=True, as_lines=as_lines))


def list_(
    root: Root = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every run.")] = False,
    state: Annotated[
        str | None, typer.Option("--state", help="Show only runs in these states, such as failed,held.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Show active runs, and runs that ended within this time, such as 7d.")
    ] = None,
    json_: Json = False,
) -> None:
    """List runs, newest first.

    All active runs are listed, and the 20 newest that have ended.

    FOR: time in this state, or the duration of a run that has ended. AGE: time since submission.
    """
    _leave(show_list(root, everything, state, since, json_))


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)
