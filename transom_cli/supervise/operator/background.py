"""The operator as a process: here for one run, or in the background for all runs of the user on this host."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from transom_cli.core.operator.state import Phase, State
from transom_cli.errors import TransomError
from transom_cli.files import last_lines, open_private
from transom_cli.layout import RunDir
from transom_cli.start import own
from transom_cli.supervise.lease import operator_alive, read_holder
from transom_cli.supervise.operator.registry import Registry, Shell, operator_folder
from transom_cli.supervise.operator.run_logs import formatter
from transom_cli.supervise.past_runs import remember

if TYPE_CHECKING:
    from transom_cli.supervise.operator.loop import Operator
    from transom_cli.supervise.operator.process import Service

UNKNOWN = 22
SLOW = 60.0  # seconds for an operator that is starting
SILENT = "it has printed nothing; on a busy host it may still start"


def operate_here(run: RunDir, build: Callable[[RunDir], Operator], services: Iterable[Service] = ()) -> int:
    """Operate until the run is over; the run's exit code. TERM and INT make it leave without touching the job."""
    from transom_cli.config.run_settings import read_settings
    from transom_cli.submit.submission import restore_submission_environment

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(run.run_id, as_json=read_settings(run).log_json))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    restore_submission_environment(run)
    operator = build(run)

    def leave(_number: int, _frame: FrameType | None) -> None:
        operator.leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    for service in services:
        service.add(operator)
    state = operator.run()
    for service in services:
        service.close()
    if state.phase is Phase.DONE:
        remember(run)
    return exit_code(state)


def exit_code(state: State) -> int:
    """Return the exit code of a run that is over; UNKNOWN for a run that continues without this operator."""
    return state.exit_code if state.phase.over and state.exit_code is not None else UNKNOWN


def start_operator(run: RunDir, patience: float = 15.0) -> None:
    """Hand the run to the user's operator process on this host, which is started if there is none.

    Returns when the run has an operator. Where other users can change the process's folder, the run gets a process of
    its own.

    Raises:
        TransomError: it has none in time; with what the process says.
    """
    registry = Registry(operator_folder(os.environ))
    shared = registry.make()
    before, process = read_holder(run), None
    name = registry.add(run, Shell.here()) if shared else ""
    words = ("--all", "--idle-exit") if shared else ("--run-dir", str(run.path))
    begun = time.monotonic()
    while time.monotonic() < begun + patience and not (shared and registry.answered(name)):
        holder = read_holder(run)
        if holder is not None and holder != before and not holder.released and holder.here() and holder.alive_here():
            return
        ended = process is not None and process.poll() is not None
        if ended and not shared:
            break
        if ended or (process is None and not (shared and registry.process() is not None)):
            process = _start(words, registry.log if shared else run.operator_log)
        elif time.monotonic() > begun + patience - 1.0:
            patience = min(patience + 1.0, SLOW)  # it is starting, on a busy host
        time.sleep(0.05)
    if operator_alive(run, patience=0.5) is not None or _over(run):
        return
    raise TransomError(
        f"The operator of run `{run.run_id}` did not start",
        (registry.refusal(name) if shared else "") or "\n".join(last_lines(run.operator_log)) or SILENT,
        f"Start it in the foreground to see more: `transom attach --foreground {run.run_id}`.",
    )


def _over(run: RunDir) -> bool:
    from transom_cli.supervise.journal import fold

    return fold(run.journal).state.phase.over


def _start(words: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    """Start an operator in a session of its own, which outlives the terminal."""
    with open_private(log, "ab") as file:
        return subprocess.Popen(
            own("transom_cli", "operate", *words),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            close_fds=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        )
