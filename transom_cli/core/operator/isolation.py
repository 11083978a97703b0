"""Which suspects are isolated, within the cap. Pure.

The cap limits how many nodes are isolated within a window of time. More nodes at once are more likely a bad switch or a
wrong limit in a check than as many bad nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transom_cli.core import node_hazard
from transom_cli.core.events import Isolated
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator.actions import Isolate
from transom_cli.core.operator.state import State
from transom_cli.plural import several, times, was

RECOVERY = 900.0  # seconds that a failure costs, with the lost work, before this run has had one
LONGEST = 86400.0  # seconds: an exclusion on suspicion ends then, whatever other users report

WHOLE = "all of the job's nodes are down at once"


@dataclass(frozen=True)
class Choice:
    new: tuple[str, ...] = ()  # nodes to isolate
    again: tuple[str, ...] = ()  # excluded nodes to drain now, since their faults are proven
    capped: str = ""  # which nodes stay in because of the cap
    refused: str = ""  # why the run must stop, if proven faults alone exceed the cap

    def orders(self, state: State, diagnosis: Diagnosis, incident: str) -> tuple[Isolate, ...]:
        targets = [(f"{incident}/drain/{n}", n) for n in self.again] + [
            (f"{incident}/isolate/{n}", n) for n in self.new
        ]
        return tuple(
            isolate(state, k, n, diagnosis.reason(n), drain=diagnosis.isolates(n) == "drain") for k, n in targets
        )


def choose(state: State, diagnosis: Diagnosis, at: float) -> Choice:
    """Beyond the cap all nodes that are only suspected stay in: nothing tells which ones are bad.

    If all nodes of the job are lost at once, a switch is, or the network of slurmctld: then no node is isolated for it.
    """
    known = {x.node: x for x in state.isolation.exclusions}
    blamed = [n for n in diagnosis.nodes if diagnosis.isolates(n) != "none" and n in state.job.nodes]
    lost = [n for n in blamed if not diagnosis.faults_of(n)] if diagnosis.cause in ("node_lost", "node_silent") else []
    if len(lost) > 1 and len(lost) == len(state.job.nodes):
        return Choice(capped=f"{', '.join(lost)} not isolated: {WHOLE}")
    again = tuple(n for n in blamed if n in known and known[n].until is not None and diagnosis.sure_of(n))
    new = tuple(n for n in blamed if n not in known)
    sure = tuple(n for n in new if diagnosis.sure_of(n))
    if len(new) <= room(state, at):
        return Choice(new, again)
    if len(sure) > room(state, at):
        return Choice(refused=f"{diagnosis.words}; not isolated: {beyond(state)}{or_the_checks(diagnosis)}")
    left = ", ".join(n for n in new if n not in sure)
    who = f"{left} only suspected" if sure else diagnosis.words
    return Choice(sure, again, f"{who}; not isolated: {beyond(state)}")


def or_the_checks(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None or not diagnosis.faults:
        return ""
    return "; so many bad nodes may also be a limit of the checks that is wrong (`transom nodes` lists them)"


def cap(state: State) -> int:
    nodes = state.request.num_nodes or len(state.job.nodes)
    return max(state.policy.cap_nodes, int(state.policy.cap_fraction * nodes))


def beyond(state: State) -> str:
    return f"that would be more than {several(cap(state), 'node')} in {state.policy.cap_window / 60:g} minutes"


def room(state: State, at: float) -> int:
    """How many more nodes may be isolated within the window. Nodes whose exclusion was lifted count too."""
    recent = sum(1 for t in state.isolation.times if t > at - state.policy.cap_window)
    return max(0, cap(state) - recent)


def count(state: State, at: float, nodes: int) -> State:
    recent = tuple(t for t in state.isolation.times if t > at - state.policy.cap_window)
    return replace(state, isolation=replace(state.isolation, times=recent + (at,) * nodes))


def isolate(state: State, key: str, node: str, reason: str, *, drain: bool) -> Isolate:
    policy = state.policy
    return Isolate(key, node, reason, drain and policy.drain, policy.cap_cluster, policy.cap_window)


def drain_refused(action: Isolate, ages: Sequence[float | None]) -> str:
    """Return why a node must not be drained for everybody now, "" if it may be.

    Drains of all users count. Many of them within a short time are more likely a bad switch or a wrong check, and the
    cluster must not lose its nodes to that.

    Args:
        ages: of the nodes that transom keeps drained in this cluster: seconds since the drain, None if unknown.
    """
    recent = sum(1 for age in ages if age is None or age < action.within)
    if action.most is None or recent < action.most:
        return ""
    count = f"{several(recent, 'node')} of this cluster {was(recent, 'was', 'were')} drained by transom"
    return f"not drained: {count} within {action.within / 60:g} minutes (isolate.max_cluster_nodes)"


def expiry(state: State, e: Isolated, detail: str) -> tuple[float, str]:
    """Return when an exclusion on suspicion ends, and its detail: after `isolate.expiry`, or when other users'
    exclusions of the node end, if that is later. Other users' reports exclude no node and shorten nothing."""
    at, others = e.at, e.others
    lasts, why = lasting(state, at, e.node, e.hazard, e.elsewhere)
    own = at + lasts
    until = max((own, *(at + (LONGEST if x.seconds is None else min(x.seconds, LONGEST)) for x in others)))
    if until == own:
        return own, "; ".join(x for x in (detail, why) if x)
    longer = f"excluded for longer, because of {', '.join(x.user for x in others)}"
    return until, "; ".join(x for x in (detail, longer) if x)


