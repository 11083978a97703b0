"""The launcher's core: attempts that are left on purpose, and what is to follow on one where no operator lives."""

from __future__ import annotations

from dataclasses import replace

from core_ladder import NODES, SPARE, exits, feed, fresh, lost, outcome, started, training, with_spare

from transom_cli.core import launcher as sh
from transom_cli.core.events import Stall


def test_before_the_time_limit_all_ranks_save_and_the_attempt_is_left() -> None:
    state, orders = feed(training(), sh.Warned(9.0))
    assert orders == [sh.Flush(0)]
    state, orders = feed(state, sh.Warned(9.1), sh.Flushing(9.5, 0, 12), sh.Durable(10.0, 10))
    assert orders == [sh.Tell("", "leaving", "all ranks save at step 12", "time_limit")]
    state, orders = feed(state, sh.Durable(11.0, 12))
    assert orders == [sh.End(0, "", evidence=False)]
    _, orders = feed(state, sh.Ended(12.0, 0, exits(-9, -9, -9)))
    left, told = outcome(orders), outcome(orders).outcome
    assert (told.status, told.cause, left.exit_code, left.again) == ("left", "time_limit", 75, "requeue")
    assert told.why == "the time limit is near; step 12 is durable" and told.exits == ()


def test_a_trainer_that_cannot_be_asked_trains_on_to_the_limit() -> None:
    state, _ = feed(training(), sh.Warned(9.0), sh.Flushing(9.5, 0, -1, "no Checkpointer listens"))
    state, orders = feed(state, sh.Durable(30.0, 20), sh.Told(40.0, "SIGTERM"), sh.Exits(41.0, 0, exits(-15, -15, -15)))
    assert outcome(orders).outcome.status == "stopped"
    assert outcome(orders).outcome.why.endswith("the newest durable step is 20 (no Checkpointer listens)")


def test_told_to_stop_the_state_is_made_durable_or_it_is_said_that_it_was_not() -> None:
    state, orders = feed(training(), sh.Told(9.0, "SIGTERM"))
    assert orders == [sh.Flush(0)]
    saved, _ = feed(state, sh.Flushing(9.5, 0, 12), sh.Durable(11.0, 12))
    _, orders = feed(saved, sh.Ended(12.0, 0))
    assert outcome(orders).outcome.why == "told to stop by SIGTERM; step 12 is durable"
    assert outcome(orders).again == "uncancelled", "Slurm knows whether it was its time limit"
    _, orders = feed(state, sh.Flushing(9.5, 0, 12), sh.Overtime(36.0))
    assert "step 12 did not become durable in time: the newest durable step is 4" in outcome(orders).outcome.why
    ending, orders = feed(state, sh.Flushing(9.5, 0, -1, "n2 is silent", keeps=True))
    assert orders[-1] == sh.End(0, "", evidence=False)
    _, orders = feed(ending, sh.Ended(12.0, 0))
    assert "the newest durable step is 4 (n2 is silent)" in outcome(orders).outcome.why
    assert not any(isinstance(o, sh.End) for o in feed(state, sh.Flushing(9.5, 0, -1, "nobody listens"))[1])


def test_ranks_that_could_not_be_asked_to_save_are_asked_again_where_that_may_help() -> None:
    state, _ = feed(training(), sh.Warned(9.0), sh.Flushing(9.5, 0, -1, "n2 gives no answer", again=True))
    assert feed(state, sh.Tick(14.0))[1] == []
    state, orders = feed(state, sh.Tick(14.5))
    assert orders == [sh.Flush(0)] and feed(state, sh.Tick(99.0))[1] == [], "one question at a time"
    still, orders = feed(state, sh.Flushing(15.0, 0, -1, "n2 gives no answer", again=True))
    assert orders == [] and feed(still, sh.Tick(20.0))[1] == [sh.Flush(0)], "told once, asked on"
    saved, _ = feed(state, sh.Flushing(15.0, 0, 30), sh.Durable(16.0, 30))
    assert outcome(feed(saved, sh.Ended(17.0, 0))[1]).outcome.status == "left"
    hopeless, _ = feed(training(), sh.Warned(9.0), sh.Flushing(9.5, 0, -1, "no rank has a Checkpointer"))
    assert feed(hopeless, sh.Tick(99.0))[1] == []


