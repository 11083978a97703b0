"""Reads a run directory into a `RunRecord`: the operator's journal through the core, and each launcher's files."""

import gc
import time

from transom_cli.core.events import Event, StepSeen
from transom_cli.core.goodput import NS, JournalHistory, account, attempt_of, counted_from_zero
from transom_cli.core.operator.job import held_words
from transom_cli.core.operator.state import Phase, State
from transom_cli.files import read_json, read_lines
from transom_cli.layout import RunDir, parse_attempt
from transom_cli.supervise.handoff_record import attempt_numbers, newest_handoff
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import operator_alive
from transom_cli.supervise.own_checkpoints import folders, newest_own
from transom_cli.supervise.run_record import Launcher, RunRecord

WELL = ("pass", "unknown")  # verdicts that accuse no node


def read_run_record(run: RunDir, now: float | None = None, *, patience: float = 0.0, gpus: int = 0) -> RunRecord:
    """Read a run's record.

    Args:
        now: Unix time; the present if not given.
        gpus: Of a node; 0 if unknown.
        patience: As in `view.read.read_view`.

    Raises:
        JournalError: The journal cannot be read.
    """
    collecting = gc.isenabled()
    gc.disable()  # a long journal is many small values, all of which are kept
    try:
        return _read(run, now, patience, gpus)
    finally:
        if collecting:
            gc.enable()


def _read(run: RunDir, now: float | None, patience: float, gpus: int) -> RunRecord:
    now = time.time() if now is None else now
    journal, events = JournalHistory(), list[Event]()

    def hear(_before: State, event: Event, after: State) -> None:
        journal.hear(event, after)
        if type(event) is not StepSeen:
            events.append(event)

    folded = fold(run.journal, hear, each_step=False)
    state = folded.state
    alive = not state.phase.over and operator_alive(run, patience=patience) is not None
    attempts, launchers = [], []
    for number in sorted(attempt_numbers(run)):
        one = run.attempt(*number)
        records = tuple(read_lines(one.launcher_journal))
        attempts.append(attempt_of(one.name, records, read_lines(one.progress), read_json(one.outcome)))
        launchers.append(Launcher(one.name, records))
    merged = journal.merged(attempts, now, alive=alive)
    if merged.counted and state.progress.durable < 0 and _saved_none(run, merged.begin / NS):
        merged = counted_from_zero(merged)
    held = _held(run, state, alive)
    written = tuple(events), tuple(launchers)
    return RunRecord(run.run_id, now, state, *written, merged, account(merged), held, gpus, folded.times)


def _saved_none(run: RunDir, since: float) -> bool:
    """Whether the trainer has saved no checkpoint of its own since then, where one would be found."""
    try:
        folders(run)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    own = newest_own(run)
    return own is None or own.changed < since


def read_findings(run: RunDir, node: str) -> tuple[tuple[float, str, str], ...]:
    """Return the agents' findings about a node in every attempt, oldest first: (Unix time, attempt, message)."""
    found = []
    for number in sorted(attempt_numbers(run)):
        attempt = run.attempt(*number)
        for record in read_lines(attempt.findings(node)):
            wall, words, verdict = record.get("wall"), record.get("words"), record.get("verdict")
            if isinstance(wall, (int, float)) and isinstance(words, str) and verdict not in WELL:
                found.append((float(wall), attempt.name, f"{verdict}, {record.get('kind')}: {words}"))
    return tuple(found)


def _held(run: RunDir, state: State, alive: bool) -> str:
    """Return why the run waits for a person, as its operator says, or a launcher that no operator has read yet."""
    if state.phase is Phase.HELD:
        return state.verdict
    handed = None if alive or state.phase.over else newest_handoff(run)
    if handed is None or handed.how != "held" or parse_attempt(handed.attempt) < (state.job.id, state.job.restarts):
        return ""
    return held_words(handed.why)
