"""`decide(state, event) -> (state, actions)`: total, so that every event is answered in every state.

Events about another launch than the present one change nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transom_cli.core.clocks import first_bad
from transom_cli.core.launcher import anomalies, checks, departure, failure, growth, hangs, reentry
from transom_cli.core.launcher import events as ev
from transom_cli.core.launcher.actions import Action, Journal
from transom_cli.core.launcher.failure import fail
from transom_cli.core.launcher.judgement import Sign, ignore
from transom_cli.core.launcher.outcome import close, finish, persist_limit, stop
from transom_cli.core.launcher.state import Decision, Phase, Reason, State, after

_AFTER_AWAY = 3  # times the limit for a step to start after slurmctld was away: it learns late of the last step's end


def decide(state: State, event: ev.Event) -> Decision:
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise TypeError(f"no handler for {type(event).__name__}")
    if state.phase is Phase.OVER:
        return state, ()
    decided, actions = handler(state, event)
    if decided.phase is Phase.OVER:
        actions = (*growth.end(decided), *actions)
    return decided, actions


def next_deadline(state: State) -> float | None:
    """When `decide` next needs a `Tick`, on the launcher's clock; None: not before another event.

    An earlier `Tick` changes nothing. The deadline is in the past if a rule that is due waits for a spare.
    """
    if state.phase is Phase.OVER:
        return None
    due = [departure.persist_at(state), _phase_deadline(state)]
    if state.phase is Phase.TRAINING:
        due += [_settled_at(state), departure.ask_again_at(state), anomalies.respond_at(state)]
        due += [growth.due_at(state)]
    return min((at for at in due if at is not None), default=None)


# --- time ---


def _tick(state: State, e: ev.Tick) -> Decision:
    state, actions = departure.persist(state, e.at)
    state, late = _late(state, e.at)
    state, response = anomalies.respond(state, e.at)
    return after((*actions, *late, *response), growth.consider(state, e.at))


def _late(state: State, at: float) -> Decision:
    """Stop waiting for what takes too long."""
    due = _phase_deadline(state)
    if due is not None and at >= due:
        return _phase_late(state, at)
    if state.phase is not Phase.TRAINING:
        return state, ()
    state, actions = _settle(state, at)
    return (state, actions) if state.phase is not Phase.TRAINING else after(actions, departure.ask_again(state, at))


def _phase_deadline(state: State) -> float | None:
    policy, launch = state.policy, state.launch
    if state.phase is Phase.CHECKING:
        return checks.late_at(state)
    if state.phase is Phase.TRAINING:
        if (late := reentry.late_at(state)) is not None:
            return late
        if launch.number <= state.first or launch.started:
            return None
        return state.since + max(policy.come_up, 3 * launch.startup) * (_AFTER_AWAY if launch.slurm_away else 1)
    limits = {Phase.PERSISTING: persist_limit(state), Phase.ENDING: policy.ending, Phase.READING: policy.reading}
    return state.since + limits[state.phase]


def _phase_late(state: State, at: float) -> Decision:
    number, waited = state.launch.number, f"{at - state.since:.0f} s"
    if state.phase is Phase.PERSISTING:
        return departure.memory_persisted(state, ev.MemoryPersisted(at, number, -1, departure.TOO_LATE))
    if state.phase is Phase.ENDING:
        stuck = (ev.THIS_LAUNCHER, f"the end of launch {number}, which has taken {waited} so far,")
        return _ended(state, ev.LaunchEnded(at, number, survivors=(stuck,)))
    if reentry.replacing(state):
        return fail(state, at, reentry.late(state))
    if state.phase is Phase.READING and state.launch.ended is None:
        unjudged = state.incident is not None and state.incident.stalled and not state.launch.culprits
        return reentry.end_all(state, at, f"no answer for {waited}", evidence=unjudged)
    if state.phase is Phase.READING:
        return failure.logs_read(state, ev.LogsRead(at, number, "unknown", f"no answer for {waited}", "logs"))
    if state.phase is Phase.CHECKING:
        return checks.late(state, at)
    if state.launch.awaited:
        return reentry.kill_stuck(state, at) or fail(state, at, reentry.late(state))
    return fail(state, at, Sign(f"launch {number} did not start a task within {waited}", exits=()))


# --- the launch ---


def _start_failed(state: State, e: ev.StartFailed) -> Decision:
    return finish(state, e.at, "failed", e.words) if state.trains(e.launch) else (state, ())


def _slurm_away(state: State, e: ev.SlurmAway) -> Decision:
    """A step that could not be requested has not begun: it is neither failed nor late."""
    launch = state.launch
    if not state.trains(e.launch) or launch.tasks_seen:
        return state, ()
    name = state.incident.id if state.incident is not None else ""
    words = f"launch {e.launch} waits for slurmctld, which does not answer ({e.words})"
    entries = () if launch.slurm_away else (Journal(name, "waiting", words),)
    return replace(state, since=e.at, launch=replace(launch, slurm_away=True)), entries


def _tasks_seen(state: State, e: ev.TasksSeen) -> Decision:
    launch = state.launch
    if not state.trains(e.launch) or launch.tasks_seen:
        return state, ()
    startup = e.at - state.since if launch.number == state.first else launch.startup
    return replace(state, launch=replace(launch, tasks_seen=True, startup=startup)), ()


def _ranks_exited(state: State, e: ev.RanksExited) -> Decision:
    launch = state.launch
    if e.launch == launch.number and reentry.reading(state):
        return reentry.more_exits(state, e)
    if not state.trains(e.launch):
        return state, ()
    bad = any(x.bad for x in e.exits)
    launch = replace(
        launch,
        exits=e.exits,
        failing_since=e.at if bad and launch.failing_since is None else launch.failing_since,
        over_since=e.at if e.over and launch.over_since is None else launch.over_since,
        srun_code=e.srun_code if e.srun_code is not None else launch.srun_code,
    )
    return _settle(replace(state, launch=launch), e.at)


def _settled_at(state: State) -> float | None:
    """When the exits seen so far are conclusive; None: not before further exits.

    A launch is over when all its tasks have ended, or a moment after its srun or its first rank has failed.
    """
    launch, policy = state.launch, state.policy
    failing, over = None if state.withheld else launch.failing_since, launch.over_since
    if len(launch.exits) >= state.tasks or (failing is not None and over is not None):
        return state.since
    if failing is not None:
        return failing + (policy.settle_alive if policy.recoverable else policy.settle)
    return over + policy.late if over is not None else None


def _settle(state: State, at: float) -> Decision:
    launch, due = state.launch, _settled_at(state)
    if due is None or at < due:
        return state, ()
    all_known = len(launch.exits) >= state.tasks
    if launch.failing_since is None and (all_known or launch.srun_code == 0):
        return _ended_well(state, at, "every rank" if all_known else "the training step")
    first = first_bad(launch.exits)
    silent = f"the training step ended (srun exit code {launch.srun_code}) without a report from its ranks"
    return fail(state, at, Sign(first.words if first else silent, exits=launch.exits))


def _ranks_killed(state: State, e: ev.RanksKilled) -> Decision:
    new = reentry.killing_new(state)
    if not new and not reentry.replacing(state):
        return hangs.killed(state, e)
    if e.launch != state.launch.number:
        return state, ()
    if new:
        return reentry.new_killed(state, e)
    return reentry.stuck_killed(state, e) or fail(state, e.at, reentry.late(state))


def _ended_well(state: State, at: float, which: str) -> Decision:
    """A trainer that ends with code 0 on request is not done."""
    words = f"{which} ended with exit code 0"
    if state.stop:
        return stop(state, at, f": {words}")
    if state.warned and state.departure.ranks_heed_warning:
        return finish(state, at, "left", f"{words} on the warning before the time limit", cause="time_limit")
    return finish(state, at, "done", words)


def _ended(state: State, e: ev.LaunchEnded) -> Decision:
    if e.launch != state.launch.number or state.phase is not Phase.ENDING:
        return state, ()
    if state.open_incident is not None:
        return failure.ended(state, e)
    anomaly = state.launch.response is not None and state.departure.reason is Reason.ANOMALY and not state.stop
    return anomalies.ended(state, e) if anomaly else departure.ended(state, e)


# --- steps and silence ---

_OLDER = "step {0:,} is done although checkpoint {1:,} is on disk: the ranks may have passed over a damaged one"


def _stepped(state: State, e: ev.Stepped) -> Decision:
    launch, before = state.launch, state.progress
    if not state.trains(e.launch) or not before.newer(e.step, e.since_start):
        return state, ()
    progress = before.stepped(e.step, e.since_start, e.step)
    older = launch.began is None and not e.since_start and e.step < before.durable
    launch = launch.stepped(e.at, state.since, e.step)
    pace = launch.step_time or state.pace
    state = growth.stepped(replace(state, launch=launch, progress=progress, pace=pace))
    entries: tuple[Action, ...] = ()
    if state.incident is not None and not (state.withheld and state.incident.lost_rank):
        words = reentry.words(state, e.at, e.step) or f"step {e.step} done in launch {launch.number}"
        entries = (Journal(state.incident.id, "recovered", words),)
        state = close(state, e.at, "recovered")
    if older:
        entries = (*entries, Journal("", "older", _OLDER.format(e.step, before.durable)))
    return after(entries, departure.first_step(state)) if before.step < 0 else (state, entries)


def _stalled(state: State, e: ev.Stalled) -> Decision:
    if not state.trains(e.launch) or not state.runs or state.stop:
        return state, ()
    if e.stall.step < 0 and max(state.progress.max_step, state.before.step) < 0 and not e.stall.stopped:
        # maybe a trainer without heartbeats: its silence means nothing, and a relaunch would loop
        words = f"no step seen for {e.stall.seconds:.0f} s: a hang, or a trainer that reports none (no `beat(step)`)"
        return state, (Journal("", "late", words),)
    sign = Sign.of_stall(e.stall, state.nodes.of_launch(e.stall.nodes))
    return ignore(state, e.at, sign) or fail(state, e.at, sign)


def _unreachable(state: State, e: ev.NodeUnreachable) -> Decision:
    """Act on a vanished node while all ranks wait, even if the limit for a stall is not known yet."""
    if not state.runs or state.stop or e.node not in state.nodes.training:
        return state, ()
    launch, step = state.launch, state.progress.step
    limit = max(e.limit, state.policy.silent * (1 if state.nodes.can_lose_one else 3))
    waited = e.at - (launch.stepped_at if step >= 0 else state.since)
    if e.silent_for < limit or waited < limit:
        return state, ()
    last = f"step {step}{' of this start' if state.progress.since_start else ''}"
    done = f"no rank has stepped since {last}" if step >= 0 else "no rank has made a step"
    words = f"{e.node} has been silent for {e.silent_for:.0f} s, its slurmd does not answer, and {done}"
    return fail(state, e.at, Sign(words, stalled=True, suspects=(e.node,)))


def _spare_checked(state: State, e: ev.SpareChecked) -> Decision:
    nodes = state.nodes
    if e.node not in nodes.allocated or e.node in (*nodes.training, *nodes.given_up):
        return state, ()
    return replace(state, nodes=nodes.with_ready(e.node) if e.good else nodes.without_spares((e.node,))), ()


_HANDLERS: dict[type[ev.Event], Callable[[State, Any], Decision]] = {
    ev.AttemptStarted: checks.attempt_started,
    ev.NodesChecked: checks.nodes_checked,
    ev.FaultsFound: checks.faults_found,
    ev.SpareChecked: _spare_checked,
    ev.NodeReturned: growth.node_returned,
    ev.TopUpSubmitted: growth.submitted,
    ev.TopUpStarted: growth.started,
    ev.TopUpEnded: growth.ended,
    ev.QueueSeen: growth.queue_seen,
    ev.TasksSeen: _tasks_seen,
    ev.StartFailed: _start_failed,
    ev.SlurmAway: _slurm_away,
    ev.Tick: _tick,
    ev.RanksExited: _ranks_exited,
    ev.RanksEntered: reentry.entered,
    ev.StandbyTook: reentry.standby_took,
    ev.HangJudged: hangs.judged,
    ev.RanksKilled: _ranks_killed,
    ev.Stalled: _stalled,
    ev.NodeUnreachable: _unreachable,
    ev.Stepped: _stepped,
    ev.CheckpointDurable: departure.checkpoint_durable,
    ev.LaunchEnded: _ended,
    ev.LogsRead: failure.logs_read,
    ev.AnomalyReported: anomalies.reported,
    ev.TimeLimitNear: departure.time_limit_near,
    ev.NodesDraining: departure.nodes_draining,
    ev.CheckpointPlanned: departure.checkpoint_planned,
    ev.MemoryPersisted: departure.memory_persisted,
    ev.StopRequested: departure.stop_requested,
    ev.GracePeriodOver: departure.grace_period_over,
}
