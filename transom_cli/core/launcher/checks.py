"""Health checks of nodes: before the first launch, after a failure that suggests a bad node, and during training. Pure.

Before the first launch, spares replace bad nodes; with too few good nodes, the attempt ends and the job is requeued.
During training, a proven fault ends the launch at once, long before a collective's timeout; a suspicion is remembered
and counts if the launch fails. What could not be checked accuses no node.
"""

from dataclasses import replace

from transom_cli.core.diagnose import NODE_FAULT, PREFLIGHT
from transom_cli.core.events import NodeFault
from transom_cli.core.launcher import growth
from transom_cli.core.launcher.actions import CheckNodes, Journal, StartLaunch
from transom_cli.core.launcher.events import AttemptStarted, FaultsFound, NodesChecked
from transom_cli.core.launcher.failure import fail, suspects_checked
from transom_cli.core.launcher.judgement import Sign, ignore
from transom_cli.core.launcher.outcome import lack_nodes, stop
from transom_cli.core.launcher.state import Decision, Memory, Phase, State, after
from transom_cli.core.placement import Network, Placement, place
from transom_cli.core.progress import Counted, Progress


def attempt_started(state: State, e: AttemptStarted) -> Decision:
    if not state.unlaunched or state.begun is not None:
        return state, ()
    state = replace(
        state,
        since=e.at,
        begun=e,
        progress=Progress(durable=e.durable, counted=Counted(durable=e.durable)),
        history=replace(state.history, earlier=tuple(replace(t, at=e.at + t.at) for t in e.taken)),
    )
    if not state.policy.preflight:
        return _first_launch(state, e.at)
    nodes = tuple(n for n in state.nodes.allocated if n not in e.isolated) or state.nodes.allocated
    return replace(state, phase=Phase.CHECKING), (CheckNodes(PREFLIGHT, nodes, "quick"),)


def nodes_checked(state: State, e: NodesChecked) -> Decision:
    if e.key == growth.KEY:
        return growth.checked(_remember(state, e.faults), e)
    key = _key(state)
    if state.phase is not Phase.CHECKING or e.key != key:
        return state, ()
    state = _remember(state, e.faults)
    if key == PREFLIGHT:  # the operator does not know the nodes yet; `StartLaunch` carries their faults
        entry = Journal("", "checked", e.words)
    else:
        entry = Journal(key, "checked", e.words, nodes=_nodes_of(e.faults), faults=e.faults)
    first = state.unlaunched
    if first:
        state = replace(state, network=Network(dict(e.switches), {(a, b): seconds for a, b, seconds in e.links}))
    return after((entry,), _first_launch(state, e.at) if first else suspects_checked(state, e.at))


def late_at(state: State) -> float:
    """When the checks themselves count as hung."""
    return state.since + (state.policy.checking if state.unlaunched else state.policy.checking_deep)


def late(state: State, at: float) -> Decision:
    """Continue without the checks. They have deadlines of their own, so no node is to blame."""
    words = f"no result after {at - state.since:.0f} s: continuing without one"
    return nodes_checked(state, NodesChecked(at, _key(state), words=words))


def faults_found(state: State, e: FaultsFound) -> Decision:
    allocated = state.nodes.allocated
    health = state.health.heard_again(e.faults, e.at).current(e.at, len(allocated))
    known = {_identity(f) for f in (*health.faults, *(f for f, _ in health.doubts))}
    new = tuple(f for f in e.faults if f.node in allocated and _identity(f) not in known)
    state = _remember(replace(state, health=health), new)
    state = replace(state, health=state.health.with_doubts(new, e.at))
    if not new:
        return state, ()
    state, actions = _drop_spares(state, new)
    mine = tuple(f for f in new if f.node in state.nodes.training)
    proven = tuple(f for f in mine if f.proven)
    if proven and state.runs and not state.stop:
        sign = Sign(_in_words(proven), faults=proven)
        return after(actions, ignore(state, e.at, sign) or fail(state, e.at, sign))
    entry = (Journal("", "finding", _in_words(mine), NODE_FAULT, (), mine),) if mine else ()
    return state, actions + entry


