"""How an attempt ends: its outcome, from what the launcher's core knows, and the batch script's exit code. Pure."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.diagnose import first_bad
from transom_cli.core.events import OutcomeSeen
from transom_cli.core.ladder_shapes import LadderState, Leave, Order, Rung
from transom_cli.core.state import Stage


def leave(state: LadderState, at: float, status: str, why: str) -> tuple[LadderState, tuple[Order, ...]]:
    incident, after = state.incident, state.after
    if incident is not None and incident.stage is Stage.STARTING:
        incident = None  # it is about an earlier launch
    hung = incident is not None and incident.quiet
    exits = () if hung else state.exits  # as they were before we ended the rest
    heard = {x.node for x in (*state.exits, *(after.exits if after else ()))}
    silent = {n for n in state.nodes if n not in heard} if status == "failed" and not hung else set()
    missing = tuple(n for n in state.nodes if n in silent or (after is not None and n in after.unheard))
    suspects = incident.quiet_nodes if incident is not None else ()
    cause = "hang" if hung else ""
    outcome = OutcomeSeen(at, state.attempt, status, why, exits, missing, state.nodes, cause, suspects, state.durable)
    first = first_bad(exits)
    code = 0 if status == "done" else _exit_code(first.code, first.signal) if first else _srun_code(state.srun)
    state = replace(close(state, at, "stopped" if status == "stopped" else "handed up"), rung=Rung.LEFT)
    return state, (Leave(outcome, code),)


def close(state: LadderState, at: float, result: str) -> LadderState:
    if state.incident is None:
        return state
    closed = replace(state.incident, stage=Stage.CLOSED, result=result, ended_at=at)
    return replace(state, incident=None, incidents=(*state.incidents, closed))


def _exit_code(code: int | None, signal: int | None) -> int:
    return 128 + signal if signal is not None else (code or 1)


def _srun_code(srun: int | None) -> int:
    """As a shell gives it; srun itself may have been killed, which is below zero here."""
    return 128 - srun if srun is not None and srun < 0 else (srun or 1)
