"""Nodes of the attempt that carry no rank: spares, and nodes in whose place the launcher has put a spare. Pure.

What becomes of them is no incident of the run. A node that was given up or fell silent is looked at all the same: one
that fails two probes is isolated, so that neither this run's next attempt nor anybody else's job gets it.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.incident import Look, faults_of
from transom_cli.core.operator import isolation
from transom_cli.core.operator.actions import Isolate, Probe
from transom_cli.core.operator.asking import Step, both, order
from transom_cli.core.operator.incident import mark
from transom_cli.core.operator.looks import SECOND_LOOK, look_again, looked
from transom_cli.core.operator.state import Exclusion, State
from transom_cli.core.policy import SWAP

PREFIX = "idle/"
_SURE = "drain"  # the last word of the key of an isolation that is no mere suspicion
_PROBES_DECIDE = ("node_silent", "maintenance")  # causes for which a node that answers is not kept away


def suspect(state: State, node: str) -> Step:
    """Look at a node, once an attempt."""
    if node not in state.nodes or any(x.node == node for x in state.idle_looks):
        return state, ()
    state = replace(state, idle_looks=(*state.idle_looks, Look(node)))
    return order(state, Probe(_key(state, node, "1"), node, state.job_id))


def given_up(state: State, e: ev.HealSeen) -> Step:
    """The launcher has put spares in their place: on suspicion they are kept away for a while, dead ones for good.

    Where the policy asks for a swap and no more, the probes decide.
    """
    step: Step = (state, ())
    checked = {f.node for f in e.faults}
    for node in (n for n in e.nodes if n in state.nodes):
        known = any(x.node == node for x in step[0].idle_looks)
        step = both(step, suspect(step[0], node))
        if known or node in checked or e.cause in _PROBES_DECIDE or e.decided.action == SWAP:
            continue
        step = both(step, _isolate(step[0], e.at, node, f"{e.cause}: {e.words}", sure=False))
    return both(step, found(step[0], e.at, e.faults))


def found(state: State, at: float, faults: tuple[ev.NodeFault, ...]) -> Step:
    """What checks found against such nodes. A proven fault isolates for good, also a node that answers."""
    new = tuple(f for f in dict.fromkeys(faults) if f.node in state.nodes and f not in state.idle_faults)
    step: Step = (replace(state, idle_faults=(*state.idle_faults, *new)), ())
    for node in dict.fromkeys(f.node for f in new):
        worst = faults_of(step[0].idle_faults, node)[0]
        step = both(step, suspect(step[0], node))
        step = both(step, _isolate(step[0], at, node, worst.words, sure=worst.proven))
    return step


def probed(state: State, at: float, key: str, node: str, verdict: str, evidence: str) -> Step:
    look = next((x for x in state.idle_looks if x.node == node), None)
    if look is None:
        return state, ()  # of an attempt that is over
    look = looked(look, verdict, evidence)
    state = replace(state, idle_looks=(*(x for x in state.idle_looks if x.node != node), look))
    if look_again(look, verdict):
        number = int(key.rpartition("/")[2]) + 1
        return order(state, Probe(_key(state, node, str(number)), node, state.job_id, SECOND_LOOK))
    return _isolate(state, at, node, f"node_lost: {evidence}", sure=True) if look.dead else (state, ())


def _isolate(state: State, at: float, node: str, reason: str, *, sure: bool) -> Step:
    """Within the cap, as everywhere. A node that is excluded on suspicion is drained once its fault is sure."""
    known = next((x for x in state.exclusions if x.node == node), None)
    if known is not None and not (sure and known.until is not None):
        return state, ()
    counted = known is not None or any(isinstance(a, Isolate) and a.node == node for a in state.pending)
    if not counted and not isolation.room(state, at):
        if state.incident is None:
            return state, ()
        marked = mark(state.incident, at, "capped", f"{node} not isolated: {isolation.beyond(state)} ({reason})")
        return replace(state, incident=marked), ()
    key = _key(state, node, _SURE if sure else "exclude")
    asked = order(state, Isolate(key, node, reason, sure and state.policy.drain))
    return asked if counted else (isolation.count(asked[0], at, len(asked[1])), asked[1])


def isolated(state: State, at: float, e: ev.Isolated) -> Step:
    """The answer to an exclusion may come after that to the drain which followed it."""
    sure = e.key.endswith(f"/{_SURE}")
    known = next((x for x in state.exclusions if x.node == e.node), None)
    if known is not None and known.until is None and not sure:
        return state, ()
    look = next((x for x in state.idle_looks if x.node == e.node), None)
    faults = faults_of(state.idle_faults, e.node)
    words = faults[0].words if faults else look.evidence if look is not None else e.detail
    cause = "node_fault" if faults else "node_lost" if look is not None and look.dead else "given_up"
    until = None if sure else at + state.policy.expiry
    others = tuple(x for x in state.exclusions if x.node != e.node)
    new = Exclusion(e.node, at, until, e.how, "", words, cause, e.detail, faults)
    return replace(state, exclusions=(*others, new)), ()


def _key(state: State, node: str, what: str) -> str:
    """After a person has lifted nodes, what is asked of one is asked anew."""
    lifted = f"+{len(state.lifts)}" if state.lifts else ""
    return f"{PREFIX}{state.attempt}{lifted}/{node}/{what}"
