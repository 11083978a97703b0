"""Reads a run directory into its account: the operator's journal through the core, and what each launcher has left."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.core.events import Event
from transom_cli.core.goodput import Account, account, attempt_of, history
from transom_cli.core.state import State
from transom_cli.files import json_lines
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.handed import attempt_numbers
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import operator_alive


@dataclass(frozen=True)
class Book:
    """What a run's journals say: the operator's events in order, the state after them, the launchers' records."""

    run_id: str
    now: float
    state: State
    events: tuple[Event, ...]
    launchers: tuple[tuple[str, tuple[dict[str, Any], ...]], ...]  # by attempt, oldest first
    account: Account


def read_book(run: RunDir, now: float | None = None, *, patience: float = 0.0) -> Book:
    """now: seconds since the epoch, the present where not given. patience: as in `ui.read.read_view`."""
    now = time.time() if now is None else now
    seen: list[tuple[Event, State]] = []
    folded = fold(run.journal, lambda _before, event, after: seen.append((event, after)))
    alive = not folded.state.phase.over and operator_alive(run, patience=patience) is not None
    attempts, launchers = [], []
    for number in sorted(attempt_numbers(run)):
        one = run.attempt(*number)
        journal = _lines(one.launcher_journal)
        attempts.append(attempt_of(one.name, journal, _lines(one.progress), _outcome(one)))
        launchers.append((one.name, tuple(journal)))
    told = account(history(seen, attempts, now, alive=alive))
    return Book(run.run_id, now, folded.state, folded.events, tuple(launchers), told)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return list(json_lines(path.read_bytes()))
    except OSError:
        return []


def _outcome(attempt: AttemptDir) -> dict[str, Any]:
    try:
        data = json.loads(attempt.outcome.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
