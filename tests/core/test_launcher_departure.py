"""The launcher's core: attempts that are left on purpose, and what is to follow on one where no operator lives."""

from __future__ import annotations

from dataclasses import replace

from core_launcher import NODES, SPARE, exits, feed, fresh, lost, outcome, started, training, with_spare

from transom_cli.core import launcher
from transom_cli.core.events import Stall


def test_before_the_time_limit_all_ranks_save_and_the_attempt_is_left() -> None:
    state, actions = feed(training(), launcher.TimeLimitNear(9.0))
    assert actions == [launcher.RequestCheckpoint(0)]
    state, actions = feed(
        state, launcher.TimeLimitNear(9.1), launcher.CheckpointPlanned(9.5, 0, 12), launcher.CheckpointDurable(10.0, 10)
    )
    assert actions == [launcher.Journal("", "leaving", "all ranks save at step 12", "time_limit")]
    state, actions = feed(state, launcher.CheckpointDurable(11.0, 12))
    assert actions == [launcher.EndLaunch(0, "", evidence=False)]
    _, actions = feed(state, launcher.LaunchEnded(12.0, 0, exits(-9, -9, -9)))
    left, found = outcome(actions), outcome(actions).outcome
    assert (found.status, found.cause, left.exit_code, left.again) == ("left", "time_limit", 75, "requeue")
    assert found.why == "the time limit is near; step 12 is durable" and found.exits == ()


def test_a_trainer_that_cannot_be_asked_trains_on_to_the_limit() -> None:
    state, _ = feed(
        training(), launcher.TimeLimitNear(9.0), launcher.CheckpointPlanned(9.5, 0, -1, "no Checkpointer listens")
    )
    state, actions = feed(
        state,
        launcher.CheckpointDurable(30.0, 20),
        launcher.StopRequested(40.0, "SIGTERM"),
        launcher.RanksExited(41.0, 0, exits(-15, -15, -15)),
    )
    assert outcome(actions).outcome.status == "stopped"
    assert outcome(actions).outcome.why.endswith("the newest durable step is 20 (no Checkpointer listens)")


def test_sigterm_that_is_not_slurms_ends_ranks_that_cannot_save_on_request_with_time_for_their_own_save() -> None:
    """Slurm would have signalled them too."""
    ask = launcher.StopRequested(9.0, "SIGTERM", outside=True)
    state, actions = feed(training(), ask)
    assert actions == [launcher.RequestCheckpoint(0)]
    _, actions = feed(state, launcher.CheckpointPlanned(9.5, 0, -1, "no Checkpointer listens"))
    assert actions[-1] == launcher.EndLaunch(0, "", evidence=False, grace=15.0)
    unstepped, _ = feed(fresh(), launcher.AttemptStarted(0.0))
    leaving = launcher.Journal("", "leaving", "the ranks get SIGTERM, and 15 s to save by themselves", "stop_request")
    assert feed(unstepped, ask)[1] == [leaving, launcher.EndLaunch(0, "", evidence=False, grace=15.0)]


def test_stop_request_makes_the_state_durable_or_says_that_it_is_not() -> None:
    state, actions = feed(training(), launcher.StopRequested(9.0, "SIGTERM"))
    assert actions == [launcher.RequestCheckpoint(0)]
    saved, _ = feed(state, launcher.CheckpointPlanned(9.5, 0, 12), launcher.CheckpointDurable(11.0, 12))
    _, actions = feed(saved, launcher.LaunchEnded(12.0, 0))
    assert outcome(actions).outcome.why == "stopped by SIGTERM; step 12 is durable"
    assert outcome(actions).again == "uncancelled", "Slurm knows whether it was its time limit"
    _, actions = feed(state, launcher.CheckpointPlanned(9.5, 0, 12), launcher.GracePeriodOver(36.0))
    assert "step 12 did not become durable in time: the newest durable step is 4" in outcome(actions).outcome.why
    ending, actions = feed(state, launcher.CheckpointPlanned(9.5, 0, -1, "n2 is silent", keeps=True))
    assert actions[-1] == launcher.EndLaunch(0, "", evidence=False)
    _, actions = feed(ending, launcher.LaunchEnded(12.0, 0))
    assert "the newest durable step is 4 (n2 is silent)" in outcome(actions).outcome.why
    assert not any(
        isinstance(o, launcher.EndLaunch)
        for o in feed(state, launcher.CheckpointPlanned(9.5, 0, -1, "nobody listens"))[1]
    )


