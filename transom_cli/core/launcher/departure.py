"""An attempt that ends on purpose: before its time limit, off a drained node, or on a stop request.

All ranks save a final checkpoint at a step that none of them has passed. Once it is durable, the launch is ended, and
the training continues in another attempt. A trainer that cannot save on request trains on: until Slurm ends it at the
time limit, or until its next checkpoint if a node is drained.

If ranks are dead or hang, the nodes' snapshot daemons write their memory to disk without them. The attempt ends when
that is done or has taken too long. After a stop request it begins early enough to finish before Slurm's KILL.
"""

from dataclasses import replace

from transom_cli.core.launcher import events as ev
from transom_cli.core.launcher.actions import Action, EndLaunch, Journal, PersistMemory, RequestCheckpoint
from transom_cli.core.launcher.failure import enlarge, nearest_spares, resize, swap, without
from transom_cli.core.launcher.outcome import finish, persist_limit, saved_words, stop
from transom_cli.core.launcher.state import Decision, Departure, Memory, Phase, Reason, State, after

OWN_SAVE = 15.0  # seconds from TERM to KILL for ranks that may save by themselves
TOO_LATE = "what the nodes held in memory did not become durable in time"


def time_limit_near(state: State, e: ev.TimeLimitNear) -> Decision:
    return begin(_preempt_anomaly(replace(state, warned=True)), Reason.TIME_LIMIT)


def nodes_draining(state: State, e: ev.NodesDraining) -> Decision:
    """Leave a node that somebody drains for repair, without losing any step."""
    nodes = state.nodes
    new = tuple(n for n in e.nodes if n in nodes.allocated and n not in nodes.draining)
    if not new:
        return state, ()
    state = replace(state, nodes=replace(nodes, draining=nodes.in_order((*nodes.draining, *new))))
    if not any(n in nodes.training for n in new):
        return state, ()  # spares, which are not used any more
    entry = Journal("", "draining", e.words, "maintenance", new)
    return after((entry,), begin(_preempt_anomaly(state), Reason.MAINTENANCE))


def first_step(state: State) -> Decision:
    """Request the checkpoint that could not be requested before the ranks stepped."""
    if state.warned:
        return begin(state, Reason.TIME_LIMIT)
    draining = any(n in state.nodes.draining for n in state.nodes.training)
    return begin(state, Reason.MAINTENANCE) if draining else (state, ())


def begin(state: State, reason: Reason) -> Decision:
    if not state.steps:
        return state, ()
    heed = state.departure.ranks_heed_warning
    departure = Departure(reason, state.progress.durable, ranks_heed_warning=heed)
    return replace(state, departure=departure), (RequestCheckpoint(state.launch.number),)


def stop_requested(state: State, e: ev.StopRequested) -> Decision:
    """Ranks get Slurm's signal too. What was in progress is not resumed."""
    if state.stop:
        return state, ()
    if state.phase is Phase.CHECKING and state.unlaunched:
        return stop(replace(state, stop=e), e.at, " before the first launch")
    begun = begin(state, Reason.STOP) if state.departure.reason is Reason.NONE else (state, ())
    state = replace(begun[0], stop=e)
    if e.outside and state.departure.reason is Reason.NONE and state.phase is Phase.TRAINING:
        words = (
            f"the ranks get SIGTERM, and {OWN_SAVE:g} s to save by themselves"  # none has stepped: none can be asked
        )
        return after((Journal("", "leaving", words, Reason.STOP.value),), end(state, e.at))
    return state, begun[1]


def checkpoint_planned(state: State, e: ev.CheckpointPlanned) -> Decision:
    departure = state.departure
    if not state.trains(e.launch) or departure.reason is Reason.NONE:
        return state, ()
    cannot = e.words if e.step < 0 else ""
    ask_again = e.at + state.policy.ask_again if e.step < 0 and e.again else None
    planned = replace(departure, save_step=e.step, cannot_save=cannot, ask_again=ask_again, ranks_heed_warning=e.alone)
    state = replace(state, departure=planned)
    if e.step < 0 and state.stop and (e.keeps or (state.stop.outside and not e.again)):
        return end(state, e.at)  # ranks would wait for a request that does not come, or do not know of the signal
    known = bool(cannot) and cannot == departure.cannot_save
    what = (
        f"all ranks save at step {e.step}"
        if e.step >= 0
        else f"the ranks cannot receive the request to save: {e.words}"
    )
    entries = () if known else (Journal("", "leaving", what, departure.reason.value),)
    return after(entries, checkpoint_durable(state, ev.CheckpointDurable(e.at, state.progress.durable)))


