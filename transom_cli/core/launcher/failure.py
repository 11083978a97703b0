"""A launch that fails: end it for certain, read its logs, diagnose the cause, and recover.

The launcher relaunches on the same nodes, or replaces the nodes to blame by spares, or continues without them if the
run may shrink, or ends the attempt with an outcome that names cause and suspects.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from transom_cli.core import costs
from transom_cli.core.category import DEVICE
from transom_cli.core.clocks import failed_first, on_launchers_clock
from transom_cli.core.crash_loop import reached
from transom_cli.core.diagnose import RESIZE, nodes_of_checkpoint
from transom_cli.core.events import UNDECIDED
from transom_cli.core.incident import Diagnosis, Incident, Stage
from transom_cli.core.launcher import hangs, reentry
from transom_cli.core.launcher.actions import Action, CheckNodes, EndLaunch, Journal, ReadLogs, StartLaunch
from transom_cli.core.launcher.events import LaunchEnded, LogsRead
from transom_cli.core.launcher.judgement import Sign, journal_diagnosis, judge
from transom_cli.core.launcher.outcome import close, count_last_step, finish, saved_words, stop
from transom_cli.core.launcher.state import Budget, Decision, Departure, Nodes, Phase, Reason, State, after
from transom_cli.core.placement import again, replacement
from transom_cli.core.policy import REQUEUE, SWAP
from transom_cli.plural import several, times

_CANCELLED = "slurm_cancelled"  # category of a log line
_OURS = (9, 15)  # signals by which the launcher ends the other ranks
_PORT_TAKEN = "another program uses the rendezvous port: the next launch has another one, and this one costs no budget"
_ON_ONE_NODE = ("rank_killed", "rank_failed", "hang")  # causes after which repeated blame of a node is checked


def fail(state: State, at: float, sign: Sign) -> Decision:
    """Open an incident and end the launch; or first read the logs, if its survivors may stay (`reentry`)."""
    state = replace(state, health=state.health.current(at, len(state.nodes.allocated)))
    if state.stop:
        return stop(state, at, f": {sign.words}; {saved_words(state)}")
    if state.withheld:  # only the end of the launch counts
        return finish(state, at, "failed", sign.words) if sign.exits is not None else (state, ())
    state = close(state, at, "failed again")
    name = state.history.next_name
    launch = replace(state.launch, response=None)
    why = hangs.obstacle(state, sign) if sign.exits is None else reentry.obstacle(state, sign.exits)
    state = replace(state, incident=sign.incident(state, at, name), launch=launch)
    seen = Journal(name, "seen", sign.words, "hang" if sign.stalled else "", sign.suspects)
    if state.policy.recoverable and not why and sign.exits is None:
        return after((seen,), hangs.begin(state, at, sign))
    if state.policy.recoverable and not why:
        first = failed_first(sign.exits or ())
        read = ReadLogs(launch.number, first[0].rank if len(first) == 1 else None, alive=True)
        return state.enter(Phase.READING, at), (seen, read)
    end = EndLaunch(launch.number, name, evidence=sign.stalled)
    entries = (Journal(name, "reentry", f"all ranks are ended: {why}"),) if state.policy.recoverable else ()
    return state.enter(Phase.ENDING, at), (seen, *entries, end)


def ended(state: State, e: LaunchEnded) -> Decision:
    incident = state.incident
    assert incident is not None
    entries = hangs.evidence(incident.id, e.evidence)
    if incident.outcome is not None:  # a late record may be of the rank that died first, unless we killed it
        known = {x.rank: x for x in e.exits if x.signal not in _OURS} | {x.rank: x for x in incident.outcome.exits}
        exits = on_launchers_clock((known[rank] for rank in sorted(known)), e.clocks)
        incident = replace(incident, outcome=replace(incident.outcome, exits=exits))
    if incident.stalled and (suspects := tuple(n for n in e.suspects if n in state.nodes.training)):
        incident = replace(incident, suspect_nodes=suspects)
    first = failed_first(incident.outcome.exits) if incident.outcome else ()
    read = ReadLogs(state.launch.number, first[0].rank if len(first) == 1 else None)
    launch = replace(state.launch, ended=e, exits=on_launchers_clock(state.launch.exits, e.clocks))
    state = replace(state, incident=incident, launch=launch).enter(Phase.READING, e.at)
    return state, (*entries, read)


def logs_read(state: State, e: LogsRead) -> Decision:
    incident, gone = state.incident, state.launch.ended
    if e.launch != state.launch.number or state.phase is not Phase.READING or incident is None:
        return state, ()
    lost = set(reentry.lost(state))
    if gone is None and (not lost or not lost >= set(state.launch.culprits)):  # the logs have not been asked for
        return state, ()
    if gone is None:
        return _keep_survivors(state, e, incident)
    state, actions, diagnosis = _diagnose(state, e, incident, gone)
    if nodes := _to_be_checked(state, diagnosis):
        return state.enter(Phase.CHECKING, e.at), (*actions, CheckNodes(incident.id, nodes, "deep"))
    return after(actions, recover(state, e.at, diagnosis, gone))


def _diagnose(
    state: State, e: LogsRead, incident: Incident, gone: LaunchEnded
) -> tuple[State, tuple[Action, ...], Diagnosis | None]:
    state = replace(state, health=state.health.current(e.at, len(state.nodes.allocated)))
    if e.port_taken and state.progress.step < 0:
        state = replace(state, launch=replace(state.launch, port_taken=True))
    faults = state.health.of(state.nodes.training)
    incident = replace(incident, log_category=e.category, log_line=e.line, log_rank=_rank_of(e), faults=faults)
    diagnosis = judge(state, incident, gone, e.at)
    state = replace(state, incident=replace(incident, diagnosis=diagnosis))
    first = failed_first(incident.outcome.exits) if incident.outcome else ()
    # srun cancels the step once a rank has died: what it prints then in the others' logs is no cause
    after_it = e.category == _CANCELLED and len(first) == 1 and _rank_of(e) not in (None, first[0].rank)
    line = "" if after_it else e.line or e.last
    actions: tuple[Action, ...] = (Journal(incident.id, "examined", f"{e.where}: {line}"),) if line else ()
    if diagnosis is not None:
        actions = (*actions, *journal_diagnosis(incident.id, diagnosis, step=reached(incident)))
    return state, actions, diagnosis


def _keep_survivors(state: State, e: LogsRead, incident: Incident) -> Decision:
    """Keep the survivors if this would be a relaunch on the same nodes in any case; otherwise end the launch."""
    gone = LaunchEnded(e.at, e.launch, unheard=state.launch.unheard)
    diagnosed, actions, diagnosis = _diagnose(state, e, incident, gone)
    deaf = tuple(rank for rank in reentry.survivors(state) if rank not in e.hearing)
    if (decision := reentry.kill_new(state, e.at, deaf)) is not None:
        return decision
    obstacle = reentry.after_all(state, state.launch.exits) or (reentry.deaf(deaf) if deaf else "")
    why = obstacle or "the ranks cannot stay where they are"
    if not obstacle and not state.stop and not _to_be_checked(diagnosed, diagnosis):
        left = replace(diagnosed, launch=replace(diagnosed.launch, ended=gone))
        decided, more = recover(left, e.at, diagnosis, gone)
        if more and isinstance(more[-1], StartLaunch) and reentry.fits(state, more[-1].nodes):
            kept = replace(decided, launch=reentry.begin(diagnosed, elastic=e.elastic).launch)
            replicas = kept.launch.kept if kept.launch.absent else ()
            start = replace(more[-1], lost=kept.launch.replaced, replicas=replicas)
            return kept, (*actions, *more[:-1], reentry.entry(diagnosed), start)
    return reentry.end_all(state, e.at, why)


def _rank_of(e: LogsRead) -> int | None:
    """The rank whose log has the cause."""
    name = re.match(r"rank-(\d+)(?:\.kernel)?\.log", e.where)
    return int(name[1]) if name and e.category not in ("", "unknown") else None


def suspects_checked(state: State, at: float) -> Decision:
    """Decide with the findings of the checks that followed a failure."""
    incident, gone = state.incident, state.launch.ended
    assert incident is not None and gone is not None
    incident = replace(incident, faults=state.health.of(state.nodes.training))
    diagnosis = judge(state, incident, gone, at)
    entries: tuple[Action, ...] = ()
    if diagnosis is not None and diagnosis != incident.diagnosis:
        entries = journal_diagnosis(incident.id, diagnosis, state.health.faults, reached(incident))
    state = replace(state, incident=replace(incident, diagnosis=diagnosis))
    return after(entries, recover(state, at, diagnosis, gone))


def _to_be_checked(state: State, diagnosis: Diagnosis | None) -> tuple[str, ...]:
    """Suspects to check after a failure, and as many other nodes to compare them with.

    Nodes are checked if the logs show a device fault, or after the second failure on one node. A first failure may have
    any cause, and is relaunched at once.
    """
    if diagnosis is None or not diagnosis.restart or not state.policy.deep or state.stop:
        return ()
    device = state.incident is not None and state.incident.log_category in DEVICE
    blamed = any(diagnosis.isolates(n) != "none" for n in diagnosis.nodes)
    again = blamed and diagnosis.cause in _ON_ONE_NODE
    suspects = tuple(n for n in diagnosis.nodes if n in state.nodes.training)
    if not suspects or not (device or again) or state.departure.reason is Reason.TIME_LIMIT:
        return ()
    others = [n for n in (*state.nodes.training, *state.nodes.ready) if n not in suspects]
    return state.nodes.in_order((*suspects, *others[: max(2, len(suspects))]))


def recover(state: State, at: float, diagnosis: Diagnosis | None, gone: LaunchEnded) -> Decision:
    """Choose between a relaunch, a swap and the end of the attempt."""
    if state.stop:
        return stop(state, at, f"; {saved_words(state)}")
    state = count_last_step(state)
    words = diagnosis.words if diagnosis else "the training step ended"
    if state.departure.reason is Reason.TIME_LIMIT:
        return finish(state, at, "failed", f"{words}; and the time limit is near")
    survivor = next((f"{what} on {node} cannot be ended" for node, what in gone.survivors), "")
    why = f"{words}; {survivor}" if survivor else words
    if diagnosis is None or not diagnosis.restart or not (state.policy.relaunches or state.costs_nothing):
        return finish(state, at, "failed", why)
    suspects = _suspects(state, diagnosis, gone)
    if any(node not in suspects for node in gone.left_behind):
        return finish(state, at, "failed", why)  # not on a node of the launch: this launcher itself cannot end it
    if suspects:
        return _swap_if_possible(state, at, diagnosis, suspects, why)
    if diagnosis.cause == RESIZE:
        return _resize_as_saved(state, at, why)
    blamed, usable = state.nodes.of_launch(diagnosis.nodes), state.nodes.usable
    if diagnosis.decided.action == SWAP and blamed and len(usable) >= len(blamed):  # else a relaunch
        return swap(state, at, blamed, nearest_spares(state, blamed), diagnosis.cause)
    if state.costs_nothing:
        entry = Journal(state.incident.id if state.incident else "", "decided", _PORT_TAKEN, diagnosis.cause)
        return after((entry,), relaunch(state, at, diagnosis.cause, state.nodes.training))
    if state.launch.number > state.first and not state.launch.started:
        return finish(state, at, "failed", words)  # another try would end the same way
    spent = 0 if state.progress.further() else state.budget.spent(diagnosis.cause)
    if spent < state.policy.relaunches:
        return relaunch(state, at, diagnosis.cause, state.nodes.training)
    why = f"{words}; relaunched {times(spent)} without progress{state.progress.beyond}"
    if blamed:
        return _swap_if_possible(state, at, diagnosis, blamed, why)
    return finish(state, at, "failed", why)


def _suspects(state: State, diagnosis: Diagnosis, gone: LaunchEnded) -> tuple[str, ...]:
    """Nodes of the launch that must not carry the next one."""
    blamed = (n for n in diagnosis.nodes if diagnosis.isolates(n) != "none")
    return state.nodes.of_launch((*gone.left_behind, *blamed, *state.nodes.draining, *state.growth.lost))


def _swap_if_possible(state: State, at: float, diagnosis: Diagnosis, suspects: tuple[str, ...], why: str) -> Decision:
    usable = state.nodes.usable
    if len(usable) >= len(suspects):
        return swap(state, at, suspects, nearest_spares(state, suspects), diagnosis.cause)
    may_shrink = diagnosis.decided.action != REQUEUE and _may_shrink(state, suspects)
    smaller = without(state, suspects) if may_shrink else ()
    if smaller:
        situation = _situation(state, at, smaller)  # for a person: the nodes are kept in any case
        name = state.incident.id if state.incident else ""
        entry = Journal(name, "compared", costs.comparison(situation), situation=situation)
        return after((entry,), resize(state, at, suspects, smaller, diagnosis.cause))
    lack = "no spare is ready" if not usable else f"{len(suspects)} spares are needed, and {len(usable)} ready"
    had_spares = len(state.nodes.allocated) > state.nodes.wanted
    return finish(state, at, "failed", f"{why}; {lack}" if had_spares else why)


def _situation(state: State, at: float, smaller: tuple[str, ...]) -> costs.Situation:
    launch, before, progress = state.launch, state.before, state.progress
    steps = max(0, progress.max_step - progress.durable)
    situation = costs.Situation(
        state.nodes.wanted,
        len(smaller),
        launch.to_step or launch.startup,
        min(steps * state.pace, at - state.before.at),
        left=None if before.ends_at is None else max(0.0, before.ends_at - at),
        top_up=state.policy.top_up,
    )
    return costs.in_queue(situation, state.growth.waits)


def nearest_spares(state: State, out: tuple[str, ...]) -> tuple[str, ...]:
    """Choose a usable spare for each of these nodes, on probation only if there is no other. There must be enough."""
    usable, found = list(state.nodes.usable), []
    for node in out:
        proven = [n for n in usable if n not in state.nodes.probation]
        found.append(replacement(state.nodes.training, node, proven or usable, state.network))
        usable.remove(found[-1])
    return tuple(found)


def swap(state: State, at: float, out: tuple[str, ...], into: tuple[str, ...], cause: str) -> Decision:
    """Relaunch with the ranks of `out` on `into`. The relaunch budget starts again.

    All other ranks stay on their nodes, whose memory holds their snapshots.
    """
    incident = state.incident
    nodes = _given_up(state, out).without_spares(into)
    state = replace(
        state,
        nodes=nodes,
        budget=replace(state.budget, relaunches=()),
    )
    instead = dict(zip(out, into, strict=True))
    training = tuple(instead.get(n, n) for n in nodes.training)
    diagnosis = incident.diagnosis if incident is not None else None
    decided = diagnosis.decided if diagnosis is not None and diagnosis.cause == cause else UNDECIDED
    name, ended = (incident.id if incident is not None else ""), state.launch.ended
    # The failure says nothing against a node that is left only because somebody drains it.
    blamed = [n for n in out if diagnosis is not None and n in diagnosis.nodes and diagnosis.isolates(n) != "none"]
    blamed += ended.left_behind if ended is not None else ()
    leaving = tuple(n for n in out if n in nodes.draining and n not in blamed)
    entries = [
        Journal(name, "swapped", f"{_list(instead[n] for n in given_up)} for {_list(given_up)}", why, given_up,
                state.health.of(given_up), decided)
        for why, given_up in ((cause, tuple(n for n in out if n not in leaving)), ("maintenance", leaving))
        if given_up
    ]  # fmt: skip
    return after(tuple(entries), relaunch(state, at, cause, training))


def _may_shrink(state: State, out: tuple[str, ...]) -> bool:
    """Whether to continue without these nodes.

    Without progress, a suspicion is a reason only once: a failure of the program would follow the ranks to the next
    node, and cost the run one node after the other.
    """
    nodes, ended = state.nodes, state.launch.ended
    away = (*(ended.left_behind if ended is not None else ()), *state.growth.lost)
    proven = [fault.node for fault in state.health.of(out) if fault.proven]
    certain = all(n in away or n in nodes.draining or n in proven for n in out)
    at_first = len(nodes.training) >= min(nodes.wanted, len(nodes.allocated))
    return certain or at_first or state.progress.further()


def without(state: State, out: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes to train on without `out`, as many as possible; () if too few, or the run may not shrink."""
    nodes = state.nodes
    good = (*(n for n in nodes.training if n not in out), *nodes.usable)
    return good[: nodes.number_for(len(good))] if nodes.fewest else ()


