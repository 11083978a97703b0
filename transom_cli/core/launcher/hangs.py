"""A hang that survivors outlive: only the ranks that the others wait for are killed. Pure.

The evidence is collected and judged while the launch lives. If it blames few ranks with certainty, these are killed,
and `reentry` follows, as after any death of ranks. A hang that comes back without progress is of the survivors' own
making, or the judgement was wrong. Then, and in all other cases, the launch is ended.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.launcher import reentry
from transom_cli.core.launcher.actions import Action, Journal, KillRanks, ReadLogs
from transom_cli.core.launcher.events import HangJudged, RanksKilled
from transom_cli.core.launcher.judgement import Sign
from transom_cli.core.launcher.state import Decision, Phase, State, after

EVIDENCE = 64  # ranks whose stack goes into the journal; the files hold all of them


def evidence(incident: str, lines: tuple[str, ...]) -> tuple[Action, ...]:
    if len(lines) > EVIDENCE:
        lines = (*lines[:EVIDENCE], f"... and {len(lines) - EVIDENCE} more, in the attempt's evidence folder")
    return tuple(Journal(incident, "evidence", line) for line in lines)


def possible(state: State, sign: Sign) -> bool:
    """Whether ranks may stay after a hang, as far as is known before the evidence is judged."""
    stall = sign.stall
    seen = stall is not None and not stall.overdue and not stall.unseen
    again = state.budget.spent("hang") > 0 and not state.progress.further()
    return seen and not again and not state.launch.exits and reentry.may_stay(state)


def judged(state: State, e: HangJudged) -> Decision:
    incident, launch = state.incident, state.launch
    if not _waits(state, e.launch) or launch.culprits or incident is None:
        return state, ()
    if suspects := state.nodes.of_launch(e.suspects):
        incident = replace(incident, suspect_nodes=suspects)
    state, entries = replace(state, incident=incident), evidence(incident.id, e.evidence)
    stand_out = incident.stall.culprits if incident.stall is not None else ()
    if state.stop:
        return after(entries, reentry.end_all(state, e.at, "the attempt is to end"))
    if not e.ranks or 2 * len(e.ranks) > state.tasks:
        return after(entries, reentry.end_all(state, e.at, "nothing shows for which of them the others wait"))
    if stand_out and not set(e.ranks) <= set(stand_out):
        why = f"the others wait for {reentry.named(e.ranks)} by the stacks, which do not stand out in heartbeats"
        return after(entries, reentry.end_all(state, e.at, why))
    words = f"the others wait for {reentry.named(e.ranks)}: killed, so that the others can stay"
    state = replace(state, launch=replace(launch, culprits=e.ranks)).enter(Phase.READING, e.at)
    return state, (*entries, Journal(incident.id, "reentry", words), KillRanks(launch.number, e.ranks))


def killed(state: State, e: RanksKilled) -> Decision:
    launch = state.launch
    if not _waits(state, e.launch) or not launch.culprits or launch.exits:
        return state, ()
    state = replace(state, launch=replace(launch, exits=e.exits))
    ended = {x.rank for x in e.exits if x.bad}
    if not ended >= set(launch.culprits) or len(ended) < len(e.exits) or not reentry.survivors(state):
        why = e.words or f"{reentry.named(launch.culprits)} did not end, or others ended with them"
        return reentry.end_all(state, e.at, why)
    first = launch.culprits[0] if len(launch.culprits) == 1 else None
    return state.enter(Phase.READING, e.at), (ReadLogs(launch.number, first, alive=True),)


def _waits(state: State, launch: int) -> bool:
    """Whether the ranks of `launch` are alive, and wait for a decision."""
    return launch == state.launch.number and state.phase is Phase.READING and state.launch.ended is None