def _drop_spares(state: State, faults: tuple[NodeFault, ...]) -> Decision:
    nodes = state.nodes
    bad = tuple(f for f in faults if f.node not in nodes.training and f.node in (*nodes.spares, *nodes.ready))
    if not bad:
        return state, ()
    out = _nodes_of(bad)
    state = replace(state, nodes=nodes.giving_up(out).without_spares(out))
    return state, (Journal("", "swapped", f"spare given up: {_in_words(bad)}", NODE_FAULT, out, bad),)


def _first_launch(state: State, at: float) -> Decision:
    """Start the first launch on good nodes.

    Isolated nodes carry no rank unless spares are lacking and somebody else keeps them out. Bad nodes carry none. But
    if the attempt before ended for lack of nodes already, suspected nodes are used: a suspicion that follows the job to
    all nodes is more likely a fault of the check.
    """
    begun, nodes = state.before, state.nodes
    if state.stop:
        return stop(state, at, " before the first launch")
    bad = _accused(state, proven=False)
    if begun.lacked and len(nodes.allocated) - len(bad) < nodes.wanted:
        bad = _accused(state, proven=True)
    isolated = tuple(n for n in nodes.allocated if n in begun.isolated and n not in bad)
    good = tuple(n for n in nodes.allocated if n not in (*bad, *isolated))
    good = tuple(sorted(good, key=lambda n: n in begun.probation))
    candidates = good if begun.insist else (*good, *isolated)
    number = nodes.number_for(len(candidates))
    if not number and (bad or begun.insist or state.first):  # an earlier job step gave some up
        state = replace(state, nodes=replace(nodes, given_up=nodes.in_order((*bad, *isolated))))
        return lack_nodes(
            state,
            at,
            len(candidates),
            again="hold" if begun.lacked else "requeue",
            cause=PREFLIGHT if bad else "isolated_nodes",
            findings=_in_words(state.health.faults),
        )
    carrying = nodes.in_order((*good, *isolated)[: number or nodes.wanted])
    free = nodes.in_order(n for n in good if n not in begun.probation or n in carrying)
    placement = place(free, len(carrying), state.network) if set(carrying) <= set(good) else Placement(carrying)
    carrying = placement.order
    inherited = tuple(n for n in isolated if n not in carrying)
    spares = (*placement.spares, *nodes.in_order(set(good).difference(carrying, placement.spares)))
    state = replace(
        state,
        nodes=replace(
            nodes,
            training=carrying,
            spares=spares,
            ready=tuple(n for n in nodes.ready if n in spares),
            given_up=nodes.in_order((*inherited, *bad)),
            inherited=inherited,
            probation=begun.probation,
        ),
        launch=state.launch.next(),
        memory=Memory.HELD if begun.memory else Memory.NONE,
    ).enter(Phase.TRAINING, at)
    faults = tuple(f for f in state.health.faults if f.node not in carrying)
    entries: tuple[Journal, ...] = (Journal("", "checked", placement.words),) if placement.words else ()
    if waiting := tuple(n for n in spares if n in begun.probation):
        words = f"{', '.join(waiting)} failed before: a spare first, and a rank only if no other spare is ready"
        entries += (Journal("", "probation", words, "", waiting),)
    return state, (*entries, StartLaunch(state.launch.number, carrying, faults))


def _accused(state: State, *, proven: bool) -> tuple[str, ...]:
    """Nodes with a fault, or with a proven one."""
    return state.nodes.in_order(f.node for f in state.health.faults if f.proven or not proven)


def _remember(state: State, faults: tuple[NodeFault, ...]) -> State:
    ours = tuple(f for f in faults if f.node in state.nodes.allocated)
    return replace(state, health=state.health.with_faults(ours))


def _identity(fault: NodeFault) -> tuple[str, str, str, str]:
    return fault.node, fault.check, fault.verdict, fault.device


def _nodes_of(faults: tuple[NodeFault, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f.node for f in faults))


def _in_words(faults: tuple[NodeFault, ...]) -> str:
    """One fault of each node, a proven one if there is any."""
    first = {f.node: f for f in sorted(faults, key=lambda f: f.proven)}
    return "; ".join(f"{f.node}: {f.check}: {f.evidence}" for f in first.values())


def _key(state: State) -> str:
    return PREFLIGHT if state.unlaunched or state.incident is None else state.incident.id
