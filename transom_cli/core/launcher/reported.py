"""What is odd about a training that still steps is acted on where a rule of the policy asks for it. Pure.

A slow training saves first, and loses nothing; then it goes on without the node, or as the rule says. One whose loss
went wrong is ended at once, since its state is not worth keeping: it goes on from a checkpoint from before that.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.diagnose import DIVERGED, SLOW, taken_in
from transom_cli.core.events import Decided, NodeFault
from transom_cli.core.incident import Diagnosis, Incident, Mark
from transom_cli.core.launcher import fault, leaving
from transom_cli.core.launcher.events import Acting, Ended, Reported
from transom_cli.core.launcher.judging import told_of
from transom_cli.core.launcher.orders import GoBack, Order, Tell
from transom_cli.core.launcher.state import LadderState, Leaving, Memory, Rung
from transom_cli.core.log_lines import fingerprint
from transom_cli.core.policy import IGNORE, ISOLATE, ROLLBACK, STOP, SWAP, Facts, Verdict, decide_by
from transom_cli.diagnose.clue import Trouble

Step = tuple[LadderState, tuple[Order, ...]]
_OF_LOSS = frozenset(trouble.value for trouble in Trouble)


def reported(state: LadderState, e: Reported) -> Step:
    if e.launch != state.launch:
        return state, ()
    since = min((r.at for r in state.reports if r.key == e.key), default=e.at)  # it may have changed its words
    state = _without(state, e.key)
    return (state, ()) if e.over else act(replace(state, reports=(*state.reports, replace(e, at=since))), e.at)


def act(state: LadderState, at: float) -> Step:
    """The first report that a rule has something done about. It is looked at again as long as it stands."""
    steps = state.rung is Rung.TRAINING and state.failing_since is None and state.over_since is None and state.step >= 0
    if not state.reports or not steps or state.told or state.leaving is not Leaving.NOT:
        return state, ()
    history = (*state.taken, *state.ignored, *taken_in(state.incidents))
    for report in state.reports:
        verdict = decide_by(state.policy.rules, _facts(state, report, at), history, at)
        if verdict is None or verdict.action == IGNORE or _lacks_spares(state, report, verdict):
            continue
        if lack := _lack(state, report, verdict):
            words = f"{report.words}; rule `{verdict.rule}` would {verdict.action}, but {lack}"
            return _without(state, report.key), (Tell("", "reported", words, _cause(report), report.nodes),)
        return _begin(state, at, Acting(report, verdict.action, verdict.rule, verdict.evidence))
    return state, ()


def ended(state: LadderState, e: Ended) -> Step:
    """The launch is ended, and maybe saved before: what the rule asked for is done."""
    acting = state.acting
    assert acting is not None
    report, cause = acting.report, _cause(acting.report)
    nodes = tuple(n for n in report.nodes if n in state.nodes)
    faults = (
        tuple(NodeFault(n, report.what, "SUSPECT", report.words) for n in nodes) if acting.action == ISOLATE else ()
    )
    decided = Decided(acting.rule, acting.action, "", fingerprint(report.what, ""), acting.words)
    stops = acting.action == STOP
    words = f"{report.words}; {acting.words}" if stops else report.words
    blamed = nodes if acting.action in (ISOLATE, SWAP) else ()
    diagnosis = Diagnosis(cause, words, blamed, False, "none", not stops, faults=faults, decided=decided)
    name = f"l{len(state.incidents) + 1}"
    incident = Incident(name, state.job_id, state.restart, e.at, max(state.step, state.max_step))
    incident = replace(incident, marks=(Mark(e.at, "seen", report.words),), diagnosis=diagnosis, faults=faults)
    told = (Tell(name, "seen", report.words, cause, nodes), *told_of(name, diagnosis, faults))
    state = replace(state, incident=incident, acting=None, leaving=Leaving.NOT, after=e)
    state = replace(state, faults=(*state.faults, *(f for f in faults if f not in state.faults)))
    if acting.action == ROLLBACK:
        state, back = _go_back(state, name, report, skip=acting.skip)
        told += back
    if stops and cause == DIVERGED:
        state = replace(state, memory=Memory.NONE)  # what the nodes hold is not worth keeping
    elif acting.action == ROLLBACK and not (e.unheard or e.survivors):
        then = fault.relaunch(state, e.at, cause, state.nodes)  # the rule's budget is the only one
        return then[0], told + then[1]
    then = fault.after_diagnosis(state, e.at, diagnosis, e)
    return then[0], told + then[1]


def _begin(state: LadderState, at: float, acting: Acting) -> Step:
    report = acting.report
    rule = next((r for r in state.policy.rules if r.name == acting.rule), None)
    acting = replace(acting, skip=rule is None or rule.skip_batches)
    state = replace(_without(state, report.key), acting=acting)
    told = Tell(
        "", "reported", f"{report.words}; {acting.action}, by rule `{acting.rule}`", _cause(report), report.nodes
    )
    if report.what in _OF_LOSS:
        then = leaving.end(replace(state, leaving=Leaving.REPORTED), at)
    else:
        then = leaving.begin(state, Leaving.REPORTED)
    return then[0], (told, *then[1])


def _go_back(state: LadderState, name: str, report: Reported, *, skip: bool) -> Step:
    """It holds for whatever is launched next, here or in another attempt. The bad steps' batches are those from the
    first after the last state that is known to be good.
    """
    steps = (report.before + 1, report.step) if skip else None
    left_out = f"; the batches of steps {steps[0]} to {steps[1]} are to be skipped" if steps else ""
    words = f"back to step {report.back_to} of {state.step}{left_out}"
    why = f"{report.what} at step {report.step}: {report.words}"
    told = Tell(name, "rolled_back", words, DIVERGED, durable=report.back_to)
    state = replace(state, durable=report.back_to, memory=Memory.NONE)
    return state, (told, GoBack(state.launch + 1, report.back_to, steps, why))


def _facts(state: LadderState, report: Reported, at: float) -> Facts:
    about = fingerprint(report.what, "")
    nodes = tuple(n for n in report.nodes if n in state.nodes)
    return Facts("", "", report.words, about, nodes, reported=report.what, lasting=at - report.at)


def _cause(report: Reported) -> str:
    return DIVERGED if report.what in _OF_LOSS else SLOW


def _lack(state: LadderState, report: Reported, verdict: Verdict) -> str:
    """Why it cannot be done."""
    if verdict.action == ROLLBACK and report.back_to < 0:
        before = f"from step {report.before} or before" if report.before >= 0 else "known to be from before it"
        return f"no checkpoint is {before}"
    if verdict.action in (SWAP, ISOLATE) and not any(n in state.nodes for n in report.nodes):
        return "no node is known to be the cause"
    return ""


def _lacks_spares(state: LadderState, report: Reported, verdict: Verdict) -> bool:
    """There may be some later on; a mere relaunch would help nobody."""
    usable = [n for n in state.ready if n not in state.draining]
    return verdict.action == SWAP and len(usable) < sum(n in state.nodes for n in report.nodes)


def _without(state: LadderState, key: str) -> LadderState:
    return replace(state, reports=tuple(r for r in state.reports if r.key != key))
