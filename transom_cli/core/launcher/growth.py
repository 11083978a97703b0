"""A run that had to shrink gets nodes back, and grows at a step boundary. Pure.

Nodes come from two places. A node of the job that only did not answer may answer again. And a top-up job asks Slurm for
the nodes that the run lacks: there is at most one, it is cancelled when it is not needed any more, and it starts no
training of its own. Both kinds are checked, and become spares. Once a probe finds enough spares ready, all ranks save,
and the next launch has more nodes. So a top-up job that ends is no more than some lost nodes.
"""

from dataclasses import replace

from transom_cli.core import costs
from transom_cli.core.launcher import departure
from transom_cli.core.launcher import events as ev
from transom_cli.core.launcher.actions import Action, CancelTopUp, CheckNodes, Journal, SubmitTopUp, WatchSpares
from transom_cli.core.launcher.state import Decision, Growth, Reason, State, after
from transom_cli.plural import several

KEY = "growth"  # of the health run
PAUSES = (300.0, 900.0, 3600.0)  # seconds after a top-up job before the next one, by the number of vain ones before


def due_at(state: State) -> float | None:
    """When `consider` has something to decide; None: not before another event."""
    if not state.policy.grow or not state.steps:
        return None
    if _needless(state) or _lost(state):
        return state.since
    if state.nodes.lacking <= 0:
        return None
    if _larger(state):
        return state.since if _pays(state, state.since) else None
    return max(state.growth.due, state.since) if _may_request(state) else None


def consider(state: State, at: float) -> Decision:
    """Grow if spares are ready. Otherwise submit a top-up job."""
    due = due_at(state)
    if due is None or at < due:
        return state, ()
    nodes = state.nodes
    if _needless(state):
        return _cancel(state, at, "the run has enough nodes again")
    if _lost(state):  # else Slurm would keep the job, and the run would ask for no other one
        entry = Journal("", "top-up", f"job {state.growth.top_up} has lost its nodes; {_again(state.growth)}")
        return after((entry,), _cancel(state, at, "its nodes are lost"))
    if number := _larger(state):
        if not _pays(state, at):
            return _cancel(state, at, "too little time remains to grow") if state.growth.top_up else (state, ())
        words = f"{', '.join(nodes.usable)} can carry ranks: from {len(nodes.training)} to {several(number, 'node')}"
        return after((Journal("", "growing", words, Reason.GROW.value),), departure.begin(state, Reason.GROW))
    have = len(nodes.training) + len(nodes.usable)
    most = nodes.wanted - have
    least = next(c for c in range(1, most + 1) if nodes.number_for(have + c) > len(nodes.training))
    left = _left(state, at)
    if left is not None and not costs.growth_pays(len(nodes.training), least, state.launch.to_step, left):
        return replace(state, growth=replace(state.growth, due=float("inf"))), ()
    without = tuple(n for n in nodes.given_up if n not in nodes.silent)
    state = replace(state, growth=replace(state.growth, requested=True))
    return state, (SubmitTopUp(least, most, without, left),)


def stepped(state: State) -> State:
    """Ranks have stepped. If some run on nodes of a top-up job, it was not in vain."""
    if not any(n in state.nodes.training for n in state.growth.joined):
        return state
    return replace(state, growth=replace(state.growth, tries=0))


def node_returned(state: State, e: ev.NodeReturned) -> Decision:
    """Check a silent node that answers again, once in an attempt. Nodes with findings against them stay out."""
    nodes, growth = state.nodes, state.growth
    known = (*growth.returned, *growth.checking, *nodes.draining)
    if e.node not in nodes.silent or e.node in known or state.health.of((e.node,)) or _busy_or_off(state):
        return state, ()
    return _check(state, e.at, (e.node,))


def submitted(state: State, e: ev.TopUpSubmitted) -> Decision:
    growth = replace(state.growth, requested=False)
    if not e.job_id:
        return replace(state, growth=_in_vain(growth, e.at)), (Journal("", "top-up", f"{e.words}; {_again(growth)}"),)
    state = replace(state, growth=replace(growth, top_up=e.job_id))
    return state, (Journal("", "top-up", e.words or f"job {e.job_id} asks Slurm for the nodes that the run lacks"),)


def started(state: State, e: ev.TopUpStarted) -> Decision:
    """Check the nodes of a top-up job. The event is repeated until they are joined."""
    if e.job_id != state.growth.top_up or state.growth.joined or _busy_or_off(state):
        return state, ()
    if any(n in state.nodes.training for n in e.nodes):
        return _cancel(state, e.at, "it shares a node with the run")
    state = replace(state, growth=replace(state.growth, joined=e.nodes))
    entry = Journal("", "top-up", f"job {e.job_id} has started on {', '.join(e.nodes)}")
    return after((entry,), _check(state, e.at, e.nodes))


