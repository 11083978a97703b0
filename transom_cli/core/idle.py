"""Nodes of the attempt that carry no rank: spares, and nodes in whose place the launcher has put a spare. Pure.

What becomes of them is no incident of the run. A node that was given up or fell silent is looked at all the same: one
that fails two probes is isolated, so that neither this run's next attempt nor anybody else's job gets it.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core import incident as inc
from transom_cli.core.actions import Isolate, Probe
from transom_cli.core.incident import Step, order
from transom_cli.core.state import Exclusion, Look, State

PREFIX = "idle/"
_PROBES_DECIDE = ("node_silent", "maintenance")  # causes for which a node that answers is not kept away


def suspect(state: State, node: str) -> Step:
    """Look at a node, once an attempt."""
    if node not in state.nodes or any(x.node == node for x in state.idle_looks):
        return state, ()
    state = replace(state, idle_looks=(*state.idle_looks, Look(node)))
    return order(state, Probe(_key(state, node, "1"), node, state.job_id))


def given_up(state: State, at: float, nodes: tuple[str, ...], cause: str, words: str) -> Step:
    """The launcher has put spares in their place: on suspicion they are kept away for a while, dead ones for good."""
    step: Step = (state, ())
    for node in (n for n in nodes if n in state.nodes):
        known = any(x.node == node for x in step[0].idle_looks)
        step = inc.both(step, suspect(step[0], node))
        if known or cause in _PROBES_DECIDE:
            continue
        step = inc.both(step, _isolate(step[0], at, node, f"{cause}: {words}", drain=False))
    return step


def probed(state: State, at: float, key: str, node: str, verdict: str, evidence: str) -> Step:
    look = next((x for x in state.idle_looks if x.node == node), None)
    if look is None:
        return state, ()  # of an attempt that is over
    look = inc.looked(look, verdict, evidence)
    state = replace(state, idle_looks=(*(x for x in state.idle_looks if x.node != node), look))
    if inc.look_again(look, verdict):
        number = int(key.rpartition("/")[2]) + 1
        return order(state, Probe(_key(state, node, str(number)), node, state.job_id, inc.SECOND_LOOK))
    return _isolate(state, at, node, f"node_lost: {evidence}", drain=state.policy.drain) if look.dead else (state, ())


def _isolate(state: State, at: float, node: str, reason: str, *, drain: bool) -> Step:
    """Within the cap, as everywhere. A node that is excluded on suspicion is drained once it is known to be dead."""
    known = next((x for x in state.exclusions if x.node == node), None)
    if known is not None and not (drain and known.until is not None):
        return state, ()
    if known is None:
        if not inc.room(state, at):
            return state, ()
        state = inc.count_isolations(state, at, 1)
    return order(state, Isolate(_key(state, node, "drain" if drain else "exclude"), node, reason, drain))


def isolated(state: State, at: float, e: ev.Isolated) -> Step:
    look = next((x for x in state.idle_looks if x.node == e.node), None)
    dead = look is not None and look.dead
    until = None if dead else at + state.policy.expiry
    words = look.evidence if look is not None else e.detail
    others = tuple(x for x in state.exclusions if x.node != e.node)
    new = Exclusion(e.node, at, until, e.how, "", words)
    return replace(state, exclusions=(*others, new)), ()


def _key(state: State, node: str, what: str) -> str:
    return f"{PREFIX}{state.attempt}/{node}/{what}"
