"""Nodes are looked at before they carry a rank, after a failure that speaks against one, and all the while. Pure.

Before the first launch: bad nodes carry none, spares take their places, and with too few good nodes the attempt is left
for others. While the ranks train: what is proven against a node ends the launch at once, instead of at a collective's
timeout; a suspicion is remembered, and counts once the launch fails. What could not be checked speaks against nobody.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.diagnose import NODE_FAULT, PREFLIGHT
from transom_cli.core.events import NodeFault
from transom_cli.core.launcher.events import Begun, Checked, Faulty
from transom_cli.core.launcher.fault import after_check, fail, without_old_doubts
from transom_cli.core.launcher.judging import let_pass
from transom_cli.core.launcher.orders import CheckNodes, Order, Start, Tell
from transom_cli.core.launcher.outcome import lack_nodes, leave
from transom_cli.core.launcher.state import LadderState, Memory, Rung

Step = tuple[LadderState, tuple[Order, ...]]


def begun(state: LadderState, e: Begun) -> Step:
    if state.launch >= 0 or state.begun is not None:
        return state, ()
    state = replace(state, since=e.at, durable=e.durable, began_durable=e.durable, progress=e.durable, begun=e)
    state = replace(state, began_step=e.step, began_made=e.made, stuck=e.stuck)
    state = replace(state, taken=tuple(replace(t, at=e.at + t.at) for t in e.taken))
    if not state.policy.preflight:
        return _first_launch(state, e.at)
    nodes = tuple(n for n in state.allocated if n not in e.isolated) or state.allocated
    return replace(state, rung=Rung.CHECKING), (CheckNodes(PREFLIGHT, nodes, "quick"),)


def checked(state: LadderState, e: Checked) -> Step:
    if state.rung is not Rung.CHECKING or e.key != _key(state):
        return state, ()
    state = _remember(state, e.faults)
    told = _told(e.key, e.words, e.faults)
    then = _first_launch(state, e.at) if state.launch < 0 else after_check(state, e.at)
    return then[0], told + then[1]


def late(state: LadderState, at: float) -> Step:
    """The examination itself hangs: it has its own deadlines, so this is not the nodes' fault."""
    for_so_long = at - state.since
    patience = state.policy.checking if state.launch < 0 else state.policy.checking_deep
    if state.rung is not Rung.CHECKING or for_so_long < patience:
        return state, ()
    return checked(state, Checked(at, _key(state), words=f"no result after {for_so_long:.0f} s: it is not waited for"))


def faulty(state: LadderState, e: Faulty) -> Step:
    """An agent's word on its own node."""
    state = _forget_doubts(state, e)
    told = (*state.faults, *(f for f, _ in state.doubted))
    known = {(f.node, f.check, f.verdict, f.device) for f in told}
    new = tuple(
        f for f in e.faults if f.node in state.allocated and (f.node, f.check, f.verdict, f.device) not in known
    )
    state = _remember(state, new)
    state = replace(state, doubted=(*state.doubted, *((f, e.at) for f in new if not f.proven)))
    if not new:
        return state, ()
    spares = tuple(f for f in new if f.node not in state.nodes and f.node in (*state.spares, *state.ready))
    out = tuple(dict.fromkeys(f.node for f in spares))
    orders: tuple[Order, ...] = ()
    if out:
        gone = (*state.given_up, *(n for n in out if n not in state.given_up))
        left = tuple(n for n in state.spares if n not in out)
        state = replace(state, given_up=gone, spares=left, ready=tuple(n for n in state.ready if n not in out))
        words = f"no spare any more: {in_words(spares)}"
        orders = (Tell("", "swapped", words, NODE_FAULT, out, spares),)
    mine = tuple(f for f in new if f.node in state.nodes)
    proven = tuple(f for f in mine if f.proven)
    if proven and state.rung is Rung.TRAINING and state.failing_since is None and not state.told:
        words = in_words(proven)
        then = let_pass(state, e.at, words, faults=proven) or fail(state, e.at, words)
        return then[0], orders + then[1]
    doubts = (Tell("", "finding", in_words(mine), NODE_FAULT, (), mine),) if mine else ()
    return state, orders + doubts


def _forget_doubts(state: LadderState, e: Faulty) -> LadderState:
    """Those that are heard again count anew."""
    again = {(f.node, f.check, f.device) for f in e.faults if not f.proven}
    doubted = tuple((f, e.at if (f.node, f.check, f.device) in again else at) for f, at in state.doubted)
    return without_old_doubts(replace(state, doubted=doubted), e.at)


def in_words(faults: tuple[NodeFault, ...]) -> str:
    """The first of each node, for a person."""
    first = {f.node: f for f in sorted(faults, key=lambda f: f.proven)}
    return "; ".join(f"{f.node}: {f.check}: {f.evidence}" for f in first.values())


def _first_launch(state: LadderState, at: float) -> Step:
    """Isolated nodes carry no rank: spares come first, then, where another keeps them out, they themselves. Nodes that
    were found bad carry none; but those that are only suspected do where the attempt before this one has been left for
    want of nodes already: a suspicion that holds wherever the job goes is more likely the check's fault.
    """
    begun = state.begun
    assert begun is not None
    if state.told:
        return leave(state, at, "stopped", f"told to stop by {state.told} before the first launch")
    faulty = _faulty(state, proven=False)
    if begun.lacked and len(state.allocated) - len(faulty) < state.wanted:
        faulty = _faulty(state, proven=True)
    isolated = tuple(n for n in state.allocated if n in begun.isolated and n not in faulty)
    good = tuple(n for n in state.allocated if n not in (*faulty, *isolated))
    could = good if begun.insist else (*good, *isolated)
    if len(could) < state.wanted and (faulty or begun.insist):
        again = "hold" if begun.lacked else "requeue"
        state = replace(state, given_up=state.in_order((*faulty, *isolated)))
        cause = PREFLIGHT if faulty else "isolated_nodes"
        return lack_nodes(state, at, len(could), again=again, cause=cause, found=in_words(state.faults))
    carrying = state.in_order((*good, *isolated)[: state.wanted])
    out = tuple(n for n in isolated if n not in carrying)
    spares = tuple(n for n in good if n not in carrying)
    ready = tuple(n for n in state.ready if n in spares)
    state = replace(state, launch=0, nodes=carrying, spares=spares, ready=ready, rung=Rung.TRAINING, since=at)
    state = replace(state, given_up=state.in_order((*out, *faulty)), inherited=out)
    state = replace(state, memory=Memory.HELD if begun.memory else Memory.NONE)
    return state, (Start(0, carrying, tuple(f for f in state.faults if f.node not in carrying)),)


def _faulty(state: LadderState, *, proven: bool) -> tuple[str, ...]:
    """Nodes that checks speak against; or those alone of which they have proof."""
    return tuple(n for n in state.allocated if any(f.node == n and (f.proven or not proven) for f in state.faults))


def _remember(state: LadderState, faults: tuple[NodeFault, ...]) -> LadderState:
    ours = tuple(f for f in faults if f.node in state.allocated and f not in state.faults)
    return replace(state, faults=(*state.faults, *ours))


def _told(key: str, words: str, faults: tuple[NodeFault, ...]) -> tuple[Order, ...]:
    """Before the first launch the operator does not know the nodes yet: the launch tells it of their faults."""
    if key == PREFLIGHT:
        return (Tell("", "checked", words),)
    return (Tell(key, "checked", words, nodes=tuple(dict.fromkeys(f.node for f in faults)), faults=faults),)


def _key(state: LadderState) -> str:
    return PREFLIGHT if state.launch < 0 or state.incident is None else state.incident.id
