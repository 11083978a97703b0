"""An attempt that is only observed: its launch lives on, whatever was decided about it. Pure.

The core decides as in any attempt. Before the launcher's loop carries an action out, it calls `withhold`. After a
decision that is not carried out, the state is the one before it, with the incident open: until the ranks step again or
the launch ends by itself, nothing more is decided.
"""

from dataclasses import replace

from transom_cli.core.incident import Stage
from transom_cli.core.launcher import actions as act
from transom_cli.core.launcher.events import Stepped
from transom_cli.core.launcher.state import Decision, Memory, Phase, State


def undecided(state: State) -> bool:
    """Whether the launch trains, and no incident of it is open: a later decision returns to this state."""
    return state.phase is Phase.TRAINING and state.open_incident is None


def withhold(
    before: State, state: State, action: act.Action, now: Stepped, *, begun: bool, lives: bool
) -> Decision | None:
    """Return the state and the actions instead of `action`; None: carry it out.

    Args:
        before: The last state that was `undecided`.
        now: The newest step: only a later one shows that the training recovers by itself.
        begun, lives: Whether the training was started, and still has ranks.
    """
    incident = state.incident.id if state.incident is not None else ""
    if isinstance(action, act.StartLaunch) and begun:
        out = state.nodes.given_up
        words = f"relaunched the ranks {'without ' + ', '.join(out) if out else 'on the same nodes'}"
        return _resume(before, state, now), (act.Journal(incident, "withheld", words, nodes=out),)
    if isinstance(action, act.FinishAttempt) and not state.stop and action.outcome.status in ("failed", "left"):
        record = act.WithheldOutcome(action.outcome)
        if not begun:
            state, actions = _start_anyway(state, now.at)
            return state, (record, *actions)
        return (_resume(before, state, now), (record,)) if lives else None
    if isinstance(action, act.RollBack):
        words = f"would have set the training back to step {action.to}: {action.why}"
        return state, (act.Journal(incident, "reported", words),)
    if isinstance(action, act.RequestCheckpoint):
        words = f"would have made all ranks save, and left: {state.departure.reason.value}"
        return state, (act.Journal("", "reported", words),)
    return None


def _resume(before: State, state: State, now: Stepped) -> State:
    incident, history, progress = state.incident, state.history, before.progress
    if now.launch == before.launch.number and progress.newer(now.step, now.since_start):
        progress = progress.stepped(now.step, now.since_start, now.step)
    if incident is None and len(history.incidents) > len(before.history.incidents):
        *earlier, incident = history.incidents
        history = replace(history, incidents=tuple(earlier))
    if incident is not None:
        incident = replace(incident, stage=Stage.WITHHELD, result="", ended_at=None)
    launch = replace(before.launch, exits=(), failing_since=None, over_since=None, response=None, anomalies=())
    return replace(
        before,
        since=now.at,
        launch=launch,
        progress=progress,
        incident=incident,
        history=history,
        budget=state.budget,
        health=state.health,
        warned=state.warned,
        stop=state.stop,
    )


def _start_anyway(state: State, at: float) -> Decision:
    """Start the first launch on the first nodes of the allocation, whatever the checks have found."""
    nodes = state.nodes
    carrying, spares = nodes.allocated[: nodes.wanted], nodes.allocated[nodes.wanted :]
    state = replace(
        state,
        nodes=replace(nodes, training=carrying, spares=spares, given_up=(), inherited=()),
        launch=state.launch.next(),
        memory=Memory.HELD if state.before.memory else Memory.NONE,
    )
    return state.enter(Phase.TRAINING, at), (act.StartLaunch(state.launch.number, carrying),)
