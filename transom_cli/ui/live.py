"""The live view of a run: redrawn on a terminal, one line a change elsewhere. Ctrl-C leaves the view, not the run."""

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
from transom_cli.ui.changes import Changes
from transom_cli.ui.colour import coloured, show, text_of
from transom_cli.ui.lines import line
from transom_cli.ui.read import Reader
from transom_cli.ui.render import incident_lines, screen
from transom_cli.ui.todo import go_on
from transom_cli.ui.view import RunView

if TYPE_CHECKING:
    from rich.console import Console

    from transom_cli.ui.watch.app import WatchApp

TURN, LONGEST = 0.5, 5.0  # seconds between two looks, at least and at most
REST = 9.0  # times as long as a look takes: a run of thousands of nodes may cost a tenth of a core
RESTORED = 2.0  # seconds that the live screen has to give the terminal back
INTERRUPTED = 130
NO_OPERATOR = 22


def watch_run(run: RunDir) -> int:
    """Show the run until it is over; its exit code. 130 when the view was left, 22 when the run lost its operator."""
    answering = _waiting_for(run)
    try:
        view = _on_terminal(run) if _redraws() else _line_by_line(run)
    except KeyboardInterrupt:
        print(f"\n{_left(run)}", file=sys.stderr)
        return INTERRUPTED
    finally:
        answering.stop()
    if not view.over or view.exit_code is None:
        print(f"warning: the operator is gone; start one with `transom attach {run.run_id}`", file=sys.stderr)
        return NO_OPERATOR
    if view.exit_code and view.verdict:
        story = f"The story is in `transom explain {view.run_id}`; the logs are in `{run.path}`."
        then = f"\nTo go on from step {view.durable}: `{command}`" if (command := go_on(view)) else ""
        error = TransomError(f"Run `{view.run_id}` {view.phase}", view.verdict, story + then)
        print(f"error: {error}", file=sys.stderr)
    return view.exit_code


def _left(run: RunDir) -> str:
    return (
        f"left the view; the run goes on. Come back with `transom attach {run.run_id}`, "
        f"end it with `transom stop {run.run_id}`."
    )


def _waiting_for(run: RunDir) -> Answering:
    """Says so when the run directory does not answer, and waits; a Ctrl-C leaves all the same."""

    def lost(since: float) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(since))
        _say(f"warning: {run.path} does not answer since {at}; waiting (Ctrl-C leaves the view)")

    def still(_seconds: float) -> None:
        if interrupted():  # the main thread would not hear of it
            _say(f"\x1b[?25h\n{_left(run)}" if sys.stderr.isatty() else _left(run))  # the cursor, which rich hides
            os._exit(INTERRUPTED)

    return Answering(run.path, lost, lambda took: _say(f"{run.path} answers again, after {took:.0f} s"), still).start()


def _told_in(app: WatchApp, run: RunDir) -> Answering:
    """The same for the live screen, whose own thread reads no files; but those that do would hold up its end."""

    def say(words: str) -> None:
        with contextlib.suppress(RuntimeError):  # it is not up yet, or not any more
            app.call_from_thread(app.say, words)

    def lost(since: float) -> None:
        say(f"no answer from the run directory since {time.strftime('%H:%M:%S', time.localtime(since))}")

    left: list[float] = []  # when the screen was seen to be gone

    def still(_seconds: float) -> None:
        if not app.is_running:
            left.append(time.monotonic())
            if left[-1] - left[0] > RESTORED:
                os._exit(INTERRUPTED)

    return Answering(
        run.path, lost, lambda took: say(f"the run directory answers again, after {took:.0f} s"), still
    ).start()


def _say(words: str) -> None:
    os.write(2, f"{words}\n".encode())


def _redraws() -> bool:
    """Whether what is shown can be drawn over: not in a pipe, nor where TERM says that nothing can be."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _over(run: RunDir, view: RunView) -> bool:
    return view.over or (not view.operator and operator_alive(run, patience=STALE) is None)


def _rest(began: float) -> None:
    time.sleep(min(LONGEST, max(TURN, REST * (time.monotonic() - began))))


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
            if view.incidents and view.incidents[0].lasted is None:
                lines += [(), *map(line, incident_lines(view.incidents[0], console.width))]
            live.update(text_of(lines), refresh=True)
            if _over(run, view):
                return view
            _rest(began)


def _line_by_line(run: RunDir, *, json_: bool = False) -> RunView:
    """For pipes and logs: a line a change, or an object."""
    changes, reader = Changes(), Reader(run, STALE)
    while True:
        began = time.monotonic()
        view = reader.look()
        for change in changes.of(view):
            if json_:
                print(change.document(view.run_id), flush=True)
            elif not change.again:
                print(change.line, flush=True)
        if _over(run, view):
            return view
        _rest(began)


def watch_status(run: RunDir, asked: Callable[[RunView], RunView], *, json_: bool, colours: bool) -> int:
    """`transom status --watch`: the live screen on a terminal, changes elsewhere. 130 where it was interrupted."""
    if json_ or not _redraws():
        answering = _waiting_for(run)
        try:
            _line_by_line(run, json_=json_)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            answering.stop()
        return 0
    from transom_cli.ui.watch.app import WatchApp
    from transom_cli.ui.watch.follow import Follow

    coloured_ = coloured(os.environ, wanted=colours)
    app = WatchApp(Follow(run, asked, STALE), colours=coloured_)
    answering = _told_in(app, run)
    last = app.run()
    answering.stop()
    if last is not None:
        show(screen(last, shutil.get_terminal_size((80, 24)).columns), colours=colours)
    return 0