def on_probation(state: State, at: float) -> tuple[str, ...]:
    """Return the nodes that this run has blamed within `node_hazard.PROBATION` and does not exclude any more.

    They fail more often than others for weeks. As spares they work only if a node is lost.
    """
    active = {x.node for x in state.isolation.exclusions if x.until is None or x.until > at}
    blamed = {n for i in state.incidents if at - i.began < node_hazard.PROBATION for n in _blamed(i)}
    return tuple(sorted(blamed - active))


def _blamed(incident: Incident) -> tuple[str, ...]:
    d = incident.diagnosis
    return tuple(n for n in d.nodes if d.isolates(n) != "none") if d is not None else ()


def _failure(state: State) -> float:
    """Seconds that a failure costs: what this run's recoveries took, and `RECOVERY` before there are any."""
    times = [i.ended_at - i.began for i in state.incidents if i.result == "recovered" and i.ended_at is not None]
    return (RECOVERY + sum(times)) / (1 + len(times))


def lasting(
    state: State, at: float, node: str, hazard: node_hazard.Hazard | None = None, elsewhere: int = 0
) -> tuple[float, str]:
    """Return for how many seconds a suspicion excludes a node, and why if that is not `isolate.expiry`.

    With `isolate.expiry_by_cost`, as long as another failure of the node would cost the job more than its absence,
    `LONGEST` at most. How likely that is, depends on what the site's nodes did, and on how often this node was at fault
    in the last weeks. hazard, elsewhere: as in `Isolated`.
    """
    shortest = state.policy.expiry
    if not state.policy.expiry_by_cost:
        return shortest, ""
    cost = _failure(state) * len(state.job.nodes)
    recent = elsewhere + sum(at - i.began < node_hazard.RECENT and node in _blamed(i) for i in state.incidents)
    lasts = min(node_hazard.expiry(hazard or node_hazard.PUBLISHED, cost, recent=recent), LONGEST)
    if lasts <= shortest:
        return shortest, ""
    before = f"; it was at fault {times(recent)} in the last 30 days before" if recent else ""
    return lasts, f"for {lasts / 3600:g} h, since another failure would cost {cost / 3600:.0f} node-hours{before}"


def drained_and_awaited(state: State) -> tuple[str, ...]:
    """Return the nodes that the run drained, while its job waits: nobody else says that it may use them again."""
    if not state.waiting or state.policy.observe:
        return ()
    return tuple(x.node for x in state.isolation.exclusions if x.how == "drained" and x.until is None)
