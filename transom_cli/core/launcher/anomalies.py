"""Anomalies of a training that still steps, handled if a rule of the policy asks for it. Pure.

A slow training saves first and loses nothing; then it continues without the node, or as the rule says. A training whose
loss went wrong, or whose weights are doubtful, is ended at once, since its state is useless: it resumes from an older
checkpoint.
"""

from dataclasses import replace

from transom_cli.core.diagnose import CORRUPTED, DIVERGED, SLOW, taken_in
from transom_cli.core.events import Decided, NodeFault
from transom_cli.core.incident import Diagnosis
from transom_cli.core.launcher import departure, failure
from transom_cli.core.launcher.actions import Action, Journal, RollBack
from transom_cli.core.launcher.events import AnomalyReported, LaunchEnded, Response
from transom_cli.core.launcher.judgement import Sign, journal_diagnosis
from transom_cli.core.launcher.state import Decision, Memory, Reason, State, after
from transom_cli.core.log_lines import fingerprint
from transom_cli.core.policy import IGNORE, ISOLATE, ROLLBACK, STOP, SWAP, Facts, Verdict, decide_by
from transom_cli.diagnose.clue import Silent, Trouble

_OF_LOSS = frozenset(trouble.value for trouble in Trouble)
_SILENT = frozenset(silent.value for silent in Silent)


def reported(state: State, e: AnomalyReported) -> Decision:
    launch = state.launch
    if e.launch != launch.number:
        return state, ()
    since = min((a.at for a in launch.anomalies if a.key == e.key), default=e.at)  # an update keeps the first time
    launch = launch.without_anomaly(e.key)
    if e.over:
        return replace(state, launch=launch), ()
    launch = replace(launch, anomalies=(*launch.anomalies, replace(e, at=since)))
    return respond(replace(state, launch=launch), e.at)


def respond(state: State, at: float) -> Decision:
    """Respond to the first anomaly for which a rule asks for more than a report. Repeated while anomalies last."""
    if not _may_respond(state):
        return state, ()
    history = (*state.history.taken, *taken_in(state.history.incidents))
    for anomaly in state.launch.anomalies:
        verdict = decide_by(state.policy.rules, _facts(state, anomaly, at), history, at)
        if verdict is None or verdict.action == IGNORE or _lacks_spares(state, anomaly, verdict):
            continue
        if obstacle := _obstacle(state, anomaly, verdict):
            words = f"{anomaly.words}; rule `{verdict.rule}` would {verdict.action}, but {obstacle}"
            state = replace(state, launch=state.launch.without_anomaly(anomaly.key))
            return state, (Journal("", "reported", words, _cause(anomaly), anomaly.nodes),)
        rule = next((r for r in state.policy.rules if r.name == verdict.rule), None)
        skip = rule is None or rule.skip_batches
        return _begin(state, at, Response(anomaly, verdict.action, verdict.rule, verdict.evidence, skip))
    return state, ()


def respond_at(state: State) -> float | None:
    """The earliest time at which a rule can apply to an anomaly. In the past if one applies already."""
    if not _may_respond(state):
        return None
    due = (
        anomaly.at + rule.lasting
        for anomaly in state.launch.anomalies
        for rule in state.policy.rules
        if anomaly.what in rule.reported
    )
    return min(due, default=None)


def ended(state: State, e: LaunchEnded) -> Decision:
    """The launch is ended, and was saved before if possible: do what the rule asks for."""
    response = state.launch.response
    assert response is not None
    anomaly, cause = response.anomaly, _cause(response.anomaly)
    nodes = tuple(n for n in anomaly.nodes if n in state.nodes.training)
    faults: tuple[NodeFault, ...] = ()
    if response.action == ISOLATE:
        faults = tuple(NodeFault(n, anomaly.what, "SUSPECT", anomaly.words) for n in nodes)
    stops = response.action == STOP
    diagnosis = Diagnosis(
        cause,
        f"{anomaly.words}; {response.words}" if stops else anomaly.words,
        nodes if response.action in (ISOLATE, SWAP) else (),
        sure=False,
        isolate="none",
        restart=not stops,
        faults=faults,
        decided=Decided(response.rule, response.action, "", fingerprint(anomaly.what, ""), response.words),
    )
    name = state.history.next_name
    incident = replace(Sign(anomaly.words, faults=faults).incident(state, e.at, name), diagnosis=diagnosis)
    seen = Journal(name, "seen", anomaly.words, cause, nodes)
    entries: tuple[Action, ...] = (seen, *journal_diagnosis(name, diagnosis, faults))
    state = replace(
        state,
        incident=incident,
        launch=replace(state.launch, response=None, ended=e),
        departure=replace(state.departure, reason=Reason.NONE),
        health=state.health.with_faults(faults),
    )
    if response.action == ROLLBACK or (anomaly.what in _SILENT and anomaly.before >= 0 and not stops):
        state, back = _roll_back(state, name, anomaly, skip=response.skip and response.action == ROLLBACK)
        entries += back
    if stops and cause in (DIVERGED, CORRUPTED):
        state = replace(state, memory=Memory.NONE)  # snapshots of a diverged training are useless
    elif response.action == ROLLBACK and e.complete:  # the rule's budget is the only limit
        order = state.nodes.training
        if anomaly.what in _SILENT:  # repeat the doubtful steps with every rank on another node
            order = (*order[1:], order[0])
        return after(entries, failure.relaunch(state, e.at, cause, order))
    return after(entries, failure.recover(state, e.at, diagnosis, e))


