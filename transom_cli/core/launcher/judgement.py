"""The launcher's judgement of a failure. Diagnosis and policy are shared with the operator. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transom_cli.core.diagnose import RunFacts, diagnose, judged
from transom_cli.core.events import NodeFault, OutcomeSeen, RankExit, Stall, Taken
from transom_cli.core.incident import Diagnosis, Incident, Mark
from transom_cli.core.launcher.actions import Action, Journal
from transom_cli.core.launcher.events import LaunchEnded
from transom_cli.core.launcher.state import Decision, Phase, State
from transom_cli.core.policy import IGNORE


@dataclass(frozen=True)
class Sign:
    """The first sign of a failure: one line for a person, and the evidence."""

    words: str
    exits: tuple[RankExit, ...] | None = None  # if ranks exited or the step did not start; None otherwise
    stalled: bool = False  # ranks stopped stepping
    suspects: tuple[str, ...] = ()  # nodes that stand out then
    faults: tuple[NodeFault, ...] = ()
    stall: Stall | None = None

    @classmethod
    def of_stall(cls, stall: Stall, nodes: tuple[str, ...]) -> Sign:
        return cls(stall.words, stalled=True, suspects=nodes, stall=stall)

    def incident(self, state: State, at: float, name: str = "") -> Incident:
        outcome = OutcomeSeen(at, state.attempt, "failed", self.words, self.exits) if self.exits is not None else None
        return Incident(
            name,
            state.job_id,
            state.restart,
            at,
            state.progress.step if state.progress.since_start else max(state.progress.step, state.progress.max_step),
            stalled=self.stalled,
            suspect_nodes=self.suspects,
            stall=self.stall,
            outcome=outcome,
            faults=self.faults,
            marks=(Mark(at, "seen", self.words),),
            ran=at - state.since if state.phase is Phase.TRAINING else 0.0,
            since_start=state.progress.since_start,
            durable=state.progress.durable,
        )


def run_facts(state: State) -> RunFacts:
    return RunFacts(
        nodes=state.nodes.allocated,
        carrying=len(state.nodes.training),
        fewest=state.nodes.fewest,
        wanted=state.nodes.wanted,
        launched=True,
        step=state.progress.step,
        max_step=max(state.progress.max_step, state.before.step),
        durable=state.progress.durable,
        starts=state.restart,
        incidents=state.history.incidents,
        taken=state.history.taken,
        rules=state.policy.rules,
    )


def judge(state: State, incident: Incident, ended: LaunchEnded | None, at: float) -> Diagnosis | None:
    """Diagnose an incident and apply the policy. ended: how the launch's processes were removed, if they were."""
    facts = run_facts(state)
    diagnosis = diagnose(incident, facts)
    if ended is not None:
        diagnosis = _blame_unheard(diagnosis, state.nodes.of_launch(ended.unheard))
    return judged(diagnosis, incident, facts, at)


def journal_diagnosis(
    name: str, diagnosis: Diagnosis, faults: tuple[NodeFault, ...] = (), step: tuple[int, bool] = (-1, False)
) -> tuple[Action, ...]:
    """Journal entries of a diagnosis. If the policy stops the run, the diagnosis itself says so."""
    decided = diagnosis.decided
    entry = Journal(name, "diagnosed", diagnosis.words, diagnosis.cause, diagnosis.nodes, faults, decided)
    entry = replace(entry, step=step[0], since_start=step[1], end=diagnosis.end)
    if not decided.words or not diagnosis.restart:
        return (entry,)
    return entry, Journal(name, "decided", decided.words, diagnosis.cause, decided=decided)


def ignore(state: State, at: float, sign: Sign) -> Decision | None:
    """Let a failure pass if the policy ignores it while the training lives. None: it must be handled.

    It is journalled, and counts for the rule's budget, once until the ranks step again.
    """
    if not any(IGNORE in (rule.action, rule.then) for rule in state.policy.rules):
        return None
    diagnosis = judge(state, sign.incident(state, at), None, at)
    if diagnosis is None:
        return None
    decided, since, history = diagnosis.decided, max(state.since, state.launch.stepped_at), state.history
    if any(t.at >= since and t.decided.fingerprint == decided.fingerprint for t in history.ignored):
        return state, ()
    if decided.action != IGNORE:
        return None
    state = replace(state, history=replace(history, ignored=(*history.ignored, Taken(at, decided, diagnosis.nodes))))
    words = f"{sign.words}; {decided.words}"
    return state, (Journal("", "ignored", words, diagnosis.cause, diagnosis.nodes, decided=decided),)


def _blame_unheard(diagnosis: Diagnosis | None, unheard: tuple[str, ...]) -> Diagnosis | None:
    """A node that does not answer is a likelier cause than the rank that lost its peer first."""
    if diagnosis is None or not diagnosis.restart or not unheard:
        return diagnosis
    words = f"no answer from {', '.join(unheard)}; {diagnosis.words}"
    found = replace(diagnosis, cause="node_silent", words=words, sure=False, isolate="exclude")
    return replace(found, nodes=tuple(dict.fromkeys((*unheard, *(f.node for f in diagnosis.faults)))))