def resize(state: State, at: float, out: tuple[str, ...], training: tuple[str, ...], cause: str) -> Decision:
    """Relaunch on other nodes, fewer than before. Good nodes that carry no rank now become spares."""
    nodes = state.nodes
    idle = tuple(n for n in nodes.training if n not in (*out, *training))
    nodes = _given_up(state, out).without_spares(training)
    for node in idle:
        nodes = nodes.with_ready(node)
    diagnosis = state.incident.diagnosis if state.incident is not None else None
    decided = diagnosis.decided if diagnosis is not None else UNDECIDED
    placement = again(training, state.network)
    words = f"continues on {len(training)} of {several(nodes.wanted, 'node')}, without {_list(out)}"
    words += f"; {placement.words}" if placement.words else ""
    entry = Journal(
        state.incident.id if state.incident is not None else "", "swapped", words, cause, out,
        state.health.of(out), decided,
    )  # fmt: skip
    state = replace(state, nodes=nodes, budget=replace(state.budget, relaunches=()))
    return after((entry,), relaunch(state, at, cause, placement.order))


def _resize_as_saved(state: State, at: float, why: str) -> Decision:
    """Relaunch on as many nodes as wrote the checkpoint, and stay with them in this attempt.

    The trainer refuses another number: growing or shrinking again would end in the same refusal.
    """
    nodes, line = state.nodes, state.incident.log_line if state.incident is not None else ""
    number, good = nodes_of_checkpoint(line, len(nodes.training)), (*nodes.training, *nodes.usable)
    if len(good) < number:
        return finish(state, at, "failed", f"{why}; {several(len(good), 'node')} can carry ranks")
    training = good[:number]
    for node in nodes.training[number:]:
        nodes = nodes.with_ready(node)
    nodes = replace(nodes.without_spares(training), wanted=number, fewest=0)
    placement = again(training, state.network)
    words = f"continues on {several(number, 'node')}, as many as wrote the checkpoint"
    words += f"; {placement.words}" if placement.words else ""
    entry = Journal(state.incident.id if state.incident is not None else "", "resized", words, RESIZE)
    return after((entry,), relaunch(replace(state, nodes=nodes), at, RESIZE, placement.order))


