"""How an attempt ends: the outcome, the batch script's exit code, and what follows where no operator runs."""

from collections.abc import Iterable
from dataclasses import replace

from transom_cli.core.clocks import first_bad
from transom_cli.core.diagnose import NODE_FAULT, REPORTED, taken_in
from transom_cli.core.events import OutcomeSeen, RankExit
from transom_cli.core.incident import Stage
from transom_cli.core.launcher.actions import Action, FinishAttempt, PersistMemory
from transom_cli.core.launcher.state import Decision, Memory, Parting, Phase, Reason, State
from transom_cli.core.progress import Counted, Progress
from transom_cli.plural import several, was

LEFT = 75  # EX_TEMPFAIL: not done, and to be continued in another attempt


def finish(state: State, at: float, status: str, why: str, cause: str = "") -> Decision:
    """End the attempt.

    Snapshots in memory are lost with the nodes. If the training is not done, the outcome waits until they are written
    to disk.

    Args:
        status: done, failed, stopped (by a stop request), or left (on purpose, to be continued in the next attempt).
    """
    if status != "done" and not state.saved and state.memory is not Memory.NONE:
        action = PersistMemory(state.launch.number, persist_limit(state))
        actions: tuple[Action, ...] = (action,) if state.memory is Memory.HELD else ()
        waiting = replace(state, memory=Memory.REQUESTED, parting=Parting(status, why, cause))
        return waiting.enter(Phase.PERSISTING, at), actions
    why = f"{why}; {state.persisted}" if state.persisted else why
    incident, launch, nodes = state.open_incident, state.launch, state.nodes.training
    hung = incident is not None and incident.stalled
    failed = status == "failed"
    exits = () if hung or status == "left" else launch.exits  # as they were before we ended the others
    if failed and incident is not None and incident.diagnosis is not None and not hung:
        found = incident.diagnosis.cause
        cause = cause or (found if found in (NODE_FAULT, *REPORTED) else "")
    cause = cause or ("hang" if hung else Reason.TIME_LIMIT.value if status == "stopped" and state.warned else "")
    state = count_last_step(state)
    outcome = OutcomeSeen(
        at,
        state.attempt,
        status,
        why,
        exits,
        _missing(state, silent=failed and not hung),
        nodes,
        cause,
        suspects=incident.suspect_nodes if incident is not None else (),
        durable=state.progress.durable,
        blamed=_blamed(state),
        step=state.progress.max_step,
        since_start=state.progress.since_start,
        faults=state.health.faults if failed else (),
        job_step=state.job_step,
    )
    again = _again(state, outcome)
    if again == "hold":
        attempts = several(state.before.stuck + 1, "attempt")
        outcome = replace(outcome, why=f"{why}; {attempts} in a row without progress")
    state = replace(close(state, at, "stopped" if status == "stopped" else "handed up"), phase=Phase.OVER)
    taken = (*taken_in(state.history.incidents), *state.history.ignored)
    outcome = replace(outcome, taken=tuple(replace(t, at=t.at - at) for t in taken))
    return state, (FinishAttempt(outcome, _exit_code(status, exits, launch.srun_code), again),)


def persist_limit(state: State) -> float:
    """Return how many seconds the nodes may take to write their memory.

    Twice as long as the newest checkpoint took, but no longer than repeating the steps would take: a file system that
    hangs costs no more than a lost snapshot. Slurm's KILL ends it earlier (`GracePeriodOver`).
    """
    lost = max(0, state.progress.max_step - state.progress.durable) * state.pace
    return max(state.policy.keeping, min(2 * state.durable_after, lost))


def stop(state: State, at: float, what: str) -> Decision:
    """End the attempt as requested. what: follows the signal's name in the outcome."""
    signal = state.stop.signal if state.stop is not None else "Slurm"
    return finish(state, at, "stopped", f"stopped by {signal}{what}")


def lack_nodes(state: State, at: float, good: int, *, again: str, cause: str, findings: str) -> Decision:
    """End the attempt since too few nodes of the allocation may carry a rank.

    Args:
        findings: what checks have found, for a person; "" if nothing.
    """
    nodes = state.nodes
    isolated = tuple(n for n in nodes.allocated if n in nodes.given_up)
    against = findings or f"{', '.join(isolated)} isolated"
    needed = f"{several(nodes.wanted, 'node')} {was(nodes.wanted, 'is', 'are')} needed"
    why = f"{needed}, and only {good} can be used: {against}"
    faults = state.health.faults
    blamed = tuple(dict.fromkeys(f.node for f in faults))
    suspects = tuple(n for n in isolated if n not in blamed)
    outcome = OutcomeSeen(
        at,
        state.attempt,
        "left",
        why,
        nodes=nodes.allocated,
        cause=cause,
        suspects=suspects,
        durable=state.progress.durable,
        blamed=blamed,
        faults=faults,
        job_step=state.job_step,
    )
    return replace(state, phase=Phase.OVER), (FinishAttempt(outcome, LEFT, again),)


