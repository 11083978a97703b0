"""Hangs and lost nodes that other ranks outlive: only the ranks concerned are killed. Pure.

After a hang, the evidence is collected and judged while the launch lives. If it blames few ranks with certainty, these
are killed. The ranks of a silent node, or of one with a proven fault, are killed at once if a spare is ready. A node
that does not answer counts as empty, as after the end of a launch. Then `reentry` follows, as after any death of ranks.

A hang that comes back without progress is of the survivors' own making, or the judgement was wrong. Then, and in all
other cases, the launch is ended.
"""

from dataclasses import replace

from transom_cli.core.launcher import reentry
from transom_cli.core.launcher.actions import Action, Journal, JudgeHang, KillRanks, ReadLogs
from transom_cli.core.launcher.events import HangJudged, RanksKilled
from transom_cli.core.launcher.judgement import Sign
from transom_cli.core.launcher.state import Decision, Phase, State, after

EVIDENCE = 64  # ranks whose stack goes into the journal; the files hold all of them


def evidence(incident: str, lines: tuple[str, ...]) -> tuple[Action, ...]:
    if len(lines) > EVIDENCE:
        lines = (*lines[:EVIDENCE], f"... and {len(lines) - EVIDENCE} more, in the attempt's evidence folder")
    return tuple(Journal(incident, "evidence", line) for line in lines)


def obstacle(state: State, sign: Sign) -> str:
    """Why no rank may stay after a hang, or the loss of nodes, as far as is known now; "" if some may."""
    again = state.budget.spent("hang") > 0 and not state.progress.further()
    out = _lost_nodes(state, sign)
    if why := reentry.never(state):
        return why
    if state.launch.exits:
        return "other ranks have ended"
    if not out and sign.stall is not None and sign.stall.overdue:
        return f"nobody sees the ranks on {', '.join(sign.stall.overdue)}"
    if not out:
        return "it came back before the run has made progress" if again else ""
    if not _few(state, _on(state, out)):
        return f"too few ranks are on other nodes than {', '.join(out)}"
    return "" if len(state.nodes.usable) >= len(out) else f"no spare is ready for {', '.join(out)}"


def begin(state: State, at: float, sign: Sign) -> Decision:
    """After a sign without an `obstacle`."""
    out, name = _lost_nodes(state, sign), state.incident.id if state.incident is not None else ""
    if not out:
        return state.enter(Phase.READING, at), (JudgeHang(state.launch.number, name),)
    ranks = _on(state, out)
    words = f"{', '.join(out)} is given up: {reentry.named(ranks)} killed there, so that the others can stay"
    return _kill(state, at, ranks, words)


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
    if not e.ranks or not _few(state, e.ranks):
        return after(entries, reentry.end_all(state, e.at, "nothing shows for which of them the others wait"))
    named = reentry.named(e.ranks)
    if stand_out and not set(e.ranks) <= set(stand_out):
        why = f"the others wait for {named} by the stacks, which do not stand out in heartbeats"
        return after(entries, reentry.end_all(state, e.at, why))
    words = f"the others wait for {named}: killed, so that the others can stay"
    return after(entries, _kill(state, e.at, e.ranks, words))


def killed(state: State, e: RanksKilled) -> Decision:
    launch = state.launch
    if not _waits(state, e.launch) or not launch.culprits or launch.exits or launch.unheard:
        return state, ()
    unheard = state.nodes.of_launch(e.unheard)
    state = replace(state, launch=replace(launch, exits=e.exits, unheard=unheard))
    lost = set(reentry.lost(state))
    if not lost >= set(launch.culprits) or not all(x.bad for x in e.exits) or not reentry.survivors(state):
        why = e.words or f"{reentry.named(launch.culprits)} did not end, or others ended with them"
        return reentry.end_all(state, e.at, why)
    first = launch.culprits[0] if len(launch.culprits) == 1 and not unheard else None
    return state.enter(Phase.READING, e.at), (ReadLogs(launch.number, first, alive=True, without=unheard),)


def _kill(state: State, at: float, ranks: tuple[int, ...], words: str) -> Decision:
    name = state.incident.id if state.incident is not None else ""
    entry = Journal(name, "reentry", words)
    state = replace(state, launch=replace(state.launch, culprits=ranks)).enter(Phase.READING, at)
    return state, (entry, KillRanks(state.launch.number, ranks))


def _lost_nodes(state: State, sign: Sign) -> tuple[str, ...]:
    """Nodes of the launch about which the sign says that they do not answer, or are faulty."""
    faulty = tuple(fault.node for fault in sign.faults)
    if sign.stall is None:
        return state.nodes.of_launch((*faulty, *sign.suspects))
    silent = state.nodes.of_launch(sign.stall.overdue)
    return silent if set(silent) <= set(sign.stall.nodes) else ()


def _on(state: State, nodes: tuple[str, ...]) -> tuple[int, ...]:
    each = state.tasks_on_node
    return tuple(rank for rank in range(state.tasks) if state.nodes.training[rank // each] in nodes)


def _few(state: State, ranks: tuple[int, ...]) -> bool:
    return 2 * len(ranks) <= state.tasks


def _waits(state: State, launch: int) -> bool:
    """Whether the ranks of `launch` are alive, and wait for a decision."""
    return launch == state.launch.number and state.phase is Phase.READING and state.launch.ended is None