def _given_up(state: State, out: tuple[str, ...]) -> Nodes:
    """Give nodes up. One that only did not answer may return (`growth`)."""
    ended, nodes = state.launch.ended, state.nodes.giving_up(out)
    accused = {f.node for f in state.health.of(out)}
    silent = tuple(n for n in (ended.unheard if ended is not None else ()) if n in out and n not in accused)
    return replace(nodes, silent=(*nodes.silent, *silent))


def enlarge(state: State, e: LaunchEnded) -> Decision:
    """Relaunch on more nodes: good spares have come, and the state is durable."""
    nodes = state.nodes
    out = nodes.of_launch((*e.left_behind, *state.growth.lost))
    good = (*(n for n in nodes.training if n not in out), *nodes.usable)
    training = nodes.in_order(good[: nodes.number_for(len(good))])
    if not training or any(n not in out for n in e.left_behind):
        return finish(state, e.at, "left", f"too few nodes answer; {saved_words(state)}", cause="grow")
    if out:
        return resize(state, e.at, out, training, "grow")
    new = tuple(n for n in training if n not in nodes.training)
    size = f"{len(training)} of {several(nodes.wanted, 'node')}"
    placement = again(training, state.network)
    words = f"continues on {size}, with {_list(new)}" if new else f"continues on {size}: the others went away again"
    words += f"; {placement.words}" if placement.words else ""
    state = replace(state, nodes=nodes.without_spares(new))
    return after((Journal("", "grown", words, "grow", new),), relaunch(state, e.at, "grow", placement.order))


def _list(nodes: Iterable[str]) -> str:
    return ", ".join(nodes)


def relaunch(state: State, at: float, cause: str, nodes: tuple[str, ...]) -> Decision:
    state = count_last_step(state)
    lost, state = state.growth.lost, replace(state, growth=replace(state.growth, lost=()))
    budget, progress = state.budget, state.progress
    if state.costs_nothing:
        budget = replace(budget, ports_taken=budget.ports_taken + 1)
    else:
        spent = {} if progress.further() else dict(budget.relaunches)
        if nodes == state.nodes.training:
            spent[cause] = spent.get(cause, 0) + 1
        taken = budget.ports_taken if state.launch.port_taken else 0
        budget, progress = Budget(tuple(sorted(spent.items())), ports_taken=taken), progress.charged()
    state = replace(
        state,
        budget=budget,
        progress=progress.new_start(),
        nodes=replace(state.nodes, training=nodes).forgetting(lost),
        launch=state.launch.next(),
        departure=Departure(),
        incident=replace(state.incident, stage=Stage.STARTING) if state.incident else None,
    )
    return state.enter(Phase.TRAINING, at), (StartLaunch(state.launch.number, nodes),)
