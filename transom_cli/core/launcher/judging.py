"""The launcher's judgement of a launch that fails: diagnosis and policy are the operator's own. Pure."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.diagnose import diagnose, judged
from transom_cli.core.events import NodeFault, Taken
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.launcher.events import Ended
from transom_cli.core.launcher.orders import Order, Tell
from transom_cli.core.launcher.state import LadderState
from transom_cli.core.operator.state import Job, Launch, Policy, State
from transom_cli.core.policy import IGNORE
from transom_cli.core.progress import Progress


def judged_by(state: LadderState, incident: Incident, after: Ended, at: float) -> Diagnosis | None:
    """after: how what was left of the launch was ended."""
    seen = _as_the_operator_sees_it(state)
    return judged(_unheard(diagnose(incident, seen), after, state), incident, seen, at)


def told_of(name: str, diagnosis: Diagnosis, faults: tuple[NodeFault, ...] = ()) -> tuple[Order, ...]:
    """Its lines in the incident's story. Of a stop the diagnosis itself tells."""
    decided = diagnosis.decided
    told = Tell(name, "diagnosed", diagnosis.words, diagnosis.cause, diagnosis.nodes, faults, decided)
    if not decided.words or not diagnosis.restart:
        return (told,)
    return told, Tell(name, "decided", decided.words, diagnosis.cause, decided=decided)


def let_pass(
    state: LadderState, at: float, words: str, **found: object
) -> tuple[LadderState, tuple[Order, ...]] | None:
    """What would be a fault, and is to be ignored by the policy as long as the training lives. None: it is one.

    It is told, and counted for the rule's budget, once until the ranks step again.
    """
    if not any(IGNORE in (rule.action, rule.then) for rule in state.policy.rules):
        return None
    incident = Incident("", state.job_id, state.restart, at, max(state.step, state.max_step))
    incident = replace(incident, **found)  # type: ignore[arg-type]
    seen = _as_the_operator_sees_it(state)
    diagnosis = judged(diagnose(incident, seen), incident, seen, at)
    if diagnosis is None:
        return None
    decided, since = diagnosis.decided, max(state.since, state.stepped_at)
    if any(t.at >= since and t.decided.fingerprint == decided.fingerprint for t in state.ignored):
        return state, ()
    if decided.action != IGNORE:
        return None
    state = replace(state, ignored=(*state.ignored, Taken(at, decided, diagnosis.nodes)))
    return state, (Tell("", "ignored", f"{words}; {decided.words}", diagnosis.cause, diagnosis.nodes, decided=decided),)


def _unheard(diagnosis: Diagnosis | None, after: Ended, state: LadderState) -> Diagnosis | None:
    """A node that gives no answer is the likelier cause than the rank that was first to lose its peer."""
    silent = tuple(n for n in after.unheard if n in state.nodes)
    if diagnosis is None or not diagnosis.restart or not silent:
        return diagnosis
    words = f"no answer from {', '.join(silent)}; {diagnosis.words}"
    found = replace(diagnosis, cause="node_silent", words=words, sure=False, isolate="exclude")
    return replace(found, nodes=tuple(dict.fromkeys((*silent, *(f.node for f in diagnosis.faults)))))


def _as_the_operator_sees_it(state: LadderState) -> State:
    return State(
        job=Job(nodes=state.allocated, starts=state.restart),
        launch=Launch(started=True),
        progress=Progress(state.step, max(state.max_step, state.began_step), state.since_start, durable=state.durable),
        incidents=state.incidents,
        taken=(*state.taken, *state.ignored),
        policy=Policy(rules=state.policy.rules),
    )
