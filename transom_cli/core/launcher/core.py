"""`decide(state, heard) -> (state, orders)`. Total: whatever is heard in whatever state is answered.

What is told of another launch than the present one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transom_cli.core.diagnose import first_bad
from transom_cli.core.events import OutcomeSeen
from transom_cli.core.incident import Stage
from transom_cli.core.launcher import checking, fault, keeping, leaving, reported
from transom_cli.core.launcher.events import (
    THIS_LAUNCHER,
    Appeared,
    Begun,
    Checked,
    Draining,
    Durable,
    Ended,
    Exits,
    Faulty,
    Flushing,
    Heard,
    Kept,
    NotStarted,
    Overtime,
    Read,
    Reported,
    Silent,
    SlurmAway,
    Spare,
    Stalled,
    Stepped,
    Tick,
    Told,
    Warned,
)
from transom_cli.core.launcher.judging import let_pass
from transom_cli.core.launcher.orders import Order, Tell
from transom_cli.core.launcher.outcome import close, leave
from transom_cli.core.launcher.state import LadderState, Leaving, Rung

Step = tuple[LadderState, tuple[Order, ...]]
_BACK = 3  # times as long for a step to start where slurmctld was away: of the last step's end it hears a minute late


def decide(state: LadderState, heard: Heard) -> Step:
    handler = _HANDLERS.get(type(heard))
    if handler is None:
        raise TypeError(f"no handler for {type(heard).__name__}")
    if state.rung is Rung.LEFT:
        return state, ()
    return handler(state, heard)


def _spare(state: LadderState, e: Spare) -> Step:
    if e.node not in state.allocated or e.node in (*state.nodes, *state.given_up):
        return state, ()
    if e.good:  # again, maybe: its agent had died
        spares, ready = state.in_order((*state.spares, e.node)), state.in_order((*state.ready, e.node))
        return replace(state, spares=spares, ready=ready), ()
    keep = tuple(n for n in state.spares if n != e.node)
    return replace(state, spares=keep, ready=tuple(n for n in state.ready if n != e.node)), ()


def _not_started(state: LadderState, e: NotStarted) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING:
        return state, ()
    return leave(state, e.at, "failed", e.words)


def _slurm_away(state: LadderState, e: SlurmAway) -> Step:
    """What could not be asked for has not begun: it is neither a fault nor late."""
    if e.launch != state.launch or state.rung is not Rung.TRAINING or state.appeared:
        return state, ()
    name = state.incident.id if state.incident is not None else ""
    words = f"launch {e.launch} waits for slurmctld, which gives no answer ({e.words})"
    told = () if state.away else (Tell(name, "waiting", words),)
    return replace(state, since=e.at, away=True), told


def _appeared(state: LadderState, e: Appeared) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING or state.appeared:
        return state, ()
    took = e.at - state.since if state.launch == 0 else state.came_up
    return replace(state, appeared=True, came_up=took), ()


def _exits(state: LadderState, e: Exits) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING:
        return state, ()
    bad = any(x.bad for x in e.exits)
    since = e.at if bad and state.failing_since is None else state.failing_since
    over_since = e.at if e.over and state.over_since is None else state.over_since
    state = replace(state, exits=e.exits, over_since=over_since, failing_since=since)
    state = replace(state, srun=e.srun if e.srun is not None else state.srun)
    return _settle(state, e.at)


def _tick(state: LadderState, e: Tick) -> Step:
    state, orders = keeping.tick(state, e.at)
    then = _late(state, e)
    after = reported.act(then[0], e.at)
    return after[0], orders + then[1] + after[1]


def _late(state: LadderState, e: Tick) -> Step:
    """What takes too long is not waited for any longer."""
    for_so_long = e.at - state.since
    if state.rung is Rung.KEEPING and for_so_long >= state.policy.keeping:
        return keeping.kept(state, Kept(e.at, state.launch, -1, keeping.TOO_LATE))
    if state.rung is Rung.ENDING and for_so_long >= state.policy.ending:
        stuck = (THIS_LAUNCHER, f"the end of launch {state.launch}, under way for {for_so_long:.0f} s,")
        return _ended(state, Ended(e.at, state.launch, survivors=(stuck,)))
    if state.rung is Rung.READING and for_so_long >= state.policy.reading:
        return fault.read(state, Read(e.at, state.launch, "unknown", f"no answer for {for_so_long:.0f} s", "logs"))
    if state.rung is Rung.CHECKING:
        return checking.late(state, e.at)
    if state.rung is not Rung.TRAINING:
        return state, ()
    come_up = max(state.policy.come_up, 3 * state.came_up) * (_BACK if state.away else 1)
    if state.launch > 0 and not state.appeared and not state.exits and for_so_long >= come_up:
        words = f"launch {state.launch} did not start a task within {for_so_long:.0f} s"
        return fault.fail(state, e.at, words, outcome=OutcomeSeen(e.at, state.attempt, "failed", words))
    then = _settle(state, e.at)
    return then if then[1] else leaving.tick(then[0], e.at)


def _settle(state: LadderState, at: float) -> Step:
    """The launch is over when all its tasks or its srun have ended, or a moment after the first bad end."""
    all_told = len(state.exits) >= state.tasks
    over = state.over_since is not None
    overdue = state.over_since is not None and at - state.over_since >= state.policy.late
    if state.failing_since is None and (all_told or (overdue and state.srun == 0)):
        return _ended_well(state, at, "every rank" if all_told else "the training step")
    settled = state.failing_since is not None and (over or at - state.failing_since >= state.policy.settle)
    if not (all_told or settled or overdue):
        return state, ()
    first = first_bad(state.exits)
    silent = f"the training step ended (srun exit code {state.srun}) without a word of its ranks"
    words = first.words if first else silent
    outcome = OutcomeSeen(at, state.attempt, "failed", words, state.exits)
    return fault.fail(state, at, words, outcome=outcome)


def _ended_well(state: LadderState, at: float, which: str) -> Step:
    """A trainer may end in good order because it is told to, and its training is not done then."""
    words = f"{which} ended with exit code 0"
    if state.told:
        return leave(state, at, "stopped", f"told to stop by {state.told}: {words}")
    if state.warned and state.alone:
        return leave(state, at, "left", f"{words} on the warning before the time limit", cause="time_limit")
    return leave(state, at, "done", words)


def _stalled(state: LadderState, e: Stalled) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING or state.failing_since is not None or state.told:
        return state, ()
    if e.stall.step < 0 and max(state.max_step, state.began_step) < 0 and not e.stall.stopped:
        return state, ()  # a trainer that never beats: its silence says nothing, and a relaunch would loop
    nodes = tuple(n for n in dict.fromkeys(e.stall.nodes) if n in state.nodes)
    passed = let_pass(state, e.at, e.stall.words, quiet=True, quiet_nodes=nodes)
    if passed is not None:
        return passed
    return fault.fail(state, e.at, e.stall.words, quiet=True, quiet_nodes=nodes)


def _silent(state: LadderState, e: Silent) -> Step:
    """The limit of a silence may not be known yet, but a node that has vanished with all ranks waiting is known."""
    training = state.rung is Rung.TRAINING and state.failing_since is None and not state.told
    if not training or e.node not in state.nodes:
        return state, ()
    wait = max(e.limit, state.policy.silent * (1 if state.ready else 3))
    still = e.at - (state.stepped_at if state.step >= 0 else state.since)
    if e.silent_for < wait or still < wait:
        return state, ()
    last = f"step {state.step}{' of this start' if state.since_start else ''}"
    done = f"no rank has stepped since {last}" if state.step >= 0 else "no rank has made a step"
    words = f"nothing is heard of {e.node} for {e.silent_for:.0f} s, its slurmd gives no answer, and {done}"
    return fault.fail(state, e.at, words, quiet=True, quiet_nodes=(e.node,))


def _ended(state: LadderState, e: Ended) -> Step:
    if e.launch != state.launch or state.rung is not Rung.ENDING:
        return state, ()
    at_fault = state.incident is not None and state.incident.stage is not Stage.STARTING  # else about a former launch
    if at_fault:
        return fault.ended(state, e)
    reports = state.acting is not None and state.leaving is Leaving.REPORTED and not state.told
    return reported.ended(state, e) if reports else leaving.ended(state, e)


def _stepped(state: LadderState, e: Stepped) -> Step:
    recounted = state.since_start and not e.since_start and e.step >= 0  # now the training's own step is known
    if e.launch != state.launch or state.rung is not Rung.TRAINING or (e.step <= state.step and not recounted):
        return state, ()
    first = state.step < 0
    furthest = e.step if recounted else max(e.step, state.max_step)
    state = replace(state, step=e.step, max_step=furthest, stepped_at=e.at, since_start=e.since_start)
    told: tuple[Order, ...] = ()
    if state.incident is not None:
        told = (Tell(state.incident.id, "recovered", f"step {e.step} done in launch {state.launch}"),)
        state = close(state, e.at, "recovered")
    then = leaving.stepped(state) if first else (state, ())
    return then[0], told + then[1]


_HANDLERS: dict[type[Heard], Callable[[LadderState, Any], Step]] = {
    Begun: checking.begun,
    Checked: checking.checked,
    Faulty: checking.faulty,
    Spare: _spare,
    Appeared: _appeared,
    NotStarted: _not_started,
    SlurmAway: _slurm_away,
    Tick: _tick,
    Exits: _exits,
    Stalled: _stalled,
    Silent: _silent,
    Stepped: _stepped,
    Durable: leaving.durable,
    Ended: _ended,
    Read: fault.read,
    Reported: reported.reported,
    Warned: leaving.warned,
    Draining: leaving.draining,
    Flushing: leaving.flushing,
    Kept: keeping.kept,
    Told: leaving.told,
    Overtime: leaving.overtime,
}