def close(state: State, at: float, result: str) -> State:
    """Close the incident, if there is one."""
    if state.incident is None:
        return state
    closed = replace(state.incident, stage=Stage.CLOSED, result=result, ended_at=at)
    history = replace(state.history, incidents=(*state.history.incidents, closed))
    return replace(state, incident=None, history=history)


def saved_words(state: State) -> str:
    """Say which step is durable, and why a later one is not."""
    durable, departure = state.progress.durable, state.departure
    if state.saved:
        return f"step {durable} is durable"
    newest = f"the newest durable step is {durable}" if durable >= 0 else "no step is durable"
    if departure.save_step is not None and departure.save_step >= 0:
        return f"step {departure.save_step} did not become durable in time: {newest}"
    return f"{newest}" + (f" ({departure.cannot_save})" if departure.cannot_save else "")


def count_last_step(state: State) -> State:
    """Count the last step of the rank that failed first.

    Heartbeats may be a second old; the wrapper of that rank knows its last step.
    """
    exits, progress = state.launch.exits, state.progress
    if state.incident is not None and state.incident.outcome is not None:
        exits = state.incident.outcome.exits or exits
    first = first_bad(exits)
    if first is None or first.step < 0 or (progress.step >= 0 and first.since_start != progress.since_start):
        return state
    return replace(state, progress=progress.stepped(first.step, first.since_start, first.step))


def after_attempt(progress: Progress, outcome: OutcomeSeen) -> Progress:
    """Return the run's progress after an attempt with this outcome; the budget has not counted it yet."""
    progress = progress.new_start()
    if outcome.step >= 0:
        progress = progress.stepped(outcome.step, outcome.since_start, outcome.step)
    return replace(progress, durable=max(outcome.durable, progress.durable))


def without_progress(outcomes: Iterable[OutcomeSeen | None], durable: int) -> int:
    """Count the newest attempts in a row that made no progress.

    Args:
        outcomes: None for an attempt without one, since its batch host died.
        durable: the newest checkpoint's step after all of them.
    """
    stuck, progress = 0, Progress()
    for outcome in outcomes:
        if outcome is not None:
            progress = after_attempt(progress, outcome)
        stuck = 0 if outcome is not None and progress.further(outcome.cause) else stuck + 1
        progress = progress.charged()
    return stuck if durable <= progress.durable else 0


def _missing(state: State, *, silent: bool) -> tuple[str, ...]:
    """Nodes of the launch whose agent did not answer; with `silent`, also those whose ranks reported no exit."""
    ended = state.launch.ended
    exited = {x.node for x in (*state.launch.exits, *(ended.exits if ended else ()))}
    unheard = ended.unheard if ended is not None else ()
    return tuple(n for n in state.nodes.training if n in unheard or (silent and n not in exited))


def _blamed(state: State) -> tuple[str, ...]:
    """Nodes that the next attempt should not use: those that did not answer, and those to blame.

    Inherited blame is not repeated, or else it would never expire.
    """
    found = dict.fromkeys(n for n in state.nodes.given_up if n not in state.nodes.inherited)
    incident = state.open_incident
    if incident is not None and incident.diagnosis is not None:
        diagnosis = incident.diagnosis
        found.update(dict.fromkeys(n for n in diagnosis.nodes if diagnosis.isolates(n) != "none"))
        if state.launch.ended is not None:
            found.update(dict.fromkeys(state.launch.ended.left_behind))
    return tuple(n for n in found if n in state.nodes.allocated and n not in state.growth.lost)


def _again(state: State, outcome: OutcomeSeen) -> str:
    diagnosis = state.incident.diagnosis if state.incident is not None else None
    if outcome.status == "done" or (outcome.status == "failed" and diagnosis is not None and not diagnosis.restart):
        return ""
    before = state.before
    counted = Counted(before.step, before.made, before.durable)
    progress = after_attempt(Progress(max_step=before.step, durable=before.durable, counted=counted), outcome)
    enough = not progress.further(outcome.cause) and before.stuck + 1 > state.policy.max_without_progress
    if outcome.status == "stopped" or state.departure.reason is Reason.STOP:
        return "" if enough else "uncancelled"
    return "hold" if enough else "requeue"


def _exit_code(status: str, exits: tuple[RankExit, ...], srun_code: int | None) -> int:
    """As a shell would give it: of the first bad rank, else srun's, which is negative if a signal killed it."""
    if status in ("done", "left"):
        return 0 if status == "done" else LEFT
    first = first_bad(exits)
    if first is None:
        return 128 - srun_code if srun_code is not None and srun_code < 0 else (srun_code or 1)
    return 128 + first.signal if first.signal is not None else (first.code or 1)
