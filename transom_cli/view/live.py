"""The live view of a run: redrawn on a terminal, one line per change elsewhere. Ctrl-C leaves the view, not the run."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.supervise.answering import Answering, interrupted
from transom_cli.supervise.lease import STALE, operator_alive
from transom_cli.view.document import Changes
from transom_cli.view.model import RunView
from transom_cli.view.outlook import continue_command, forced_command, how_to_continue
from transom_cli.view.status import screen
from transom_cli.view.terminal import coloured, show, width
from transom_cli.view.watch.follow import Follow

if TYPE_CHECKING:
    from transom_cli.view.watch.app import WatchApp

SHORTEST, LONGEST = 0.5, 5.0  # seconds between two looks
REST = 9.0  # pause after a look, as a multiple of its duration: at most a tenth of a core is used
RESTORED = 2.0  # seconds for the live screen to restore the terminal
INTERRUPTED = 130
NO_OPERATOR = 22


def watch_run(
    run: RunDir,
    with_slurm: Callable[[RunView], RunView],
    comes_back: Callable[[], bool] = lambda: False,
    *,
    as_lines: bool = False,
) -> int:
    """Show the run until it is over: the live screen on a terminal, changes elsewhere.

    Args:
        with_slurm: Adds Slurm's answer to a view.
        as_lines: Show changes also on a terminal.
        comes_back: Called when the operator is gone; returns whether the run has one again.

    Returns:
        The run's exit code; 130 if the user left the view, 22 if the run lost its operator.
    """
    shown: Callable[[], RunView | None] = partial(_live_screen, run, with_slurm, _over)
    drawn = _redraws() and not as_lines
    shown = shown if drawn else partial(_line_by_line, run, with_slurm)
    try:
        view = shown()
        while view is not None and not view.over and comes_back():
            view = shown()
    except KeyboardInterrupt:
        view = None
    if view is None:
        print(f"\n{_left(run)}", file=sys.stderr)
        return INTERRUPTED
    if not view.over or view.exit_code is None:
        print(f"warning: the run has no live operator; start one with `transom attach {run.run_id}`", file=sys.stderr)
        return NO_OPERATOR
    if view.exit_code and view.verdict:
        hint = f"The root cause: {view.root_line}\n" if view.root_line else ""
        hint += f"See `transom logs {view.run_id}` and `transom explain {view.run_id}`."
        command = continue_command(view)
        hint += f"\n{view.bad_resume.words}" if view.bad_resume is not None else ""
        start = view.durable if view.bad_resume is None else view.bad_resume.instead
        begin = f" from step {start:,}" if start >= 0 else ""
        hint += f"\nTo continue{begin}: `{command}`" if command else ""
        hint += f"\nT{how_to_continue(view)[1:]}" if forced_command(view) else ""
        what = f"Run `{view.run_id}` {view.phase}"
        error = TransomError(what) if drawn else TransomError(what, view.verdict, hint)  # the screen says the rest
        print(f"{'note' if view.phase == 'stopped' else 'error'}: {error}", file=sys.stderr)
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
            _say(_left(run))
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


def _line_by_line(run: RunDir, with_slurm: Callable[[RunView], RunView], *, json_: bool = False) -> RunView:
    """Print a line, or a JSON object, for each change; incidents that are over are in the JSON only."""
    changes, reader, monitor = Changes(earlier=json_), Follow(run, with_slurm, STALE), _watch_run_dir(run)
    try:
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
    finally:
        monitor.stop()


def _live_screen(
    run: RunDir, with_slurm: Callable[[RunView], RunView], ends: Callable[[RunDir, RunView], bool]
) -> RunView | None:
    """Return the last view, which is printed; None if the user left the screen before it ended."""
    from transom_cli.view.watch.app import WatchApp

    gc.enable()  # a long-lived process
    follow = Follow(run, with_slurm, STALE)
    app = WatchApp(follow, colours=coloured(os.environ), ends=partial(ends, run))
    monitor = _watch_run_dir_in(app, run)
    last = app.run()
    monitor.stop()
    if last is not None:
        show(screen(last, width()))
    return None if app.left else last


def watch_status(run: RunDir, with_slurm: Callable[[RunView], RunView], *, json_: bool, as_lines: bool) -> int:
    """Run `transom status --watch`: the live screen on a terminal, changes elsewhere. Return 130 if interrupted."""
    try:
        if json_ or as_lines or not _redraws():
            _line_by_line(run, with_slurm, json_=json_)
        else:
            _live_screen(run, with_slurm, lambda _, view: view.over)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