def test_ranks_that_could_not_be_asked_to_save_are_asked_again_where_that_may_help() -> None:
    state, _ = feed(
        training(),
        launcher.TimeLimitNear(9.0),
        launcher.CheckpointPlanned(9.5, 0, -1, "n2 gives no answer", again=True),
    )
    assert feed(state, launcher.Tick(14.0))[1] == []
    state, actions = feed(state, launcher.Tick(14.5))
    assert actions == [launcher.RequestCheckpoint(0)] and feed(state, launcher.Tick(99.0))[1] == [], (
        "one question at a time"
    )
    still, actions = feed(state, launcher.CheckpointPlanned(15.0, 0, -1, "n2 gives no answer", again=True))
    assert actions == [] and feed(still, launcher.Tick(20.0))[1] == [launcher.RequestCheckpoint(0)], (
        "reported once, asked on"
    )
    saved, _ = feed(state, launcher.CheckpointPlanned(15.0, 0, 30), launcher.CheckpointDurable(16.0, 30))
    assert outcome(feed(saved, launcher.LaunchEnded(17.0, 0))[1]).outcome.status == "left"
    hopeless, _ = feed(
        training(), launcher.TimeLimitNear(9.0), launcher.CheckpointPlanned(9.5, 0, -1, "no rank has a Checkpointer")
    )
    assert feed(hopeless, launcher.Tick(99.0))[1] == []


def test_a_trainer_that_ends_in_order_on_the_warning_is_not_done() -> None:
    state, _ = feed(training(), launcher.TimeLimitNear(9.0))
    by_itself, _ = feed(state, launcher.CheckpointPlanned(9.1, 0, -1, "no rank has a Checkpointer", alone=True))
    left = outcome(feed(by_itself, launcher.RanksExited(20.0, 0, exits(0, 0, 0)))[1])
    assert (left.outcome.status, left.outcome.cause, left.again) == ("left", "time_limit", "requeue")
    knows_nothing, _ = feed(state, launcher.CheckpointPlanned(9.1, 0, -1, "no rank has a Checkpointer"))
    assert outcome(feed(knows_nothing, launcher.RanksExited(20.0, 0, exits(0, 0, 0)))[1]).outcome.status == "done"
    found, _ = feed(by_itself, launcher.StopRequested(15.0, "SIGTERM"))
    stopped = outcome(feed(found, launcher.RanksExited(20.0, 0, exits(0, 0, 0)))[1])
    assert (stopped.outcome.status, stopped.outcome.cause, stopped.again) == ("stopped", "time_limit", "uncancelled")


def test_a_warning_is_kept_until_the_ranks_step() -> None:
    state, actions = feed(fresh(), launcher.AttemptStarted(0.0), launcher.TimeLimitNear(1.0))
    assert actions == [launcher.StartLaunch(0, ("n1", "n2", "n3"))]
    state, actions = feed(state, launcher.Stepped(20.0, 0, 5))
    assert actions == [launcher.RequestCheckpoint(0)] and state.departure.reason.value == "time_limit"


def test_without_checkpoints_of_ours_steps_are_progress_as_far_as_they_can_be() -> None:
    def after(begun: launcher.AttemptStarted, *events: launcher.Event) -> launcher.FinishAttempt:
        return outcome(feed(feed(fresh(), begun, launcher.Stepped(5.0, 0, 900))[0], *events)[1])

    died = (
        launcher.RanksExited(9.0, 0, exits(93, None, None)),
        launcher.Tick(10.0),
        launcher.LaunchEnded(11.0, 0),
        launcher.LogsRead(12.0, 0, "unknown", ""),
    )
    assert after(launcher.AttemptStarted(0.0), *died).outcome.step == 900
    limit = (launcher.TimeLimitNear(9.0), launcher.StopRequested(99.0, "SIGTERM"), launcher.GracePeriodOver(130.0))
    assert after(launcher.AttemptStarted(0.0, step=1000, stuck=3), *limit).again == "uncancelled", (
        "it stepped up to its limit"
    )
    assert (
        after(
            launcher.AttemptStarted(0.0, step=1000, stuck=3),
            launcher.StopRequested(99.0, "SIGTERM"),
            launcher.GracePeriodOver(130.0),
        ).again
        == ""
    )


def test_a_run_that_has_stepped_before_is_not_ended_for_a_users_error_nor_left_to_hang() -> None:
    begun = launcher.AttemptStarted(0.0, step=40)
    state, _ = feed(fresh(), begun, launcher.RanksExited(3.0, 0, exits(1, 1, 1)), launcher.LaunchEnded(4.0, 0))
    assert feed(state, launcher.LogsRead(5.0, 0, "user_code", "ConnectionError"))[0].launch.number == 1
    state, _ = feed(fresh(), begun, launcher.TasksSeen(1.0, 0))
    assert isinstance(feed(state, launcher.Stalled(1900.0, 0, Stall(-1, 1850.0, 1800.0)))[1][-1], launcher.EndLaunch)


