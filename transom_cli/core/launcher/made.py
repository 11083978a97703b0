"""How many steps the present launch has made, as far as it is known. Pure."""

from __future__ import annotations

from transom_cli.core.diagnose import first_bad
from transom_cli.core.launcher.state import LadderState


def made(state: LadderState) -> tuple[int, bool]:
    """The launch's newest step (-1: none), and whether steps count from the start of the processes.

    The heartbeats may be a second old. The wrapper of the rank that failed first knows its last step.
    """
    exits = state.exits
    if state.incident is not None and state.incident.outcome is not None:
        exits = state.incident.outcome.exits or exits
    first = first_bad(exits)
    if first is not None and first.step >= 0 and (state.step < 0 or first.since_start == state.since_start):
        return first.step, first.since_start
    return state.step, state.since_start