def ended(state: State, e: ev.TopUpEnded) -> Decision:
    """Its nodes are gone. Those with ranks count as lost nodes, and none of them is blamed."""
    growth = state.growth
    if e.job_id != growth.top_up:
        return state, ()
    lost = state.nodes.of_launch(growth.joined)
    checking = tuple(n for n in growth.checking if n not in growth.joined)
    gone = replace(growth, top_up=0, joined=(), checking=checking, lost=(*growth.lost, *lost))
    state = replace(state, growth=_in_vain(gone, e.at), nodes=state.nodes.forgetting(growth.joined))
    return state, (Journal("", "top-up", f"job {e.job_id} is over: {e.words}; {_again(growth)}"),)


def queue_seen(state: State, e: ev.QueueSeen) -> Decision:
    return replace(state, growth=replace(state.growth, waits=e.waits)), ()


def checked(state: State, e: ev.NodesChecked) -> Decision:
    """Nodes without a finding become spares."""
    growth = state.growth
    bad = tuple(n for n in growth.checking if any(f.node == n for f in e.faults))
    good = tuple(n for n in growth.checking if n not in bad)
    own = tuple(n for n in growth.checking if n not in growth.joined)
    growth = replace(growth, checking=(), returned=(*growth.returned, *own))
    state = replace(state, growth=growth, nodes=state.nodes.joined_by(good).giving_up(bad))
    actions: tuple[Action, ...] = (Journal("", "checked", e.words),) if e.words else ()
    if good:
        actions += (Journal("", "returned", f"{', '.join(good)} can carry ranks again"), WatchSpares(good))
    if growth.joined and not any(n in good for n in growth.joined) and any(n in bad for n in growth.joined):
        return after(actions, _cancel(state, e.at, "none of its nodes is good"))
    return state, actions


def end(state: State) -> tuple[Action, ...]:
    """The attempt is over: nothing needs the top-up job."""
    job_id = state.growth.top_up
    return (CancelTopUp(job_id, "the attempt is over"),) if job_id else ()


def _larger(state: State) -> int:
    """The number of nodes that the run could use at once; 0: no more than now, or its state would be lost."""
    nodes = state.nodes
    number = nodes.number_for(len(nodes.training) + len(nodes.usable))
    return number if number > len(nodes.training) and state.progress.durable >= 0 and state.policy.relaunches else 0


def _pays(state: State, at: float) -> bool:
    left, now = _left(state, at), len(state.nodes.training)
    return left is None or costs.growth_pays(now, _larger(state) - now, state.launch.to_step, left)


def _needless(state: State) -> bool:
    """Whether there is a top-up job, and the run needs none of its nodes."""
    growth, nodes = state.growth, state.nodes
    if not growth.top_up or any(n in nodes.training for n in growth.joined):
        return False
    own = sum(n not in growth.joined for n in nodes.usable)
    return nodes.lacking <= own


def _lost(state: State) -> bool:
    """Whether the run has given up all nodes of its top-up job."""
    growth = state.growth
    return bool(growth.top_up and growth.joined) and all(n in state.nodes.given_up for n in growth.joined)


def _busy_or_off(state: State) -> bool:
    return bool(state.growth.checking) or not state.policy.grow


def _may_request(state: State) -> bool:
    growth, nodes = state.growth, state.nodes
    busy = growth.requested or growth.top_up or growth.checking or growth.lost
    if busy or not state.policy.top_up or not state.policy.relaunches:
        return False
    return len(nodes.training) + len(nodes.usable) < nodes.wanted


def _left(state: State, at: float) -> float | None:
    """Seconds until the job's time is up; None: unknown."""
    return None if state.before.ends_at is None else max(0.0, state.before.ends_at - at)


def _check(state: State, at: float, nodes: tuple[str, ...]) -> Decision:
    state = replace(state, growth=replace(state.growth, checking=(*state.growth.checking, *nodes)))
    if not state.policy.preflight:
        return checked(state, ev.NodesChecked(at, KEY))
    return state, (CheckNodes(KEY, nodes, "quick"),)


def _cancel(state: State, at: float, why: str) -> Decision:
    growth = state.growth
    action = CancelTopUp(growth.top_up, why)
    growth = replace(_in_vain(growth, at), top_up=0, joined=())
    return replace(state, growth=growth, nodes=state.nodes.forgetting(state.growth.joined)), (action,)


def _again(growth: Growth) -> str:
    return f"the next one follows after {PAUSES[min(growth.tries, len(PAUSES) - 1)] / 60:.0f} min if nodes still lack"


def _in_vain(growth: Growth, at: float) -> Growth:
    """Wait longer before each further top-up job, until ranks step on the nodes of one."""
    pause = PAUSES[min(growth.tries, len(PAUSES) - 1)]
    return replace(growth, tries=growth.tries + 1, due=at + pause)