def test_blame_of_an_earlier_attempt_is_not_renewed() -> None:
    state, _ = feed(fresh((*NODES, SPARE)), launcher.AttemptStarted(0.0, isolated=("n2",)))
    state, _ = feed(state, launcher.Stepped(5.0, 0, 3), launcher.StopRequested(9.0, "SIGTERM"))
    assert outcome(feed(state, launcher.GracePeriodOver(40.0))[1]).outcome.blamed == ()
    _, actions = feed(fresh(), launcher.AttemptStarted(0.0, isolated=("n2",), insist=True))
    assert (outcome(actions).outcome.suspects, outcome(actions).outcome.blamed) == (("n2",), ())


def test_a_node_with_a_process_that_cannot_be_killed_is_blamed() -> None:
    state, _ = feed(training(), launcher.RanksExited(9.0, 0, exits(-9, None, None)), launcher.Tick(11.0))
    _, actions = feed(
        state, launcher.LaunchEnded(12.0, 0, survivors=(("n2", "rank 1"),)), launcher.LogsRead(13.0, 0, "unknown", "")
    )
    assert outcome(actions).outcome.blamed == ("n2",)


def test_a_node_that_somebody_drains_is_left_with_a_checkpoint() -> None:
    state, actions = feed(training(), launcher.NodesDraining(9.0, ("n2",), "n2 is drained: fan"))
    assert actions == [
        launcher.Journal("", "draining", "n2 is drained: fan", "maintenance", ("n2",)),
        launcher.RequestCheckpoint(0),
    ]
    requested, actions = feed(
        state,
        launcher.NodesDraining(9.1, ("n2",), "again"),
        launcher.CheckpointPlanned(9.5, 0, 12),
        launcher.CheckpointDurable(10.0, 12),
    )
    _, actions = feed(requested, launcher.LaunchEnded(12.0, 0))
    left = outcome(actions).outcome
    assert (left.status, left.cause, left.why) == ("left", "maintenance", "n2 is being drained; step 12 is durable")
    by_itself, actions = feed(
        state, launcher.CheckpointPlanned(9.5, 0, -1, "nobody listens"), launcher.CheckpointDurable(9.9, 4)
    )
    assert not any(isinstance(o, launcher.EndLaunch) for o in actions)
    assert isinstance(feed(by_itself, launcher.CheckpointDurable(30.0, 20))[1][0], launcher.EndLaunch), (
        "at its own next checkpoint"
    )


def test_leave_waits_for_the_requested_save_not_for_one_that_was_in_progress() -> None:
    state, _ = feed(training(), launcher.NodesDraining(9.0, ("n2",), "fan"), launcher.CheckpointPlanned(9.5, 0, 12))
    state, actions = feed(state, launcher.CheckpointDurable(10.0, 10))
    assert actions == [] and state.progress.durable == 10
    assert launcher.EndLaunch(0, "", evidence=False) in feed(state, launcher.CheckpointDurable(11.0, 12))[1]


def test_a_spare_takes_the_place_of_a_node_that_somebody_drains() -> None:
    state, _ = feed(
        with_spare(),
        launcher.NodesDraining(9.0, ("n2",), "fan"),
        launcher.CheckpointPlanned(9.5, 0, 12),
        launcher.CheckpointDurable(10.0, 12),
    )
    state, actions = feed(state, launcher.LaunchEnded(12.0, 0))
    assert actions == [
        launcher.Journal("", "swapped", "n4 for n2", "maintenance", ("n2",)),
        launcher.StartLaunch(1, ("n1", "n4", "n3")),
    ]
    state, actions = feed(state, launcher.Stepped(20.0, 1, 13), launcher.CheckpointDurable(21.0, 13))
    assert actions == [], "nothing is left to be left"
    state, _ = feed(with_spare(), launcher.NodesDraining(9.0, (SPARE,), "fan"))
    assert started(lost(state, 10.0, "n2")[1]) == [], "a spare that is drained is not used"


def test_the_node_of_the_batch_script_cannot_be_given_back_so_the_attempt_leaves_it() -> None:
    state = with_spare()
    state = replace(state, nodes=replace(state.nodes, batch_host="n1"))
    state, _ = feed(
        state,
        launcher.NodesDraining(9.0, ("n1",), "fan"),
        launcher.CheckpointPlanned(9.5, 0, 12),
        launcher.CheckpointDurable(10.0, 12),
    )
    _, actions = feed(state, launcher.LaunchEnded(12.0, 0))
    assert (outcome(actions).outcome.cause, outcome(actions).again, started(actions)) == ("maintenance", "requeue", [])


