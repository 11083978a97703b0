"""Whether a run's saves fail: as the operator has heard, or as the present attempt's own file has it."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.operator.state import SavesFail, State
from transom_cli.layout import RunDir
from transom_cli.supervise.follow import read_saves


def saves_fail(run: RunDir, state: State) -> SavesFail | None:
    """The file counts where there is one: it is written at once, also while there is no operator."""
    saves = read_saves(run.attempt(state.job.id, state.job.restarts)) if state.job.id else None
    if saves is None:
        return state.saves_fail
    if not saves.failed:
        return None
    told = SavesFail(saves.since, state.attempt, saves.failed, saves.step, saves.why, saves.good)
    before = state.saves_fail
    return told if before is None else replace(told, good=max(told.good, before.good))