def test_a_trainer_that_ends_in_order_on_the_warning_is_not_done() -> None:
    state, _ = feed(training(), sh.Warned(9.0))
    by_itself, _ = feed(state, sh.Flushing(9.1, 0, -1, "no rank has a Checkpointer", alone=True))
    left = outcome(feed(by_itself, sh.Exits(20.0, 0, exits(0, 0, 0)))[1])
    assert (left.outcome.status, left.outcome.cause, left.again) == ("left", "time_limit", "requeue")
    knows_nothing, _ = feed(state, sh.Flushing(9.1, 0, -1, "no rank has a Checkpointer"))
    assert outcome(feed(knows_nothing, sh.Exits(20.0, 0, exits(0, 0, 0)))[1]).outcome.status == "done"
    told, _ = feed(by_itself, sh.Told(15.0, "SIGTERM"))
    stopped = outcome(feed(told, sh.Exits(20.0, 0, exits(0, 0, 0)))[1])
    assert (stopped.outcome.status, stopped.outcome.cause, stopped.again) == ("stopped", "time_limit", "uncancelled")


def test_a_warning_is_kept_until_the_ranks_step() -> None:
    state, orders = feed(fresh(), sh.Begun(0.0), sh.Warned(1.0))
    assert orders == [sh.Start(0, ("n1", "n2", "n3"))]
    state, orders = feed(state, sh.Stepped(20.0, 0, 5))
    assert orders == [sh.Flush(0)] and state.leaving.value == "time_limit"


def test_without_checkpoints_of_ours_steps_are_progress_as_far_as_they_can_be() -> None:
    def after(begun: sh.Begun, *events: sh.Heard) -> sh.Leave:
        return outcome(feed(feed(fresh(), begun, sh.Stepped(5.0, 0, 900))[0], *events)[1])

    died = (sh.Exits(9.0, 0, exits(93, None, None)), sh.Tick(10.0), sh.Ended(11.0, 0), sh.Read(12.0, 0, "unknown", ""))
    assert after(sh.Begun(0.0), *died).outcome.step == 900
    limit = (sh.Warned(9.0), sh.Told(99.0, "SIGTERM"), sh.Overtime(130.0))
    assert after(sh.Begun(0.0, step=1000, stuck=3), *limit).again == "uncancelled", "it stepped up to its limit"
    assert after(sh.Begun(0.0, step=1000, stuck=3), sh.Told(99.0, "SIGTERM"), sh.Overtime(130.0)).again == ""


def test_a_run_that_has_stepped_before_is_not_ended_for_a_users_error_nor_left_to_hang() -> None:
    begun = sh.Begun(0.0, step=40)
    state, _ = feed(fresh(), begun, sh.Exits(3.0, 0, exits(1, 1, 1)), sh.Ended(4.0, 0))
    assert feed(state, sh.Read(5.0, 0, "user", "ConnectionError"))[0].launch == 1
    state, _ = feed(fresh(), begun, sh.Appeared(1.0, 0))
    assert isinstance(feed(state, sh.Stalled(1900.0, 0, Stall(-1, 1850.0, 1800.0)))[1][-1], sh.End)


def test_blame_of_an_earlier_attempt_is_not_renewed() -> None:
    state, _ = feed(fresh((*NODES, SPARE)), sh.Begun(0.0, isolated=("n2",)))
    state, _ = feed(state, sh.Stepped(5.0, 0, 3), sh.Told(9.0, "SIGTERM"))
    assert outcome(feed(state, sh.Overtime(40.0))[1]).outcome.blamed == ()
    _, orders = feed(fresh(), sh.Begun(0.0, isolated=("n2",), insist=True))
    assert (outcome(orders).outcome.suspects, outcome(orders).outcome.blamed) == (("n2",), ())


def test_a_node_with_a_process_that_cannot_be_killed_is_blamed() -> None:
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(-9, None, None)), sh.Tick(11.0))
    _, orders = feed(state, sh.Ended(12.0, 0, survivors=(("n2", "rank 1"),)), sh.Read(13.0, 0, "unknown", ""))
    assert outcome(orders).outcome.blamed == ("n2",)


def test_a_node_that_somebody_drains_is_left_with_a_checkpoint() -> None:
    state, orders = feed(training(), sh.Draining(9.0, ("n2",), "n2 is drained: fan"))
    assert orders == [sh.Tell("", "draining", "n2 is drained: fan", "maintenance", ("n2",)), sh.Flush(0)]
    asked, orders = feed(state, sh.Draining(9.1, ("n2",), "again"), sh.Flushing(9.5, 0, 12), sh.Durable(10.0, 12))
    _, orders = feed(asked, sh.Ended(12.0, 0))
    left = outcome(orders).outcome
    assert (left.status, left.cause, left.why) == ("left", "maintenance", "n2 is being drained; step 12 is durable")
    by_itself, orders = feed(state, sh.Flushing(9.5, 0, -1, "nobody listens"), sh.Durable(9.9, 4))
    assert not any(isinstance(o, sh.End) for o in orders)
    assert isinstance(feed(by_itself, sh.Durable(30.0, 20))[1][0], sh.End), "at its own next checkpoint"