def test_a_fault_while_a_drained_node_is_to_be_left_takes_the_spare_at_once() -> None:
    state, _ = feed(
        with_spare(), launcher.NodesDraining(9.0, ("n2",), "fan"), launcher.RanksExited(9.5, 0, exits(-9, None, None))
    )
    state, _ = feed(state, launcher.Tick(11.0), launcher.LaunchEnded(12.0, 0))
    assert started(feed(state, launcher.LogsRead(13.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")]


def test_a_fault_near_the_time_limit_is_handed_up() -> None:
    state, _ = feed(
        with_spare(),
        launcher.TimeLimitNear(9.0),
        launcher.RanksExited(9.5, 0, exits(-9, None, None)),
        launcher.Tick(11.0),
    )
    _, actions = feed(state, launcher.LaunchEnded(12.0, 0), launcher.LogsRead(13.0, 0, "unknown", ""))
    assert "the time limit is near" in outcome(actions).outcome.why and outcome(actions).again == "requeue"


def test_a_drain_that_came_while_nothing_stepped_is_answered_by_the_next_launch() -> None:
    """Nothing is lost that is not lost already: it is left now, without another launch on it."""
    state, _ = feed(
        training(), launcher.RanksExited(9.0, 0, exits(None, -9, None)), launcher.NodesDraining(9.5, ("n3",), "fan")
    )
    _, actions = feed(
        state, launcher.Tick(11.0), launcher.LaunchEnded(12.0, 0), launcher.LogsRead(13.0, 0, "unknown", "")
    )
    assert (outcome(actions).outcome.status, outcome(actions).again, started(actions)) == ("failed", "requeue", [])
    state, _ = feed(fresh(), launcher.AttemptStarted(0.0), launcher.NodesDraining(1.0, ("n3",), "fan"))
    assert feed(state, launcher.Stepped(20.0, 0, 5))[1][-1] == launcher.RequestCheckpoint(0), (
        "as soon as the ranks can be asked"
    )


def test_without_an_operator_attempts_without_progress_end_held() -> None:
    state, _ = feed(
        fresh(relaunches=0), launcher.AttemptStarted(0.0, durable=10, stuck=3), launcher.Stepped(5.0, 0, 12)
    )
    _, actions = feed(
        state,
        launcher.RanksExited(9.0, 0, exits(1, 1, 1)),
        launcher.LaunchEnded(11.0, 0),
        launcher.LogsRead(12.0, 0, "unknown", ""),
    )
    assert outcome(actions).again == "hold" and "4 attempts in a row" in outcome(actions).outcome.why
    state, _ = feed(state, launcher.CheckpointDurable(8.0, 20))
    _, actions = feed(
        state,
        launcher.RanksExited(9.0, 0, exits(1, 1, 1)),
        launcher.LaunchEnded(11.0, 0),
        launcher.LogsRead(12.0, 0, "unknown", ""),
    )
    assert outcome(actions).again == "requeue"
    _, actions = feed(
        state,
        launcher.RanksExited(9.0, 0, exits(93, 1, 1)),
        launcher.LaunchEnded(11.0, 0),
        launcher.LogsRead(12.0, 0, "unknown", ""),
    )
    assert outcome(actions).again == "", "do not restart"


def test_node_that_is_only_drained_is_not_blamed_for_the_failure_of_another() -> None:
    """What was seen: the operator excluded the drained node for an hour, as if it had killed the rank."""
    _, actions = feed(
        with_spare(),
        launcher.NodesDraining(9.0, ("n3",), "fan"),
        launcher.RanksExited(9.5, 0, exits(None, -9, None)),
        launcher.Tick(11.5),
        launcher.LaunchEnded(12.0, 0),
        launcher.LogsRead(13.0, 0, "unknown", ""),
    )
    swapped = [a for a in actions if isinstance(a, launcher.Journal) and a.what == "swapped"]
    assert [(a.nodes, a.cause) for a in swapped] == [(("n3",), "maintenance")]
    assert started(actions) == [("n1", "n2", SPARE)]


def test_launch_that_continues_from_before_the_newest_checkpoint_says_so() -> None:
    state, _ = feed(fresh(), launcher.AttemptStarted(0.0, durable=368))
    assert feed(state, launcher.Stepped(20.0, 0, 369))[1] == []
    state, actions = feed(state, launcher.Stepped(20.0, 0, 361))
    (entry,) = actions
    assert isinstance(entry, launcher.Journal) and entry.what == "older"
    assert entry.words.startswith("step 361 is done although checkpoint 368 is on disk")
    assert feed(state, launcher.Stepped(21.0, 0, 362))[1] == [], "said once"
