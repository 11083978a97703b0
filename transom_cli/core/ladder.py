"""The launcher's core: `decide(state, heard) -> (state, orders)`. A fault is handled inside the allocation if possible.

A launch that fails is ended for certain (no process of it is left on any node), its cause is diagnosed by the same
rules as the operator's, and the training step is started again on the same nodes. The attempt is handed up, with an
outcome that names cause and suspects, when a node is to blame or does not answer, when a restart would not mend it, or
when the relaunches for this cause are spent. Progress refills them, time does not.

Total: whatever is heard in whatever state is answered; what is told of another launch changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transom_cli.core.diagnose import diagnose, first_bad
from transom_cli.core.events import OutcomeSeen
from transom_cli.core.ladder_end import close, leave
from transom_cli.core.ladder_shapes import (
    Appeared,
    Begun,
    Durable,
    End,
    Ended,
    Exits,
    Heard,
    LadderState,
    NotStarted,
    Order,
    Overtime,
    Quiet,
    Read,
    ReadLogs,
    Rung,
    Start,
    Stepped,
    Tell,
    Tick,
    Told,
)
from transom_cli.core.state import Diagnosis, Incident, Mark, Stage, State

Step = tuple[LadderState, tuple[Order, ...]]
EVIDENCE = 64  # ranks whose stack is told in the incident's story; the files hold all of them


def decide(state: LadderState, heard: Heard) -> Step:
    handler = _HANDLERS.get(type(heard))
    if handler is None:
        raise TypeError(f"no handler for {type(heard).__name__}")
    if state.rung is Rung.LEFT:
        return state, ()
    return handler(state, heard)


def _begun(state: LadderState, e: Begun) -> Step:
    if state.launch >= 0:
        return state, ()
    state = replace(state, since=e.at, launch=0, durable=e.durable, progress=e.durable)
    return state, (Start(0),)


def _not_started(state: LadderState, e: NotStarted) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING:
        return state, ()
    return leave(state, e.at, "failed", e.words)


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
    """What takes too long is not waited for any longer."""
    for_so_long = e.at - state.since
    if state.rung is Rung.ENDING and for_so_long >= state.policy.ending:
        stuck = ("this launcher", f"the end of launch {state.launch}, under way for {for_so_long:.0f} s,")
        return _ended(state, Ended(e.at, state.launch, survivors=(stuck,)))
    if state.rung is Rung.READING and for_so_long >= state.policy.reading:
        return _read(state, Read(e.at, state.launch, "unknown", f"no answer for {for_so_long:.0f} s", "logs"))
    if state.rung is not Rung.TRAINING:
        return state, ()
    come_up = max(state.policy.come_up, 3 * state.came_up)
    if state.launch > 0 and not state.appeared and not state.exits and for_so_long >= come_up:
        words = f"launch {state.launch} did not start a task within {for_so_long:.0f} s"
        return _fail(state, e.at, words, outcome=OutcomeSeen(e.at, state.attempt, "failed", words))
    return _settle(state, e.at)


def _settle(state: LadderState, at: float) -> Step:
    """The launch is over when all its tasks or its srun have ended, or a moment after the first bad end."""
    all_told = len(state.exits) >= state.tasks
    over = state.over_since is not None
    overdue = state.over_since is not None and at - state.over_since >= state.policy.late
    if state.failing_since is None and (all_told or (overdue and state.srun == 0)):
        status = "stopped" if state.told else "done"  # a trainer may end in good order when it is told to
        which = "every rank" if all_told else "the training step"
        return leave(state, at, status, f"{which} ended with exit code 0")
    settled = state.failing_since is not None and (over or at - state.failing_since >= state.policy.settle)
    if not (all_told or settled or overdue):
        return state, ()
    first = first_bad(state.exits)
    silent = f"the training step ended (srun exit code {state.srun}) without a word of its ranks"
    words = first.words if first else silent
    outcome = OutcomeSeen(at, state.attempt, "failed", words, state.exits)
    return _fail(state, at, words, outcome=outcome)


def _quiet(state: LadderState, e: Quiet) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING or state.failing_since is not None or state.told:
        return state, ()
    if e.step < 0 and state.max_step < 0:
        return state, ()  # a trainer that never beats: its silence says nothing, and a relaunch would loop
    who = f", ranks {', '.join(map(str, e.culprits))} stand out" if e.culprits else ""
    words = f"no step for {e.quiet_for:.1f} s (limit {e.limit:.1f} s) after step {e.step}{who}"
    nodes = tuple(n for n in dict.fromkeys(e.nodes) if n in state.nodes)
    return _fail(state, e.at, words, quiet=True, quiet_nodes=nodes)


def _fail(state: LadderState, at: float, words: str, **found: object) -> Step:
    if state.told:
        return leave(state, at, "stopped", words)
    state = close(state, at, "failed again")
    name = f"l{len(state.incidents) + 1}"
    incident = Incident(name, state.job_id, state.restart, at, max(state.step, state.max_step))
    incident = replace(incident, marks=(Mark(at, "seen", words),), **found)  # type: ignore[arg-type]
    cause = "hang" if incident.quiet else ""
    return replace(state, incident=incident, rung=Rung.ENDING, since=at), (
        Tell(name, "seen", words, cause, incident.quiet_nodes),
        End(state.launch, name, evidence=incident.quiet),
    )


def _ended(state: LadderState, e: Ended) -> Step:
    incident = state.incident
    if e.launch != state.launch or state.rung is not Rung.ENDING or incident is None:
        return state, ()
    lines = e.evidence[:EVIDENCE]
    if len(e.evidence) > EVIDENCE:
        lines += (f"... and {len(e.evidence) - EVIDENCE} more, in the attempt's evidence folder",)
    told = tuple(Tell(incident.id, "evidence", line) for line in lines)
    first = first_bad(incident.outcome.exits) if incident.outcome else None
    read = ReadLogs(state.launch, first.rank if first else None)
    return replace(state, rung=Rung.READING, since=e.at, after=e), (*told, read)


def _read(state: LadderState, e: Read) -> Step:
    incident, after = state.incident, state.after
    if e.launch != state.launch or state.rung is not Rung.READING or incident is None or after is None:
        return state, ()
    orders: tuple[Order, ...] = ()
    if e.line:
        orders = (Tell(incident.id, "examined", f"{e.where}: {e.line}"),)
    incident = replace(incident, log_category=e.category, log_line=e.line)
    diagnosis = diagnose(incident, _as_the_operator_sees_it(state))
    state = replace(state, incident=replace(incident, diagnosis=diagnosis))
    told = Tell(incident.id, "diagnosed", diagnosis.words, diagnosis.cause, diagnosis.nodes) if diagnosis else None
    orders = (*orders, told) if told else orders
    if state.told:
        then = leave(state, e.at, "stopped", f"told to stop by {state.told}")
    else:
        why = _hand_up(state, diagnosis, after)
        then = leave(state, e.at, "failed", why) if why else _relaunch(state, e.at, diagnosis)
    return then[0], orders + then[1]


def _as_the_operator_sees_it(state: LadderState) -> State:
    return State(
        nodes=state.nodes,
        launched=True,
        step=state.step,
        max_step=state.max_step,
        durable=state.durable,
        incidents=state.incidents,
    )


def _hand_up(state: LadderState, diagnosis: Diagnosis | None, after: Ended) -> str:
    """Why this is not for a relaunch, or nothing."""
    words = diagnosis.words if diagnosis else "the training step ended"
    if after.unheard:
        return f"{words}; no answer from {', '.join(after.unheard)}"
    if after.survivors:
        node, what = after.survivors[0]
        return f"{words}; {what} on {node} cannot be ended"
    if state.launch > 0 and not (state.appeared or state.exits):
        return words  # a second try would find the same
    if diagnosis is None or not diagnosis.restart or diagnosis.isolate != "none":
        return words
    if not state.policy.relaunches:
        return words
    spent = _spent(state, diagnosis.cause)
    if spent >= state.policy.relaunches:
        return f"{words}; relaunched {spent} times without progress beyond step {state.progress}"
    return ""


def _reached(state: LadderState) -> int:
    """What a new launch can count on: the newest durable step, or without checkpoints the newest step."""
    return state.durable if state.durable >= 0 else state.max_step


def _spent(state: LadderState, cause: str) -> int:
    return 0 if _reached(state) > state.progress else dict(state.spent).get(cause, 0)


def _relaunch(state: LadderState, at: float, diagnosis: Diagnosis | None) -> Step:
    cause = diagnosis.cause if diagnosis else ""
    spent = {} if _reached(state) > state.progress else dict(state.spent)
    spent[cause] = spent.get(cause, 0) + 1
    incident = replace(state.incident, stage=Stage.STARTING) if state.incident else None
    state = replace(
        state,
        rung=Rung.TRAINING,
        since=at,
        launch=state.launch + 1,
        appeared=False,
        step=-1,
        exits=(),
        over_since=None,
        srun=None,
        failing_since=None,
        after=None,
        progress=max(state.progress, _reached(state)),
        spent=tuple(sorted(spent.items())),
        incident=incident,
    )
    return state, (Start(state.launch),)


def _stepped(state: LadderState, e: Stepped) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING or e.step <= state.step:
        return state, ()
    state = replace(state, step=e.step, max_step=max(e.step, state.max_step))
    if state.incident is None:
        return state, ()
    told = Tell(state.incident.id, "recovered", f"step {e.step} done in launch {state.launch}")
    return close(state, e.at, "recovered"), (told,)


def _durable(state: LadderState, e: Durable) -> Step:
    return replace(state, durable=max(e.step, state.durable)), ()


def _told(state: LadderState, e: Told) -> Step:
    """The ranks hear it too, from srun. What was going on is not taken up again."""
    return replace(state, told=state.told or e.signal), ()


def _overtime(state: LadderState, e: Overtime) -> Step:
    who = state.told or "Slurm"
    return leave(state, e.at, "stopped", f"told to stop by {who}, and not all could be ended in time")


_HANDLERS: dict[type[Heard], Callable[[LadderState, Any], Step]] = {
    Begun: _begun,
    Appeared: _appeared,
    NotStarted: _not_started,
    Overtime: _overtime,
    Tick: _tick,
    Exits: _exits,
    Quiet: _quiet,
    Stepped: _stepped,
    Durable: _durable,
    Ended: _ended,
    Read: _read,
    Told: _told,
}
