"""An attempt that is to be left on purpose: before its time limit, off a node that is drained, or because it is told.

All ranks save once more, at a step that none of them has passed; when that checkpoint is durable, the launch is ended
and the attempt left, to go on in another one. A trainer that cannot be asked to save trains on: up to Slurm's own end
at a time limit, up to its next checkpoint off a node that is drained.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.launcher.events import Draining, Durable, Ended, Flushing, Overtime, Told, Warned
from transom_cli.core.launcher.fault import swap
from transom_cli.core.launcher.keeping import TOO_LATE
from transom_cli.core.launcher.orders import End, Flush, Order, Tell
from transom_cli.core.launcher.outcome import leave, saved_words
from transom_cli.core.launcher.state import LadderState, Leaving, Memory, Rung

Step = tuple[LadderState, tuple[Order, ...]]


def warned(state: LadderState, e: Warned) -> Step:
    return begin(_for_no_report(replace(state, warned=True)), Leaving.TIME_LIMIT)


def draining(state: LadderState, e: Draining) -> Step:
    """The node is somebody's to repair: the training leaves it, but loses nothing for it."""
    new = tuple(n for n in e.nodes if n in state.allocated and n not in state.draining)
    if not new:
        return state, ()
    state = replace(state, draining=state.in_order((*state.draining, *new)))
    if not any(n in state.nodes for n in new):
        return state, ()  # spares, which are not used any more
    then = begin(_for_no_report(state), Leaving.MAINTENANCE)
    return then[0], (Tell("", "draining", e.words, "maintenance", new), *then[1])


def stepped(state: LadderState) -> Step:
    """Ranks step: what could not be asked for before is asked for now."""
    if state.warned:
        return begin(state, Leaving.TIME_LIMIT)
    still = any(n in state.draining for n in state.nodes)
    return begin(state, Leaving.MAINTENANCE) if still else (state, ())


def _for_no_report(state: LadderState) -> LadderState:
    """What must be left in time comes before what is merely slow: ranks may still be waiting to be asked to save."""
    if state.leaving is not Leaving.REPORTED or state.rung is not Rung.TRAINING:
        return state
    return replace(state, leaving=Leaving.NOT, acting=None)


def begin(state: LadderState, why: Leaving) -> Step:
    training = state.rung is Rung.TRAINING and state.failing_since is None and state.step >= 0
    if not training or state.told or state.leaving is not Leaving.NOT:
        return state, ()
    state = replace(state, leaving=why, leaving_from=state.durable, saving=None, cannot_save="", ask_again=None)
    return state, (Flush(state.launch),)


def tick(state: LadderState, at: float) -> Step:
    """An agent that gave no answer may have been started again since."""
    if state.ask_again is None or at < state.ask_again or state.leaving is Leaving.NOT:
        return state, ()
    return replace(state, saving=None, ask_again=None), (Flush(state.launch),)


def told(state: LadderState, e: Told) -> Step:
    """The ranks hear it too, from Slurm. What was going on is not taken up again."""
    if state.told:
        return state, ()
    if state.rung is Rung.CHECKING and state.launch < 0:
        state = replace(state, told=e.signal, told_at=e.at)
        return leave(state, e.at, "stopped", f"told to stop by {e.signal} before the first launch")
    if state.leaving is Leaving.NOT:
        then = begin(state, Leaving.TOLD)
        return replace(then[0], told=e.signal, told_at=e.at), then[1]
    return replace(state, told=e.signal, told_at=e.at), ()


def flushing(state: LadderState, e: Flushing) -> Step:
    if e.launch != state.launch or state.rung is not Rung.TRAINING or state.leaving is Leaving.NOT:
        return state, ()
    before, after = state.cannot_save, e.words if e.step < 0 else ""
    ask_again = e.at + state.policy.ask_again if e.step < 0 and e.again else None
    state = replace(state, saving=e.step, cannot_save=after, ask_again=ask_again, alone=e.alone)
    if e.step < 0 and e.keeps and state.told:
        return end(state, e.at)  # they would wait for an order that does not come
    then = durable(state, Durable(e.at, state.durable))
    what = f"all ranks save at step {e.step}" if e.step >= 0 else f"the ranks cannot be asked to save: {e.words}"
    told = () if after and after == before else (Tell("", "leaving", what, state.leaving.value),)
    return then[0], (*told, *then[1])


def durable(state: LadderState, e: Durable) -> Step:
    state = replace(state, durable=max(e.step, state.durable))
    if state.rung is not Rung.TRAINING or state.leaving is Leaving.NOT or state.saving is None:
        return state, ()
    by_itself = state.leaving in (Leaving.MAINTENANCE, Leaving.REPORTED) and state.durable > state.leaving_from
    return end(state, e.at) if state.saved or by_itself else (state, ())


def end(state: LadderState, at: float) -> Step:
    return replace(state, rung=Rung.ENDING, since=at), (End(state.launch, "", evidence=False),)


def ended(state: LadderState, e: Ended) -> Step:
    state = replace(state, after=e)
    if state.told:
        return leave(state, e.at, "stopped", f"told to stop by {state.told}; {saved_words(state)}")
    if state.leaving is Leaving.MAINTENANCE:
        out = tuple(n for n in state.nodes if n in state.draining)
        usable = tuple(n for n in state.ready if n not in state.draining)
        if state.batch_host in out:
            usable = ()  # swapped, it would still be kept from whoever drains it
        if len(usable) >= len(out) and not e.unheard and not e.survivors and state.policy.relaunches:
            return swap(state, e.at, out, usable[: len(out)], "maintenance")
        why = f"{', '.join(out)} is being drained; {saved_words(state)}"
        return leave(state, e.at, "left", why, cause="maintenance")
    return leave(state, e.at, "left", f"the time limit is near; {saved_words(state)}", cause="time_limit")


def overtime(state: LadderState, e: Overtime) -> Step:
    if state.memory is not Memory.NONE:
        state = replace(state, memory=Memory.NONE, kept=TOO_LATE)
    if state.rung is Rung.KEEPING and state.parting is not None:
        return leave(state, e.at, *state.parting)
    who = state.told or "Slurm"
    words = f"told to stop by {who}, and not all could be ended in time; {saved_words(state)}"
    return leave(state, e.at, "stopped", words)