def checkpoint_durable(state: State, e: ev.CheckpointDurable) -> Decision:
    launch, progress = state.launch, state.progress
    durable, after_step = max(e.step, progress.durable), state.durable_after
    if launch.began is not None and max(progress.durable, launch.began[1]) < e.step <= progress.step:
        after_step = e.at - launch.stepped_at + (progress.step - e.step) * state.pace
    state = replace(state, progress=replace(progress, durable=durable), durable_after=after_step)
    departure = state.departure
    if state.phase is not Phase.TRAINING or departure.reason is Reason.NONE or departure.save_step is None:
        return state, ()
    # of ranks that save on request, a save that was in progress before is older than the requested one
    any_will_do = departure.save_step < 0 and departure.reason in (Reason.MAINTENANCE, Reason.ANOMALY, Reason.GROW)
    return end(state, e.at) if state.saved or (any_will_do and durable > departure.durable_before) else (state, ())


def end(state: State, at: float) -> Decision:
    grace = OWN_SAVE if state.stop is not None and state.stop.outside and not state.saved else None
    return state.enter(Phase.ENDING, at), (EndLaunch(state.launch.number, "", evidence=False, grace=grace),)


def ended(state: State, e: ev.LaunchEnded) -> Decision:
    state = replace(state, launch=replace(state.launch, ended=e))
    if state.stop:
        return stop(state, e.at, f"; {saved_words(state)}")
    if state.departure.reason is Reason.GROW:
        return enlarge(state, e)
    if state.departure.reason is not Reason.MAINTENANCE:
        return finish(state, e.at, "left", f"the time limit is near; {saved_words(state)}", cause="time_limit")
    nodes = state.nodes
    out = tuple(n for n in nodes.training if n in nodes.draining)
    leaves_job = nodes.batch_host not in out  # a swapped batch host would still be in the job
    if leaves_job and e.complete and state.policy.relaunches:
        if len(nodes.usable) >= len(out):
            return swap(state, e.at, out, nearest_spares(state, out), "maintenance")
        if smaller := without(state, out):
            return resize(state, e.at, out, smaller, "maintenance")
    why = f"{', '.join(out)} is being drained; {saved_words(state)}"
    return finish(state, e.at, "left", why, cause="maintenance")


def grace_period_over(state: State, e: ev.GracePeriodOver) -> Decision:
    if state.memory is not Memory.NONE:
        state = replace(state, memory=Memory.NONE, persisted=TOO_LATE)
    if state.phase is Phase.PERSISTING and state.parting is not None:
        return finish(state, e.at, state.parting.status, state.parting.why, state.parting.cause)
    return stop(state, e.at, f", and not all could be ended in time; {saved_words(state)}")


def memory_persisted(state: State, e: ev.MemoryPersisted) -> Decision:
    """Put the result into the outcome."""
    if state.memory is not Memory.REQUESTED:
        return state, ()
    progress = replace(state.progress, durable=max(e.step, state.progress.durable))
    state = replace(state, memory=Memory.NONE, persisted=e.words, progress=progress)
    entries: tuple[Action, ...] = (Journal("", "kept", e.words),) if e.words else ()
    if state.phase is not Phase.PERSISTING or state.parting is None:
        return state, entries
    return after(entries, finish(state, e.at, state.parting.status, state.parting.why, state.parting.cause))


# --- time ---


def persist_at(state: State) -> float | None:
    """When the nodes are to persist their memory, since the ranks have not saved after a stop request."""
    if state.stop is None or state.memory is not Memory.HELD or state.saved:
        return None
    return state.stop.at + state.policy.flushing


def persist(state: State, at: float) -> Decision:
    due = persist_at(state)
    if due is None or at < due:
        return state, ()
    return replace(state, memory=Memory.REQUESTED), (PersistMemory(state.launch.number, persist_limit(state)),)


def ask_again_at(state: State) -> float | None:
    """When to repeat the request for a final checkpoint: an agent that did not answer may have been restarted."""
    return None if state.departure.reason is Reason.NONE else state.departure.ask_again


def ask_again(state: State, at: float) -> Decision:
    due = ask_again_at(state)
    if due is None or at < due:
        return state, ()
    departure = replace(state.departure, save_step=None, ask_again=None)
    return replace(state, departure=departure), (RequestCheckpoint(state.launch.number),)


def _preempt_anomaly(state: State) -> State:
    """A deadline comes before an anomaly or a growth, for which ranks may still be waiting for a save request."""
    if state.departure.reason not in (Reason.ANOMALY, Reason.GROW) or state.phase is not Phase.TRAINING:
        return state
    departure = replace(state.departure, reason=Reason.NONE)
    return replace(state, departure=departure, launch=replace(state.launch, response=None))
