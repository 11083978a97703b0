"""What the nodes hold in memory is made durable before the attempt is given up: it would go with the nodes.

Ranks that live see to that themselves (leaving). Where they are dead or hang the nodes' memory holders do it without
them, and the attempt is left when that is done, or has taken too long. Of a job that is told to end it is begun in
time for Slurm's KILL.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.launcher.events import Kept
from transom_cli.core.launcher.orders import Keep, Order, Tell
from transom_cli.core.launcher.outcome import leave
from transom_cli.core.launcher.state import LadderState, Memory, Rung

Step = tuple[LadderState, tuple[Order, ...]]
TOO_LATE = "what the nodes held in memory did not become durable in time"


def tick(state: LadderState, at: float) -> Step:
    """The ranks were told to end, and have not come to a checkpoint."""
    late = state.told and at - state.told_at >= state.policy.flushing
    if not late or state.memory is not Memory.HELD or state.saved:
        return state, ()
    return replace(state, memory=Memory.ASKED), (Keep(state.launch),)


def kept(state: LadderState, e: Kept) -> Step:
    """What came of it is part of the outcome. An answer about nothing says nothing."""
    if state.memory is not Memory.ASKED:
        return state, ()
    state = replace(state, memory=Memory.NONE, kept=e.words, durable=max(e.step, state.durable))
    told: tuple[Order, ...] = (Tell("", "kept", e.words),) if e.words else ()
    if state.rung is not Rung.KEEPING or state.parting is None:
        return state, told
    then = leave(state, e.at, *state.parting)
    return then[0], told + then[1]
