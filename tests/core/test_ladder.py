"""The launcher's core: what is relaunched, and what is handed up."""

from __future__ import annotations

import pytest
from core_ladder import NODES, exits, feed, fresh, killed, lost, outcome, started, training, with_spare

from transom_cli.core import launcher as sh
from transom_cli.core.events import RankExit, Stall
from transom_cli.core.launcher import Rung, decide


def test_a_dead_rank_is_relaunched_on_the_same_nodes_once_nothing_is_left() -> None:
    state, orders = feed(training(), sh.Exits(9.0, 0, exits(None, -9, None)), sh.Tick(9.2))
    assert orders == [], "the others are given a moment to say how they ended"
    state, orders = feed(state, sh.Tick(10.0))
    assert orders == [
        sh.Tell("l1", "seen", "rank 1 on n2 ended with signal 9"),
        sh.End(0, "l1", evidence=False),
    ]
    state, orders = feed(state, sh.Ended(11.0, 0))
    assert orders == [sh.ReadLogs(0, 1)]
    state, orders = feed(state, sh.Read(12.0, 0, "unknown", "", "no log"))
    assert orders[-1] == sh.Start(1, NODES)
    assert orders[0] == sh.Tell("l1", "diagnosed", "rank 1 on n2 ended with signal 9", "rank_killed", ("n2",))
    state, orders = feed(state, sh.Stepped(20.0, 1, 5))
    assert orders == [sh.Tell("l1", "recovered", "step 5 done in launch 1")]
    assert [(i.id, i.result) for i in state.incidents] == [("l1", "recovered")]


def test_the_rank_that_died_first_may_be_heard_of_last() -> None:
    late = RankExit(2, "n3", None, 11, 5.0)
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(1, None, None)), sh.Tick(9.5))
    state, orders = feed(state, sh.Ended(11.0, 0, (*exits(1, -15, None), late)))
    assert orders == [sh.ReadLogs(0, 2)]
    _, orders = feed(state, sh.Read(12.0, 0, "unknown", ""))
    assert orders[0] == sh.Tell("l1", "diagnosed", "rank 2 on n3 ended with signal 11", "rank_killed", ("n3",))


def test_when_all_have_ended_nothing_is_waited_for() -> None:
    _, orders = feed(training(), sh.Exits(9.0, 0, exits(-15, -9, -15)))
    assert orders[-1] == sh.End(0, "l1", evidence=False)


def test_the_silence_of_a_trainer_that_never_beats_is_no_sign_whatever_is_durable() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0, durable=40), sh.Durable(5.0, 50))
    assert feed(state, sh.Stalled(1900.0, 0, Stall(-1, 1800.0, 1800.0)))[1] == []


def test_of_many_ranks_evidence_some_are_told() -> None:
    state, _ = feed(training(), sh.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))))
    state, orders = feed(state, sh.Ended(11.0, 0, evidence=tuple(f"rank {n}: T" for n in range(1000))))
    told = [o.words for o in orders if isinstance(o, sh.Tell)]
    assert len(told) == 65 and told[-1] == "... and 936 more, in the attempt's evidence folder"


def test_a_hang_is_relaunched_after_evidence() -> None:
    state, orders = feed(training(), sh.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))))
    assert orders[-1] == sh.End(0, "l1", evidence=True)
    state, orders = feed(state, sh.Ended(11.0, 0, exits(-9, -9, -9), evidence=("rank 1: T, in read",)))
    assert orders == [sh.Tell("l1", "evidence", "rank 1: T, in read"), sh.ReadLogs(0, None)]
    _, orders = feed(state, sh.Read(12.0, 0, "unknown", ""))
    assert orders[-1] == sh.Start(1, NODES)


@pytest.mark.parametrize(
    ("ended", "words", "missing"),
    [
        (sh.Ended(11.0, 0, unheard=("n3",)), "no answer from n3", ("n3",)),
        (sh.Ended(11.0, 0, exits(-15, -9, -15), survivors=(("n3", "process 5 (python, D)"),)), "cannot be ended", ()),
    ],
)
def test_what_may_still_live_is_never_started_beside(ended: sh.Ended, words: str, missing: tuple[str, ...]) -> None:
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(-15, -9, None)), sh.Tick(10.0), ended)
    _, orders = feed(state, sh.Read(12.0, 0, "unknown", ""))
    left = outcome(orders)
    assert left.outcome.status == "failed" and words in left.outcome.why
    assert (left.outcome.missing, left.exit_code) == (missing, 128 + 15)
    assert not any(isinstance(o, sh.Start) for o in orders)


