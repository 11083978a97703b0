"""Reads a run directory into a view: the journal played through the core, the beat tables, the lease, what the nodes
show of their memory; and what a launcher did while there was no operator."""

from __future__ import annotations

import time
from dataclasses import replace

from transom_cli.beats.table import BadTable, NodeTable, decode
from transom_cli.ckpt.memory.account import together
from transom_cli.ckpt.memory.shown import newest_attempt, read_all
from transom_cli.core.job import held_words
from transom_cli.core.state import Phase, State
from transom_cli.layout import RunDir, attempt_name, parse_attempt
from transom_cli.supervise.handed import Handed, newest_handed
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import operator_alive
from transom_cli.supervise.reporting import read_reports
from transom_cli.ui.view import RunView, view_of


def read_tables(run: RunDir, state: State) -> dict[str, NodeTable]:
    tables = {}
    if state.job_id:
        for path in run.attempt(state.job_id, state.restarts).nodes.glob("*.beats"):
            try:
                tables[path.stem] = decode(path.read_bytes())
            except (OSError, BadTable):
                continue
    return tables


def read_view(run: RunDir, patience: float = 0.0) -> RunView:
    """`patience`: seconds to watch the lease of an operator on another host; 0 trusts nothing but what is here."""
    state = fold(run.journal).state
    alive = operator_alive(run, patience=patience) is not None
    view = view_of(run.run_id, state, read_tables(run, state), time.time(), operator=alive)
    if not view.over:
        view = _with_reports(run, state, _with_memory(run, state, view))
    held = None if alive or view.over else _held_since(run, state)
    return held_view(view, held) if held is not None else view


def _with_memory(run: RunDir, state: State, view: RunView) -> RunView:
    """With the newest step in memory, of which all shares are there."""
    attempt = newest_attempt(run.attempts)
    if attempt is None or attempt.name != attempt_name(state.job_id, state.restarts):
        return view
    trainings = read_all(attempt, view.now)
    steps = [step for sight in trainings.values() for step in together(sight.accounts) if not step.missing]
    if not steps:
        return view
    one = max(steps, key=lambda step: step.step)
    age = None if one.committed is None else max(0.0, view.now - one.committed)
    rhythm = next((a.rhythm for sight in trainings.values() for a in sight.accounts.values() if a.rhythm), "")
    return replace(view, memory=one.step, memory_age=age, memory_protection=one.protection, rhythm=rhythm)


def _with_reports(run: RunDir, state: State, view: RunView) -> RunView:
    """With what the launcher of the present attempt finds odd."""
    if not state.job_id:
        return view
    said = read_reports(run.attempt(state.job_id, state.restarts))
    standing, phases, lines = said.get("standing"), said.get("phases"), said.get("lines")
    told = [one for one in standing if isinstance(one, dict)] if isinstance(standing, list) else []
    return replace(
        view,
        reports=tuple(str(one.get("words", "")) for one in told),
        phases=phases if isinstance(phases, dict) else None,
        phase_lines=tuple(str(line) for line in lines) if isinstance(lines, list) else (),
    )


def _held_since(run: RunDir, state: State) -> Handed | None:
    """The hold of a launcher that no operator has seen: the operator's account ends before it."""
    handed = newest_handed(run)
    if handed is None or handed.how != "held":
        return None
    return handed if parse_attempt(handed.attempt) >= (state.job_id, state.restarts) else None


def held_view(view: RunView, handed: Handed) -> RunView:
    """Slurm has not been asked, so nothing is said of what it shows."""
    view = replace(view, job_id=handed.job_id, restarts=handed.restarts, slurm_state="", slurm_reason="")
    return replace(view, phase=Phase.HELD.value, since=handed.wall, verdict=held_words(handed.why))