def test_a_spare_takes_the_place_of_a_node_that_somebody_drains() -> None:
    state, _ = feed(with_spare(), sh.Draining(9.0, ("n2",), "fan"), sh.Flushing(9.5, 0, 12), sh.Durable(10.0, 12))
    state, orders = feed(state, sh.Ended(12.0, 0))
    assert orders == [sh.Tell("", "swapped", "n4 for n2", "maintenance", ("n2",)), sh.Start(1, ("n1", "n4", "n3"))]
    state, orders = feed(state, sh.Stepped(20.0, 1, 13), sh.Durable(21.0, 13))
    assert orders == [], "nothing is left to be left"
    state, _ = feed(with_spare(), sh.Draining(9.0, (SPARE,), "fan"))
    assert started(lost(state, 10.0, "n2")[1]) == [], "a spare that is drained is not used"


def test_the_node_of_the_batch_script_cannot_be_given_back_so_the_attempt_leaves_it() -> None:
    state = replace(with_spare(), batch_host="n1")
    state, _ = feed(state, sh.Draining(9.0, ("n1",), "fan"), sh.Flushing(9.5, 0, 12), sh.Durable(10.0, 12))
    _, orders = feed(state, sh.Ended(12.0, 0))
    assert (outcome(orders).outcome.cause, outcome(orders).again, started(orders)) == ("maintenance", "requeue", [])


def test_a_fault_while_a_drained_node_is_to_be_left_takes_the_spare_at_once() -> None:
    state, _ = feed(with_spare(), sh.Draining(9.0, ("n2",), "fan"), sh.Exits(9.5, 0, exits(-9, None, None)))
    state, _ = feed(state, sh.Tick(11.0), sh.Ended(12.0, 0))
    assert started(feed(state, sh.Read(13.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")]


def test_a_fault_near_the_time_limit_is_handed_up() -> None:
    state, _ = feed(with_spare(), sh.Warned(9.0), sh.Exits(9.5, 0, exits(-9, None, None)), sh.Tick(11.0))
    _, orders = feed(state, sh.Ended(12.0, 0), sh.Read(13.0, 0, "unknown", ""))
    assert "the time limit is near" in outcome(orders).outcome.why and outcome(orders).again == "requeue"


def test_a_drain_that_came_while_nothing_stepped_is_answered_by_the_next_launch() -> None:
    """Nothing is lost that is not lost already: it is left now, without another launch on it."""
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(None, -9, None)), sh.Draining(9.5, ("n3",), "fan"))
    _, orders = feed(state, sh.Tick(11.0), sh.Ended(12.0, 0), sh.Read(13.0, 0, "unknown", ""))
    assert (outcome(orders).outcome.status, outcome(orders).again, started(orders)) == ("failed", "requeue", [])
    state, _ = feed(fresh(), sh.Begun(0.0), sh.Draining(1.0, ("n3",), "fan"))
    assert feed(state, sh.Stepped(20.0, 0, 5))[1][-1] == sh.Flush(0), "as soon as the ranks can be asked"


def test_without_an_operator_attempts_without_progress_end_held() -> None:
    state, _ = feed(fresh(relaunches=0), sh.Begun(0.0, durable=10, stuck=3), sh.Stepped(5.0, 0, 12))
    _, orders = feed(state, sh.Exits(9.0, 0, exits(1, 1, 1)), sh.Ended(11.0, 0), sh.Read(12.0, 0, "unknown", ""))
    assert outcome(orders).again == "hold" and "4 attempts in a row" in outcome(orders).outcome.why
    state, _ = feed(state, sh.Durable(8.0, 20))
    _, orders = feed(state, sh.Exits(9.0, 0, exits(1, 1, 1)), sh.Ended(11.0, 0), sh.Read(12.0, 0, "unknown", ""))
    assert outcome(orders).again == "requeue"
    _, orders = feed(state, sh.Exits(9.0, 0, exits(93, 1, 1)), sh.Ended(11.0, 0), sh.Read(12.0, 0, "unknown", ""))
    assert outcome(orders).again == "", "do not restart"