@pytest.mark.parametrize(("code", "category"), [(93, "unknown"), (15, "unknown")])
def test_what_a_relaunch_would_not_mend_is_handed_up(code: int, category: str) -> None:
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(code, code, code)), sh.Ended(11.0, 0))
    _, orders = feed(state, sh.Read(12.0, 0, category, ""))
    assert (outcome(orders).outcome.status, outcome(orders).exit_code) == ("failed", code)


def test_a_run_directory_that_was_never_seen_is_handed_up_and_one_that_was_is_tried_again() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0), sh.Exits(3.0, 0, exits(14, 14, 14)), sh.Ended(4.0, 0))
    _, orders = feed(state, sh.Read(5.0, 0, "unknown", ""))
    assert (outcome(orders).exit_code, outcome(orders).again) == (14, "")
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(14, 14, 14)), sh.Ended(11.0, 0))
    assert started(feed(state, sh.Read(12.0, 0, "unknown", ""))[1]) == [NODES], "a disk in need"
    state, _ = feed(with_spare(), sh.Exits(9.0, 0, exits(-15, 14, -15)), sh.Ended(11.0, 0))
    assert started(feed(state, sh.Read(12.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")], "a node's own trouble"


def test_a_rank_that_is_stopped_before_the_runs_first_step_is_a_hang_all_the_same() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0))
    assert feed(state, sh.Stalled(9.0, 0, Stall(-1, 8.0, 5.0, (1,), ("n2",))))[1] == []
    _, orders = feed(state, sh.Stalled(9.0, 0, Stall(-1, 8.0, 5.0, (1,), ("n2",), stopped=True)))
    assert orders[-1] == sh.End(0, "l1", evidence=True)


def test_a_node_of_which_nothing_is_heard_while_no_rank_steps_is_given_up_for_a_spare() -> None:
    """However few steps were seen: their usual time may not be known yet."""
    state, orders = feed(
        with_spare(), sh.Silent(19.9, "n2", 15.0), sh.Silent(30.0, "n2", 14.9), sh.Silent(30.0, "n4", 99.0)
    )
    assert orders == [], "a rank stepped 15 s ago; it is not silent for long; a spare"
    stepping, _ = feed(state, sh.Stepped(31.0, 0, 5))
    assert feed(stepping, sh.Silent(40.0, "n2", 25.0))[1] == [], "its agent is dead, not the node"
    state, orders = feed(state, sh.Silent(30.1, "n2", 15.0))
    words = "nothing is heard of n2 for 15 s, its slurmd gives no answer, and no rank has stepped since step 4"
    assert orders[0] == sh.Tell("l1", "seen", words, "hang", ("n2",))
    state, _ = feed(state, sh.Ended(40.0, 0, unheard=("n2",)))
    assert started(feed(state, sh.Read(41.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")]
    state, orders = feed(training(), sh.Silent(40.0, "n2", 35.0))
    assert orders == [], "there is no spare: the operator probes the node"
    assert isinstance(feed(state, sh.Silent(50.0, "n2", 45.0))[1][-1], sh.End)


def test_steps_that_take_long_are_waited_for_as_long_as_they_usually_take() -> None:
    assert feed(with_spare(), sh.Silent(60.0, "n2", 55.0, limit=160.0))[1] == []
    assert started(lost(with_spare(), 166.0, "n2")[1]) == [("n1", "n4", "n3")]


def test_a_node_that_dies_before_the_first_step_of_a_launch_is_swapped_too() -> None:
    state, _ = feed(with_spare(), sh.Exits(9.0, 0, exits(-9, None, None)), sh.Tick(11.0), sh.Ended(12.0, 0))
    state, _ = feed(state, sh.Read(13.0, 0, "unknown", ""), sh.Appeared(14.0, 1))
    assert feed(state, sh.Silent(27.0, "n2", 15.0))[1] == [], "the launch began 14 s ago"
    _, orders = feed(
        state, sh.Silent(28.0, "n2", 15.0), sh.Ended(30.0, 1, unheard=("n2",)), sh.Read(31.0, 1, "unknown", "")
    )
    assert "no rank has made a step" in orders[0].words and started(orders) == [("n1", "n4", "n3")]


def test_a_users_error_before_the_first_step_is_handed_up() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0), sh.Exits(3.0, 0, exits(1, 1, 1)), sh.Ended(4.0, 0))
    _, orders = feed(state, sh.Read(5.0, 0, "user", "ValueError: a wrong shape", "rank-0.log"))
    assert outcome(orders).outcome.why.startswith("ValueError: a wrong shape")


def test_the_same_node_twice_is_for_the_operator_to_exclude() -> None:
    state = killed(training(), 9.0)
    state, _ = feed(state, sh.Stepped(20.0, 1, 6), sh.Durable(21.0, 6), sh.Exits(22.0, 1, exits(None, -9, None)))
    state, _ = feed(state, sh.Tick(24.0), sh.Ended(25.0, 1, exits(-15, -9, -15)))
    _, orders = feed(state, sh.Read(26.0, 1, "unknown", ""))
    assert "n2 for the second time" in outcome(orders).outcome.why


def test_without_progress_the_relaunches_are_spent_and_with_it_refilled() -> None:
    state = training(relaunches=1)
    state = killed(state, 9.0, (-9, None, None))
    assert (state.rung, state.launch) == (Rung.TRAINING, 1)
    again = killed(state, 19.0)
    assert again.rung is Rung.LEFT, "no newer checkpoint: spent"
    state, _ = feed(state, sh.Stepped(15.0, 1, 8), sh.Durable(16.0, 8))
    refilled = killed(state, 19.0)
    assert (refilled.rung, refilled.launch) == (Rung.TRAINING, 2)


def test_no_relaunches_at_all() -> None:
    assert killed(training(relaunches=0), 9.0).rung is Rung.LEFT


def test_told_to_stop_nothing_is_started_again() -> None:
    state, _ = feed(training(), sh.Exits(9.0, 0, exits(-9, -9, -9)), sh.Told(9.5, "TERM"), sh.Ended(10.0, 0))
    _, orders = feed(state, sh.Read(11.0, 0, "unknown", ""))
    assert outcome(orders).outcome.status == "stopped"
    _, orders = feed(training(), sh.Told(9.0, "TERM"), sh.Exits(9.5, 0, exits(0, 0, 0)))
    assert outcome(orders).outcome.status == "stopped", "in good order, but not at its end"


def test_a_hang_that_is_handed_up_names_its_suspects() -> None:
    state, _ = feed(training(relaunches=0), sh.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))), sh.Ended(11.0, 0))
    _, orders = feed(state, sh.Read(12.0, 0, "unknown", ""))
    told = outcome(orders).outcome
    assert (told.cause, told.suspects, told.exits, told.durable) == ("hang", ("n2",), (), 4)