def _may_respond(state: State) -> bool:
    return bool(state.launch.anomalies) and state.steps and state.launch.over_since is None and not state.withheld


def _begin(state: State, at: float, response: Response) -> Decision:
    anomaly = response.anomaly
    state = replace(state, launch=replace(state.launch.without_anomaly(anomaly.key), response=response))
    words = f"{anomaly.words}; {response.action}, by rule `{response.rule}`"
    entry = Journal("", "reported", words, _cause(anomaly), anomaly.nodes)
    if not _spoils(anomaly):
        return after((entry,), departure.begin(state, Reason.ANOMALY))
    leaving = replace(state.departure, reason=Reason.ANOMALY)
    return after((entry,), departure.end(replace(state, departure=leaving), at))


def _roll_back(state: State, name: str, anomaly: AnomalyReported, *, skip: bool) -> Decision:
    """Set the training back for every later launch, here or in another attempt.

    The skipped batches are those from the first step after the last good state up to the bad step.
    """
    steps = (anomaly.before + 1, anomaly.step) if skip else None
    skipped = f"; the batches of steps {steps[0]} to {steps[1]} are to be skipped" if steps else ""
    words = f"back to step {anomaly.back_to} of {state.progress.step}{skipped}"
    why = f"{anomaly.what} at step {anomaly.step}: {anomaly.words}"
    entry = Journal(name, "rolled_back", words, _cause(anomaly), durable=anomaly.back_to)
    state = replace(state, progress=replace(state.progress, durable=anomaly.back_to), memory=Memory.NONE)
    return state, (entry, RollBack(state.launch.number + 1, anomaly.back_to, steps, why))


def _facts(state: State, anomaly: AnomalyReported, at: float) -> Facts:
    kind = fingerprint(anomaly.what, "")
    nodes = tuple(n for n in anomaly.nodes if n in state.nodes.training)
    return Facts("", "", anomaly.words, kind, nodes, reported=anomaly.what, lasting=at - anomaly.at)


def _cause(anomaly: AnomalyReported) -> str:
    return DIVERGED if anomaly.what in _OF_LOSS else CORRUPTED if anomaly.what in _SILENT else SLOW


def _spoils(anomaly: AnomalyReported) -> bool:
    """Whether the present state is bad, so that it must not be saved."""
    return anomaly.what in _OF_LOSS or (anomaly.what in _SILENT and anomaly.before >= 0)


def _obstacle(state: State, anomaly: AnomalyReported, verdict: Verdict) -> str:
    """Why the rule's action is impossible; "" if it is possible."""
    if (verdict.action == ROLLBACK or _spoils(anomaly)) and verdict.action != STOP and anomaly.back_to < 0:
        before = f"from step {anomaly.before} or before" if anomaly.before >= 0 else "known to be from before it"
        return f"no checkpoint is {before}"
    if verdict.action in (SWAP, ISOLATE) and not any(n in state.nodes.training for n in anomaly.nodes):
        return "no node is known to be the cause"
    return ""


def _lacks_spares(state: State, anomaly: AnomalyReported, verdict: Verdict) -> bool:
    """Wait for spares: a relaunch on the same nodes would not help."""
    slow = sum(n in state.nodes.training for n in anomaly.nodes)
    return verdict.action == SWAP and len(state.nodes.usable) < slow
