"""The live view of a run: redrawn on a terminal, one line per change elsewhere. Ctrl-C leaves the view, not the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.supervise.answering import Answering, interrupted
from transom_cli.supervise.lease import STALE, operator_alive
from transom_cli.view.document import Changes
from transom_cli.view.model import RunView
from transom_cli.view.outlook import continue_command
from transom_cli.view.read import Reader
from transom_cli.view.status import incident_lines, screen
from transom_cli.view.terminal import coloured, show, text_of
from transom_cli.view.text import line

if TYPE_CHECKING:
    from rich.console import Console

    from transom_cli.view.watch.app import WatchApp

SHORTEST, LONGEST = 0.5, 5.0  # seconds between two looks
REST = 9.0  # pause after a look, as a multiple of its duration: at most a tenth of a core is used
RESTORED = 2.0  # seconds for the live screen to restore the terminal
INTERRUPTED = 130
NO_OPERATOR = 22


def watch_run(run: RunDir, comes_back: Callable[[], bool] = lambda: False) -> int:
    """Show the run until it is over.

    Args:
        comes_back: Called when the operator is gone; returns whether the run has one again.

    Returns:
        The run's exit code; 130 if the user left the view, 22 if the run lost its operator.
    """
    monitor = _watch_run_dir(run)
    try:
        view = _on_terminal(run) if _redraws() else _line_by_line(run)
        while not view.over and comes_back():
            view = _on_terminal(run) if _redraws() else _line_by_line(run)
    except KeyboardInterrupt:
        print(f"\n{_left(run)}", file=sys.stderr)
        return INTERRUPTED
    finally:
        monitor.stop()
    if not view.over or view.exit_code is None:
        print(f"warning: the run has no live operator; start one with `transom attach {run.run_id}`", file=sys.stderr)
        return NO_OPERATOR
    if view.exit_code and view.verdict:
        hint = f"See `transom explain {view.run_id}`; the logs are in `{run.path}`."
        command = continue_command(view)
        hint += f"\nTo continue from step {view.durable}: `{command}`" if command else ""
        error = TransomError(f"Run `{view.run_id}` {view.phase}", view.verdict, hint)
        print(f"error: {error}", file=sys.stderr)
    return view.exit_code


def _left(run: RunDir) -> str:
    return (
        f"left the view; the run continues. Come back with `transom attach {run.run_id}`, "
        f"stop it with `transom stop {run.run_id}`."
    )


def _watch_run_dir(run: RunDir) -> Answering:
    """Report on stderr when the run directory does not respond. Ctrl-C works even then."""

    def lost(since: float) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(since))
        _say(f"warning: {run.path} has not responded since {at}; waiting (Ctrl-C leaves the view)")

    def still(_seconds: float) -> None:
        if interrupted():  # the main thread is blocked in a read
            _say(f"\x1b[?25h\n{_left(run)}" if sys.stderr.isatty() else _left(run))  # show the cursor that rich hid
            os._exit(INTERRUPTED)

    return Answering(run.path, lost, lambda took: _say(f"{run.path} responds again, after {took:.0f} s"), still).start()


def _watch_run_dir_in(app: WatchApp, run: RunDir) -> Answering:
    """Report it on the live screen, and end the process if threads blocked in a read keep it from ending."""

    def say(message: str) -> None:
        with contextlib.suppress(RuntimeError):  # the screen is not up yet, or closed
            app.call_from_thread(app.say, message)

    def lost(since: float) -> None:
        say(f"the run directory has not responded since {time.strftime('%H:%M:%S', time.localtime(since))}")

    closed: list[float] = []  # when the screen was seen to be closed

    def still(_seconds: float) -> None:
        if not app.is_running:
            closed.append(time.monotonic())
            if closed[-1] - closed[0] > RESTORED:
                os._exit(INTERRUPTED)

    def back(took: float) -> None:
        say(f"the run directory responds again, after {took:.0f} s")

    return Answering(run.path, lost, back, still).start()


def _say(message: str) -> None:
    os.write(2, f"{message}\n".encode())


def _redraws() -> bool:
    """Whether stdout can be redrawn: it is a terminal, and TERM does not say dumb."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _over(run: RunDir, view: RunView) -> bool:
    return view.over or (not view.operator and operator_alive(run, patience=STALE) is None)


def _rest(began: float) -> None:
    time.sleep(min(LONGEST, max(SHORTEST, REST * (time.monotonic() - began))))


def _on_terminal(run: RunDir) -> RunView:
    from rich.console import Console
    from rich.live import Live

    console: Console = Console()
    reader = Reader(run, STALE)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            began = time.monotonic()
            view = reader.look()
            lines = screen(view, console.width)
            if view.incidents and view.incidents[0].duration is None:
                lines += [(), *map(line, incident_lines(view.incidents[0], console.width))]
            live.update(text_of(lines), refresh=True)
            if _over(run, view):
                return view
            _rest(began)


def _line_by_line(run: RunDir, *, json_: bool = False) -> RunView:
    """Print a line, or a JSON object, for each change."""
    changes, reader = Changes(), Reader(run, STALE)
    while True:
        began = time.monotonic()
        view = reader.look()
        for change in changes.of(view):
            if json_:
                print(change.to_json(view.run_id), flush=True)
            elif not change.repeated:
                print(change.line, flush=True)
        if _over(run, view):
            return view
        _rest(began)


def watch_status(run: RunDir, with_slurm: Callable[[RunView], RunView], *, json_: bool, colours: bool) -> int:
    """Run `transom status --watch`: the live screen on a terminal, changes elsewhere. Return 130 if interrupted."""
    if json_ or not _redraws():
        monitor = _watch_run_dir(run)
        try:
            _line_by_line(run, json_=json_)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            monitor.stop()
        return 0
    from transom_cli.view.watch.app import WatchApp
    from transom_cli.view.watch.follow import Follow

    app = WatchApp(Follow(run, with_slurm, STALE), colours=coloured(os.environ, wanted=colours))
    monitor = _watch_run_dir_in(app, run)
    last = app.run()
    monitor.stop()
    if last is not None:
        show(screen(last, shutil.get_terminal_size((80, 24)).columns), colours=colours)
    return 0