def test_of_a_hang_the_evidence_names_its_suspects_better() -> None:
    def suspects(*told: str) -> tuple[str, ...]:
        quiet = sh.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",)))
        state, _ = feed(training(relaunches=0), quiet, sh.Ended(11.0, 0, suspects=told))
        return outcome(feed(state, sh.Read(12.0, 0, "unknown", ""))[1]).outcome.suspects

    assert suspects() == ("n2",)
    assert suspects("n1") == ("n1",)
    assert suspects("of another job") == ("n2",)


def test_the_end_of_a_training() -> None:
    _, orders = feed(training(), sh.Exits(9.0, 0, exits(0, 0, None)), sh.Exits(9.1, 0, exits(0, 0, 0)))
    assert (outcome(orders).outcome.status, outcome(orders).exit_code) == ("done", 0)
    state = killed(training(), 9.0)
    _, orders = feed(state, sh.Exits(20.0, 1, exits(0, 0, 0)))
    assert outcome(orders).outcome.status == "done", "a relaunch that had only the end left to do"


def test_srun_that_ends_without_a_word_of_its_ranks() -> None:
    state, orders = feed(training(), sh.Exits(9.0, 0, (), over=True, srun=1), sh.Tick(13.9))
    assert orders == [], "their words may be on the way, through a network file system"
    state, orders = feed(state, sh.Tick(14.0))
    assert orders[-1] == sh.End(0, "l1", evidence=False)
    _, orders = feed(state, sh.Ended(15.0, 0), sh.Read(16.0, 0, "unknown", ""))
    assert orders[-1] == sh.Start(1, NODES)


