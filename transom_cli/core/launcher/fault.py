"""A launch that fails: it is ended for certain, its logs are read, its cause is diagnosed; then the next rung.

Relaunch on the same nodes; else spares take the place of the nodes to blame; else the attempt is handed up, with an
outcome that names cause and suspects.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.category import DEVICE
from transom_cli.core.diagnose import first_bad
from transom_cli.core.events import UNDECIDED, NodeFault
from transom_cli.core.incident import Diagnosis, Incident, Mark, Stage
from transom_cli.core.launcher.events import Ended, Read
from transom_cli.core.launcher.judging import judged_by, told_of
from transom_cli.core.launcher.made import made
from transom_cli.core.launcher.orders import CheckNodes, End, Order, ReadLogs, Start, Tell
from transom_cli.core.launcher.outcome import close, leave, saved_words
from transom_cli.core.launcher.state import LadderState, Leaving, Rung
from transom_cli.core.policy import SWAP
from transom_cli.core.progress import made_progress
from transom_cli.plural import several, times

Step = tuple[LadderState, tuple[Order, ...]]
_OURS = (9, 15)  # signals by which the rest of a launch is ended
DOUBT = 600.0  # seconds
EVIDENCE = 64  # ranks whose stack is told in the incident's story; the files hold all of them


def fail(state: LadderState, at: float, words: str, **found: object) -> Step:
    state = without_old_doubts(state, at)
    if state.told:
        return leave(state, at, "stopped", f"told to stop by {state.told}: {words}; {saved_words(state)}")
    state = replace(close(state, at, "failed again"), acting=None)
    name = f"l{len(state.incidents) + 1}"
    incident = Incident(name, state.job_id, state.restart, at, max(state.step, state.max_step))
    incident = replace(incident, marks=(Mark(at, "seen", words),), **found)  # type: ignore[arg-type]
    incident = replace(incident, since_start=state.since_start)
    cause = "hang" if incident.quiet else ""
    return replace(state, incident=incident, rung=Rung.ENDING, since=at), (
        Tell(name, "seen", words, cause, incident.quiet_nodes),
        End(state.launch, name, evidence=incident.quiet),
    )


def ended(state: LadderState, e: Ended) -> Step:
    incident = state.incident
    assert incident is not None
    lines = e.evidence[:EVIDENCE]
    if len(e.evidence) > EVIDENCE:
        lines += (f"... and {len(e.evidence) - EVIDENCE} more, in the attempt's evidence folder",)
    told = tuple(Tell(incident.id, "evidence", line) for line in lines)
    if incident.outcome is not None:  # a word that came late may be of the rank that died first, if not by our hand
        known = {x.rank: x for x in e.exits if x.signal not in _OURS} | {x.rank: x for x in incident.outcome.exits}
        outcome = replace(incident.outcome, exits=tuple(known[rank] for rank in sorted(known)))
        incident = replace(incident, outcome=outcome)
    if incident.quiet and (suspects := tuple(node for node in e.suspects if node in state.nodes)):
        incident = replace(incident, quiet_nodes=suspects)
    first = first_bad(incident.outcome.exits) if incident.outcome else None
    read = ReadLogs(state.launch, first.rank if first else None)
    return replace(state, incident=incident, rung=Rung.READING, since=e.at, after=e), (*told, read)


def read(state: LadderState, e: Read) -> Step:
    incident, after = state.incident, state.after
    if e.launch != state.launch or state.rung is not Rung.READING or incident is None or after is None:
        return state, ()
    state = without_old_doubts(state, e.at)
    orders: tuple[Order, ...] = ()
    if e.line:
        orders = (Tell(incident.id, "examined", f"{e.where}: {e.line}"),)
    incident = replace(incident, log_category=e.category, log_line=e.line, faults=_faults(state))
    diagnosis = judged_by(state, incident, after, e.at)
    state = replace(state, incident=replace(incident, diagnosis=diagnosis))
    orders = (*orders, *told_of(incident.id, diagnosis)) if diagnosis is not None else orders
    nodes = _to_be_checked(state, diagnosis)
    if nodes:
        return replace(state, rung=Rung.CHECKING, since=e.at), (*orders, CheckNodes(incident.id, nodes, "deep"))
    then = after_diagnosis(state, e.at, diagnosis, after)
    return then[0], orders + then[1]


def after_check(state: LadderState, at: float) -> Step:
    """The suspects of a failed launch were examined: what was found decides, if anything was."""
    incident, after = state.incident, state.after
    assert incident is not None and after is not None
    incident = replace(incident, faults=_faults(state))
    diagnosis = judged_by(state, incident, after, at)
    told: tuple[Order, ...] = ()
    if diagnosis is not None and diagnosis != incident.diagnosis:
        told = told_of(incident.id, diagnosis, state.faults)
    state = replace(state, incident=replace(incident, diagnosis=diagnosis))
    then = after_diagnosis(state, at, diagnosis, after)
    return then[0], told + then[1]


def _faults(state: LadderState) -> tuple[NodeFault, ...]:
    """What checks have found against nodes of the launch."""
    return tuple(f for f in state.faults if f.node in state.nodes)


def without_old_doubts(state: LadderState, at: float) -> LadderState:
    """An agent's suspicion counts for `DOUBT` seconds. One that holds on most nodes is about what they share, a switch
    say, and counts against none.
    """
    of_check: dict[str, set[str]] = {}
    for f, _ in state.doubted:
        of_check.setdefault(f.check, set()).add(f.node)
    shared = {check for check, nodes in of_check.items() if len(nodes) >= 2 and len(nodes) * 2 > len(state.allocated)}
    gone = {f for f, heard in state.doubted if at - heard > DOUBT or f.check in shared}
    late = {f for f, heard in state.doubted if at - heard > DOUBT}
    return replace(
        state,
        faults=tuple(f for f in state.faults if f not in gone),
        doubted=tuple((f, heard) for f, heard in state.doubted if f not in late),
    )


def _to_be_checked(state: LadderState, diagnosis: Diagnosis | None) -> tuple[str, ...]:
    """The suspects of a failure that speaks against a node, and as many neighbours, with whom they can be compared.

    That is a fault of a device in the logs, or the second failure on one node. The first may be anybody's, and is
    relaunched at once.
    """
    if diagnosis is None or not diagnosis.restart or not state.policy.deep or state.told:
        return ()
    incident = state.incident
    device = incident is not None and incident.log_category in DEVICE
    again = any(diagnosis.isolates(n) != "none" for n in diagnosis.nodes) and diagnosis.cause in (
        "rank_killed",
        "rank_failed",
        "hang",
    )
    suspects = tuple(n for n in diagnosis.nodes if n in state.nodes)
    if not suspects or not (device or again) or state.leaving is Leaving.TIME_LIMIT:
        return ()
    others = [n for n in (*state.nodes, *state.ready) if n not in suspects]
    return state.in_order((*suspects, *others[: max(2, len(suspects))]))


def after_diagnosis(state: LadderState, at: float, diagnosis: Diagnosis | None, after: Ended) -> Step:
    if state.told:
        return leave(state, at, "stopped", f"told to stop by {state.told}; {saved_words(state)}")
    words = diagnosis.words if diagnosis else "the training step ended"
    if state.leaving is Leaving.TIME_LIMIT:
        return leave(state, at, "failed", f"{words}; and the time limit is near")
    stuck = next((f"{what} on {node} cannot be ended" for node, what in after.survivors), "")
    suspects = _suspects(state, diagnosis, after)
    why = f"{words}; {stuck}" if stuck else words
    if diagnosis is None or not diagnosis.restart or not state.policy.relaunches:
        return leave(state, at, "failed", why)
    if any(node not in suspects for node in (*after.unheard, *(node for node, _ in after.survivors))):
        return leave(state, at, "failed", why)  # no node of the launch's: this launcher itself cannot end it
    if suspects:
        return _swap(state, at, diagnosis, suspects, why)
    if diagnosis.decided.action == SWAP:
        asked = tuple(n for n in diagnosis.nodes if n in state.nodes)
        usable = tuple(n for n in state.ready if n not in state.draining)
        if asked and len(usable) >= len(asked):  # else as if it were a relaunch
            return swap(state, at, asked, usable[: len(asked)], diagnosis.cause)
    if state.launch > 0 and not (state.appeared or state.exits):
        return leave(state, at, "failed", words)  # a second try would find the same
    spent = _spent(state, diagnosis.cause)
    if spent < state.policy.relaunches:
        return relaunch(state, at, diagnosis.cause, state.nodes)
    beyond = f" beyond step {state.progress}" if state.progress >= 0 else ""
    if _counted(state):
        beyond = f" ({several(made(state)[0], 'step')} in the last start)"
    why = f"{words}; relaunched {times(spent)} without progress{beyond}"
    suspects = tuple(n for n in diagnosis.nodes if n in state.nodes)
    return _swap(state, at, diagnosis, suspects, why) if suspects else leave(state, at, "failed", why)


def _suspects(state: LadderState, diagnosis: Diagnosis | None, after: Ended) -> tuple[str, ...]:
    """Nodes of the launch that must not carry the next one."""
    blamed = tuple(n for n in diagnosis.nodes if diagnosis.isolates(n) != "none") if diagnosis is not None else ()
    found = dict.fromkeys((*after.unheard, *(node for node, _ in after.survivors), *blamed, *state.draining))
    return tuple(n for n in found if n in state.nodes)


def _swap(state: LadderState, at: float, diagnosis: Diagnosis, suspects: tuple[str, ...], why: str) -> Step:
    usable = tuple(n for n in state.ready if n not in state.draining)
    if len(usable) < len(suspects):
        lack = "no spare is ready" if not usable else f"{len(suspects)} spares are needed, and {len(usable)} ready"
        had = len(state.allocated) > state.wanted
        return leave(state, at, "failed", f"{why}; {lack}" if had else why)
    return swap(state, at, suspects, usable[: len(suspects)], diagnosis.cause)


def swap(state: LadderState, at: float, out: tuple[str, ...], into: tuple[str, ...], cause: str) -> Step:
    """`into` take the ranks of `out`, which carry none any more in this attempt. Fresh nodes, fresh relaunches.

    All other ranks stay on their nodes: the memory there holds their snapshots.
    """
    name = state.incident.id if state.incident is not None else ""
    words = f"{', '.join(into)} for {', '.join(out)}"
    state = replace(
        state,
        spares=tuple(n for n in state.spares if n not in into),
        ready=tuple(n for n in state.ready if n not in into),
        given_up=(*state.given_up, *out),
        spent=(),
    )
    instead = dict(zip(out, into, strict=True))
    nodes = tuple(instead.get(n, n) for n in state.nodes)
    faults = tuple(f for f in state.faults if f.node in out)
    diagnosis = state.incident.diagnosis if state.incident is not None else None
    decided = diagnosis.decided if diagnosis is not None and diagnosis.cause == cause else UNDECIDED
    told = Tell(name, "swapped", words, cause, out, faults, decided)
    then = relaunch(state, at, cause, nodes)
    return then[0], (told, *then[1])


def reached(state: LadderState) -> int:
    """What a new launch can count on: the newest durable step, or without checkpoints the newest step."""
    return state.durable if state.durable >= 0 else state.max_step


def _counted(state: LadderState) -> bool:
    """Whether nothing but steps that count from the start of the processes tells of progress."""
    return state.durable < 0 and made(state)[1]


def _progressed(state: LadderState) -> bool:
    """Whether the launch came further than those before it."""
    if _counted(state):
        return made_progress(made(state)[0], state.made)
    return reached(state) > state.progress


def _spent(state: LadderState, cause: str) -> int:
    return 0 if _progressed(state) else dict(state.spent).get(cause, 0)


def relaunch(state: LadderState, at: float, cause: str, nodes: tuple[str, ...]) -> Step:
    spent = {} if _progressed(state) else dict(state.spent)
    if nodes == state.nodes:
        spent[cause] = spent.get(cause, 0) + 1
    incident = replace(state.incident, stage=Stage.STARTING) if state.incident else None
    steps, since_start = made(state)
    counted = _counted(state)
    state = replace(
        state,
        rung=Rung.TRAINING,
        nodes=nodes,
        since_start=since_start,
        made=steps if since_start and steps >= 0 else state.made,
        max_step=max(steps, state.max_step) if since_start else state.max_step,
        since=at,
        launch=state.launch + 1,
        appeared=False,
        away=False,
        step=-1,
        exits=(),
        over_since=None,
        srun=None,
        failing_since=None,
        after=None,
        leaving=Leaving.NOT,
        saving=None,
        cannot_save="",
        ask_again=None,
        alone=False,
        progress=state.progress if counted else max(state.progress, reached(state)),
        spent=tuple(sorted(spent.items())),
        incident=incident,
        reports=(),
        acting=None,
    )
    return state, (Start(state.launch, nodes),)
