"""Nodes of the attempt without a rank: spares, and nodes that the launcher has replaced with a spare. Pure.

A fault of such a node is not an incident of the run. A node that was given up or fell silent is still probed: a node
that fails two probes is isolated, so that neither the next attempt nor anybody else's job gets it.
"""

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.incident import SECOND_PROBE, NodeProbes, faults_of
from transom_cli.core.operator import isolation
from transom_cli.core.operator.actions import Isolate, Probe
from transom_cli.core.operator.state import Exclusion, State, Step, both, order
from transom_cli.core.policy import SWAP

PREFIX = "idle/"
_SURE = "drain"  # the last word of the key of an isolation that is more than a suspicion
_PROBES_DECIDE = ("node_silent", "maintenance")  # causes for which a node that answers is not isolated


def suspect(state: State, node: str) -> Step:
    """Probe a node, once an attempt."""
    if node not in state.job.nodes or state.idle.probes_of(node) is not None:
        return state, ()
    state = replace(state, idle=state.idle.with_probes(NodeProbes(node)))
    return order(state, Probe(_key(state, node, "1"), node, state.job.id))


def given_up(state: State, e: ev.RecoverySeen) -> Step:
    """The launcher has replaced nodes with spares. Suspected nodes are excluded for a while, dead ones isolated.

    Where the policy asks for a swap only, the probes decide.
    """
    step: Step = (state, ())
    checked = {f.node for f in e.faults}
    for node in (n for n in e.nodes if n in state.job.nodes):
        known = step[0].idle.probes_of(node) is not None
        step = both(step, suspect(step[0], node))
        if known or node in checked or e.cause in _PROBES_DECIDE or e.decided.action == SWAP:
            continue
        step = both(step, _isolate(step[0], e.at, node, f"{e.cause}: {_why(step[0], node) or e.words}", sure=False))
    return both(step, found(step[0], e.at, e.faults))


def _why(state: State, node: str) -> str:
    """Why the launcher blames the node; "" if it blames none, or another one."""
    diagnosis = state.incident.diagnosis if state.incident is not None else None
    return diagnosis.words if diagnosis is not None and node in diagnosis.nodes else ""


def found(state: State, at: float, faults: tuple[ev.NodeFault, ...]) -> Step:
    """Checks found faults of such nodes. A proven fault drains a node, even one that answers probes."""
    known = state.idle.faults
    new = tuple(f for f in dict.fromkeys(faults) if f.node in state.job.nodes and f not in known)
    step: Step = (replace(state, idle=replace(state.idle, faults=(*known, *new))), ())
    for node in dict.fromkeys(f.node for f in new):
        worst = faults_of(step[0].idle.faults, node)[0]
        step = both(step, suspect(step[0], node))
        step = both(step, _isolate(step[0], at, node, worst.words, sure=worst.proven))
    return step


def probed(state: State, at: float, key: str, node: str, verdict: str, evidence: str) -> Step:
    probes = state.idle.probes_of(node)
    if probes is None or not key.startswith((f"{PREFIX}{state.attempt}/", f"{PREFIX}{state.attempt}+")):
        return state, ()  # of an attempt that is over
    probes = probes.after(verdict, evidence)
    state = replace(state, idle=state.idle.with_probes(probes))
    if probes.inconclusive(verdict):
        number = int(key.rpartition("/")[2]) + 1
        return order(state, Probe(_key(state, node, str(number)), node, state.job.id, SECOND_PROBE))
    return _isolate(state, at, node, f"node_lost: {evidence}", sure=True) if probes.dead else (state, ())


def _isolate(state: State, at: float, node: str, reason: str, *, sure: bool) -> Step:
    """Isolate within the cap. A node that is excluded on suspicion is drained once its fault is proven."""
    known = state.isolation.of(node)
    if known is not None and not (sure and known.until is not None):
        return state, ()
    counted = known is not None or any(isinstance(a, Isolate) and a.node == node for a in state.pending)
    if not counted and not isolation.room(state, at):
        return state.mark(at, "capped", f"{node} not isolated: {isolation.beyond(state)} ({reason})"), ()
    key = _key(state, node, _SURE if sure else "exclude")
    ordered = order(state, isolation.isolate(state, key, node, reason, drain=sure))
    return ordered if counted else (isolation.count(ordered[0], at, len(ordered[1])), ordered[1])


def isolated(state: State, at: float, e: ev.Isolated, reason: str) -> Step:
    """The answer to an exclusion may come after the answer to the drain that followed it.

    reason: for which it was ordered.
    """
    sure = e.key.endswith(f"/{_SURE}")
    known = state.isolation.of(e.node)
    if known is not None and known.until is None and not sure:
        return state, ()
    probes = state.idle.probes_of(e.node)
    faults = faults_of(state.idle.faults, e.node)
    proof = probes.evidence if probes is not None and (probes.dead or probes.suspected) else ""
    words = faults[0].words if faults else proof or reason
    cause = "node_fault" if faults else "node_lost" if probes is not None and probes.dead else "given_up"
    until, detail = (None, e.detail) if sure else isolation.expiry(state, e, e.detail)
    new = Exclusion(e.node, at, until, e.how, "", words, cause, detail, faults)
    return replace(state, isolation=state.isolation.excluding(new)), ()


def _key(state: State, node: str, what: str) -> str:
    """After a person has lifted exclusions, the questions about a node get new keys."""
    lifted = f"+{len(state.isolation.lifts)}" if state.isolation.lifts else ""
    return f"{PREFIX}{state.attempt}{lifted}/{node}/{what}"