def test_srun_that_ended_well_without_a_word_of_its_ranks_is_a_good_end() -> None:
    state, orders = feed(training(), sh.Exits(9.0, 0, exits(0, None, 0), over=True, srun=0), sh.Tick(13.9))
    assert orders == []
    _, orders = feed(state, sh.Tick(14.0))
    assert (outcome(orders).outcome.status, outcome(orders).exit_code) == ("done", 0)


def test_an_srun_that_was_killed_gives_a_shells_exit_code() -> None:
    state, _ = feed(training(relaunches=0), sh.Exits(9.0, 0, (), over=True, srun=-9), sh.Tick(14.0), sh.Ended(15.0, 0))
    _, orders = feed(state, sh.Read(16.0, 0, "unknown", ""))
    assert outcome(orders).exit_code == 128 + 9


def test_a_relaunch_that_starts_no_task_is_handed_up() -> None:
    state = killed(training(), 9.0)  # relaunched at 13
    state, orders = feed(state, sh.Tick(132.9))
    assert orders == []
    state, orders = feed(state, sh.Tick(133.0), sh.Ended(134.0, 1), sh.Read(135.0, 1, "unknown", ""))
    assert "launch 1 did not start a task within 120 s" in outcome(orders).outcome.why
    state, orders = feed(killed(training(), 9.0), sh.Appeared(100.0, 1), sh.Tick(900.0))
    assert orders == [], "it is there, and as slow as it likes"


def test_a_relaunch_is_given_the_time_that_the_first_launch_took() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0), sh.Appeared(300.0, 0), sh.Stepped(400.0, 0, 4))
    state = killed(state, 500.0)  # relaunched at 504
    assert feed(state, sh.Tick(504.0 + 899.0))[1] == []
    assert any(isinstance(o, sh.End) for o in feed(state, sh.Tick(504.0 + 900.0))[1])


def test_a_launch_that_cannot_even_be_asked_for_is_handed_up() -> None:
    _, orders = feed(killed(training(), 9.0), sh.NotStarted(20.0, 1, "launch 1 cannot be started: no space left"))
    assert outcome(orders).outcome.why == "launch 1 cannot be started: no space left"


def test_what_is_never_answered_is_handed_up() -> None:
    ending, _ = feed(training(), sh.Exits(9.0, 0, exits(-15, -9, -15)))
    assert feed(ending, sh.Tick(128.9))[1] == []
    reading, orders = feed(ending, sh.Tick(129.0))
    assert orders == [sh.ReadLogs(0, 0)]
    assert feed(reading, sh.Tick(158.9))[1] == []
    _, orders = feed(reading, sh.Tick(159.0))
    assert "cannot be ended" in outcome(orders).outcome.why


def test_out_of_time_the_outcome_is_written_whatever_is_under_way() -> None:
    ending, _ = feed(training(), sh.Exits(9.0, 0, exits(-15, -9, -15)), sh.Told(10.0, "SIGTERM"))
    _, orders = feed(ending, sh.Overtime(37.0))
    assert (outcome(orders).outcome.status, outcome(orders).exit_code) == ("stopped", 128 + 15)


def test_what_is_told_of_another_launch_changes_nothing() -> None:
    state = killed(training(), 9.0)
    for late in (
        sh.Appeared(20.0, 0),
        sh.NotStarted(20.0, 0, "x"),
        sh.Exits(20.0, 0, exits(1, 1, 1)),
        sh.Stalled(20.0, 0, Stall(4, 8.0, 7.0)),
        sh.Ended(20.0, 0),
        sh.Stepped(20.0, 0, 99),
        sh.Read(20.0, 0, "user", "x"),
    ):
        assert decide(state, late) == (state, ())
