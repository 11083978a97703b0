"""The live view of a run: redrawn on a terminal, one line a change elsewhere. Ctrl-C leaves the view, not the run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.supervise.lease import STALE, operator_alive
from transom_cli.ui.colour import text_of
from transom_cli.ui.lines import line
from transom_cli.ui.read import read_view
from transom_cli.ui.render import incident_lines, screen
from transom_cli.ui.todo import go_on
from transom_cli.ui.view import RunView
from transom_cli.ui.words import clock_time

if TYPE_CHECKING:
    from rich.console import Console

TURN, LONGEST = 0.5, 5.0  # seconds between two looks, at least and at most
REST = 9.0  # times as long as a look takes: a run of thousands of nodes may cost a tenth of a core
INTERRUPTED = 130
NO_OPERATOR = 22


def watch_run(run: RunDir) -> int:
    """Show the run until it is over; its exit code. 130 when the view was left, 22 when the run lost its operator."""
    try:
        view = _on_terminal(run) if sys.stdout.isatty() else _line_by_line(run)
    except KeyboardInterrupt:
        print(
            f"\nleft the view; the run goes on. Come back with `transom attach {run.run_id}`, "
            f"end it with `transom stop {run.run_id}`.",
            file=sys.stderr,
        )
        return INTERRUPTED
    if not view.over or view.exit_code is None:
        print(f"warning: the operator is gone; start one with `transom attach {run.run_id}`", file=sys.stderr)
        return NO_OPERATOR
    if view.exit_code and view.verdict:
        story = f"The story is in `transom explain {view.run_id}`; the logs are in `{run.path}`."
        then = f"\nTo go on from step {view.durable}: `{command}`" if (command := go_on(view)) else ""
        error = TransomError(f"Run `{view.run_id}` {view.phase}", view.verdict, story + then)
        print(f"error: {error}", file=sys.stderr)
    return view.exit_code


def _over(run: RunDir, view: RunView) -> bool:
    return view.over or (not view.operator and operator_alive(run, patience=STALE) is None)


def _rest(began: float) -> None:
    time.sleep(min(LONGEST, max(TURN, REST * (time.monotonic() - began))))


def _on_terminal(run: RunDir) -> RunView:
    from rich.console import Console
    from rich.live import Live

    console: Console = Console()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            began = time.monotonic()
            view = read_view(run, patience=STALE)
            lines = screen(view, console.width)
            if view.incidents and view.incidents[0].lasted is None:
                lines += [(), *map(line, incident_lines(view.incidents[0], console.width))]
            live.update(text_of(lines), refresh=True)
            if _over(run, view):
                return view
            _rest(began)


def _line_by_line(run: RunDir) -> RunView:
    """For pipes and logs: the phase when it changes, and each new line of an incident's story."""
    told: set[tuple[float, str]] = set()
    phase = ""
    while True:
        began = time.monotonic()
        view = read_view(run, patience=STALE)
        if view.phase != phase:
            phase = view.phase
            where = f"job {view.job_id}" if view.job_id else "no job yet"
            step = f", step {view.step}" if view.step >= 0 else ""
            why = f", {view.verdict}" if phase == "held" else ""
            print(f"{clock_time(view.since or view.now)} {phase}: {where}{step}{why}", flush=True)
        for incident in reversed(view.incidents):
            for at, what, words in incident.marks:
                if (at, what + words) not in told:
                    told.add((at, what + words))
                    print(f"{clock_time(at)} {incident.id} {what}: {words}", flush=True)
        if _over(run, view):
            return view
        _rest(began)
