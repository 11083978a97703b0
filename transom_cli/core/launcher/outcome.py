"""How an attempt ends: its outcome, the batch script's exit code, and what is to follow where no operator lives."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.diagnose import NODE_FAULT, REPORTED, first_bad, taken_in
from transom_cli.core.events import OutcomeSeen
from transom_cli.core.incident import Stage
from transom_cli.core.launcher.made import made
from transom_cli.core.launcher.orders import Keep, Leave, Order
from transom_cli.core.launcher.state import LadderState, Leaving, Memory, Rung
from transom_cli.core.progress import made_progress as made_new_steps
from transom_cli.plural import several, was

_ON_PURPOSE = (Leaving.TIME_LIMIT.value, Leaving.MAINTENANCE.value)
LEFT = 75  # EX_TEMPFAIL: not done, and meant to go on in another attempt


def leave(
    state: LadderState, at: float, status: str, why: str, cause: str = ""
) -> tuple[LadderState, tuple[Order, ...]]:
    """status: done, failed, stopped (told to), or left (on purpose, to go on in the next attempt).

    What is held in memory goes with the nodes: the outcome of a training that is not done waits for it (keeping).
    """
    if status != "done" and not state.saved and state.memory is not Memory.NONE:
        orders: tuple[Order, ...] = (Keep(state.launch),) if state.memory is Memory.HELD else ()
        waiting = replace(state, rung=Rung.KEEPING, since=at, memory=Memory.ASKED, parting=(status, why, cause))
        return waiting, orders
    why = f"{why}; {state.kept}" if state.kept else why
    incident, after = state.incident, state.after
    if incident is not None and incident.stage is Stage.STARTING:
        incident = None  # it is about an earlier launch
    hung = incident is not None and incident.quiet
    exits = () if hung or status == "left" else state.exits  # as they were before we ended the rest
    heard = {x.node for x in (*state.exits, *(after.exits if after else ()))}
    silent = {n for n in state.nodes if n not in heard} if status == "failed" and not hung else set()
    missing = tuple(n for n in state.nodes if n in silent or (after is not None and n in after.unheard))
    suspects = incident.quiet_nodes if incident is not None else ()
    if status == "failed" and incident is not None and incident.diagnosis is not None and not hung:
        told = incident.diagnosis.cause
        cause = cause or (told if told in (NODE_FAULT, *REPORTED) else "")
    cause = cause or ("hang" if hung else Leaving.TIME_LIMIT.value if status == "stopped" and state.warned else "")
    outcome = OutcomeSeen(at, state.attempt, status, why, exits, missing, state.nodes, cause, suspects, state.durable)
    steps, since_start = made(state)
    step = max(state.max_step, steps) if since_start else state.max_step
    outcome = replace(outcome, blamed=_blamed(state), step=step, since_start=since_start)
    outcome = replace(outcome, faults=state.faults if status == "failed" else ())
    again = _again(state, outcome)
    if again == "hold":
        outcome = replace(outcome, why=f"{why}; {several(state.stuck + 1, 'attempt')} in a row without progress")
    state = replace(close(state, at, "stopped" if status == "stopped" else "handed up"), rung=Rung.LEFT)
    taken = (*taken_in(state.incidents), *state.ignored)
    outcome = replace(outcome, taken=tuple(replace(t, at=t.at - at) for t in taken))
    return state, (Leave(outcome, _code(state, status, exits), again),)


def lack_nodes(
    state: LadderState, at: float, good: int, *, again: str, cause: str, found: str
) -> tuple[LadderState, tuple[Order, ...]]:
    """Too few nodes of the allocation may carry a rank. found: what speaks against the others, if checks do."""
    isolated = tuple(n for n in state.allocated if n in state.given_up)
    against = found or f"{', '.join(isolated)} isolated"
    needed = f"{several(state.wanted, 'node')} {was(state.wanted, 'is', 'are')} needed"
    why = f"{needed}, and only {good} can be used: {against}"
    outcome = OutcomeSeen(at, state.attempt, "left", why, cause=cause, durable=state.durable)
    blamed = tuple(dict.fromkeys(f.node for f in state.faults))
    suspects = tuple(n for n in isolated if n not in blamed)
    outcome = replace(outcome, nodes=state.allocated, suspects=suspects, blamed=blamed, faults=state.faults)
    return replace(state, rung=Rung.LEFT), (Leave(outcome, LEFT, again),)


def close(state: LadderState, at: float, result: str) -> LadderState:
    if state.incident is None:
        return state
    closed = replace(state.incident, stage=Stage.CLOSED, result=result, ended_at=at)
    return replace(state, incident=None, incidents=(*state.incidents, closed))


def saved_words(state: LadderState) -> str:
    """What of the training is durable, and truthfully what is not."""
    if state.saved:
        return f"step {state.durable} is durable"
    newest = f"the newest durable step is {state.durable}" if state.durable >= 0 else "no step is durable"
    if state.saving is not None and state.saving >= 0:
        return f"step {state.saving} did not become durable in time: {newest}"
    return f"{newest}" + (f" ({state.cannot_save})" if state.cannot_save else "")


def _blamed(state: LadderState) -> tuple[str, ...]:
    """Nodes that the next attempt should keep out of its step: those that did not answer, and those to blame."""
    found = dict.fromkeys(n for n in state.given_up if n not in state.inherited)  # else blame would never expire
    incident = state.incident
    if incident is not None and incident.stage is not Stage.STARTING and incident.diagnosis is not None:
        told = incident.diagnosis
        found.update(dict.fromkeys(n for n in told.nodes if told.isolates(n) != "none"))
        if state.after is not None:
            found.update(dict.fromkeys((*state.after.unheard, *(node for node, _ in state.after.survivors))))
    return tuple(n for n in found if n in state.allocated)


def _again(state: LadderState, outcome: OutcomeSeen) -> str:
    diagnosis = state.incident.diagnosis if state.incident is not None else None
    if outcome.status == "done" or (outcome.status == "failed" and diagnosis is not None and not diagnosis.restart):
        return ""
    progressed = made_progress(outcome, state.began_durable, state.began_step, state.began_made)
    enough = not progressed and state.stuck + 1 > state.policy.max_without_progress
    if outcome.status == "stopped" or state.leaving is Leaving.TOLD:
        return "" if enough else "uncancelled"
    return "hold" if enough else "requeue"


def made_progress(outcome: OutcomeSeen, durable: int, step: int, steps_made: int) -> bool:
    """Whether an attempt came further than those before it: by their newest checkpoint of transom's, else by steps.

    Steps that count from the start of the processes are judged as `core.progress` says; steps_made: of the last attempt
    before that made any. An attempt that stepped up to its time limit made progress in any case.
    """
    if max(outcome.durable, durable) >= 0:
        return outcome.durable > durable
    further = made_new_steps(outcome.step, steps_made) if outcome.since_start else outcome.step > step
    return further or (outcome.step >= 0 and outcome.cause in _ON_PURPOSE)


def _code(state: LadderState, status: str, exits: tuple[object, ...]) -> int:
    if status in ("done", "left"):
        return 0 if status == "done" else LEFT
    first = first_bad(state.exits if exits else ())
    return _exit_code(first.code, first.signal) if first else _srun_code(state.srun)


def _exit_code(code: int | None, signal: int | None) -> int:
    return 128 + signal if signal is not None else (code or 1)


def _srun_code(srun: int | None) -> int:
    """As a shell gives it; srun itself may have been killed, which is below zero here."""
    return 128 - srun if srun is not None and srun < 0 else (srun or 1)
