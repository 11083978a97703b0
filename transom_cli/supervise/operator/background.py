"""The operator as a process: here, or in the background where it outlives the terminal that started it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from transom_cli.core.operator.state import Phase, State
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.start import own
from transom_cli.supervise.lease import operator_alive, read_holder
from transom_cli.supervise.past_runs import remember

if TYPE_CHECKING:
    from transom_cli.supervise.operator.loop import Operator
import json
from datetime import datetime, timezone

UNKNOWN = 22


def operate_here(run: RunDir, build: Callable[[RunDir], Operator]) -> int:
    """Operate until the run is over; the run's exit code. TERM and INT make it leave without touching the job."""
    from transom_cli.config.run_settings import read_settings
    from transom_cli.submit.submission import restore_submission_environment

    handler = logging.StreamHandler(sys.stderr)
    as_json = read_settings(run).log_json
    handler.setFormatter(JsonLines(run.run_id) if as_json else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    restore_submission_environment(run)
    operator = build(run)

    def leave(_number: int, _frame: FrameType | None) -> None:
        operator.leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    state = operator.run()
    if state.phase is Phase.DONE:
        remember(run)
    return exit_code(state)


def exit_code(state: State) -> int:
    """Return the exit code of a run that is over; UNKNOWN for a run that continues without this operator."""
    return state.exit_code if state.phase.over and state.exit_code is not None else UNKNOWN


def start_operator(run: RunDir, patience: float = 15.0) -> None:
    """Start an operator in a session of its own and wait until it holds the lease.

    Its words go to operator.log in the run directory. TransomError, quoting that log, when it does not come up.
    """
    before = read_holder(run)
    with run.operator_log.open("ab") as log:
        process = subprocess.Popen(
            own("transom_cli", "operate", "--run-dir", str(run.path)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=True,
            env=dict(os.environ),
        )
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        holder = read_holder(run)
        if holder is not None and holder != before and holder.pid == process.pid:
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    if process.poll() == 0 or operator_alive(run, patience=0.5) is not None:
        return
    words = run.operator_log.read_text(errors="replace").strip().splitlines()[-5:]
    raise TransomError(
        f"The operator of run `{run.run_id}` did not start",
        "\n".join(words) or "it said nothing",
        f"Start it in the foreground to see more: `transom attach --foreground {run.run_id}`.",
    )


SCHEMA = 1


class JsonLines(logging.Formatter):
    """time (UTC), level, run, logger, message; where the line is about one: `event` with its `facts` ("order": of an
    action that is ordered), and `exception`."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self._run_id = run_id

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "schema": SCHEMA,
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "run": self._run_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: vars(record)[name] for name in ("event", "facts") if name in vars(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
