"""The launcher's core: what is relaunched, what is handed up, and that nothing starts beside what may still live."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import ladder as sh
from transom_cli.core.events import RankExit
from transom_cli.core.ladder import LadderPolicy, LadderState, Order, Rung, decide

NODES = ("n1", "n2", "n3")


SPARE = "n4"


def fresh(allocated: tuple[str, ...] = NODES, **policy: float) -> LadderState:
    return LadderState(7, 0, allocated, 3, 1, LadderPolicy(**policy))  # type: ignore[arg-type]


def exits(*codes: int | None, node_of: tuple[str, ...] = NODES) -> tuple[RankExit, ...]:
    """A code a rank; None: still alive; below zero: by that signal."""
    told = [(r, c) for r, c in enumerate(codes) if c is not None]
    return tuple(RankExit(r, node_of[r], c if c >= 0 else None, -c if c < 0 else None, 10.0 + r) for r, c in told)


def feed(state: LadderState, *heard: sh.Heard) -> tuple[LadderState, list[Order]]:
    orders: list[Order] = []
    for one in heard:
        state, new = decide(state, one)
        orders += new
    return state, orders


def training(**policy: float) -> LadderState:
    state, orders = feed(fresh(**policy), sh.Begun(0.0), sh.Stepped(5.0, 0, 4), sh.Durable(6.0, 4))
    assert orders == [sh.Start(0, NODES)]
    return state


def killed(state: LadderState, at: float, codes: tuple[int | None, ...] = (None, -9, None)) -> LadderState:
    """A rank dies, the rest is ended, the logs say nothing: what was ordered is kept in the returned state's place."""
    launch = state.launch
    state, _ = feed(state, sh.Exits(at, launch, exits(*codes)), sh.Tick(at + 2), sh.Ended(at + 3, launch))
    state, _ = feed(state, sh.Read(at + 4, launch, "unknown", ""))
    return state


def outcome(orders: list[Order]) -> sh.Leave:
    (left,) = [o for o in orders if isinstance(o, sh.Leave)]
    return left


def with_spare(**policy: float) -> LadderState:
    """Trains on n1 to n3; n4 stands by, and is ready."""
    state, orders = feed(fresh((*NODES, SPARE), **policy), sh.Begun(0.0), sh.Spare(1.0, SPARE, good=True))
    assert orders == [sh.Start(0, NODES)]
    return feed(state, sh.Stepped(5.0, 0, 4), sh.Durable(6.0, 4))[0]


def started(orders: list[Order]) -> list[tuple[str, ...]]:
    return [o.nodes for o in orders if isinstance(o, sh.Start)]


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
    assert feed(state, sh.Quiet(1900.0, 0, -1, 1800.0, 1800.0))[1] == []


def test_of_many_ranks_evidence_some_are_told() -> None:
    state, _ = feed(training(), sh.Quiet(9.0, 0, 4, 8.0, 7.0, (1,), ("n2",)))
    state, orders = feed(state, sh.Ended(11.0, 0, evidence=tuple(f"rank {n}: T" for n in range(1000))))
    told = [o.words for o in orders if isinstance(o, sh.Tell)]
    assert len(told) == 65 and told[-1] == "... and 936 more, in the attempt's evidence folder"


def test_a_hang_is_relaunched_after_evidence() -> None:
    state, orders = feed(training(), sh.Quiet(9.0, 0, 4, 8.0, 7.0, (1,), ("n2",)))
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
    assert started(feed(state, sh.Read(12.0, 0, "unknown", ""))[1]) == [("n1", "n3", "n4")], "a node's own trouble"


def test_a_rank_that_is_stopped_before_the_runs_first_step_is_a_hang_all_the_same() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0))
    assert feed(state, sh.Quiet(9.0, 0, -1, 8.0, 5.0, (1,), ("n2",)))[1] == []
    _, orders = feed(state, sh.Quiet(9.0, 0, -1, 8.0, 5.0, (1,), ("n2",), stopped=True))
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
    assert started(feed(state, sh.Read(41.0, 0, "unknown", ""))[1]) == [("n1", "n3", "n4")]
    state, orders = feed(training(), sh.Silent(40.0, "n2", 35.0))
    assert orders == [], "there is no spare: the operator probes the node"
    assert isinstance(feed(state, sh.Silent(50.0, "n2", 45.0))[1][-1], sh.End)


def test_steps_that_take_long_are_waited_for_as_long_as_they_usually_take() -> None:
    assert feed(with_spare(), sh.Silent(60.0, "n2", 55.0, limit=160.0))[1] == []
    assert started(lost(with_spare(), 166.0, "n2")[1]) == [("n1", "n3", "n4")]


def test_a_node_that_dies_before_the_first_step_of_a_launch_is_swapped_too() -> None:
    state, _ = feed(with_spare(), sh.Exits(9.0, 0, exits(-9, None, None)), sh.Tick(11.0), sh.Ended(12.0, 0))
    state, _ = feed(state, sh.Read(13.0, 0, "unknown", ""), sh.Appeared(14.0, 1))
    assert feed(state, sh.Silent(27.0, "n2", 15.0))[1] == [], "the launch began 14 s ago"
    _, orders = feed(
        state, sh.Silent(28.0, "n2", 15.0), sh.Ended(30.0, 1, unheard=("n2",)), sh.Read(31.0, 1, "unknown", "")
    )
    assert "no rank has made a step" in orders[0].words and started(orders) == [("n1", "n3", "n4")]


def test_a_users_error_before_the_first_step_is_handed_up() -> None:
    state, _ = feed(fresh(), sh.Begun(0.0), sh.Exits(3.0, 0, exits(1, 1, 1)), sh.Ended(4.0, 0))
    _, orders = feed(state, sh.Read(5.0, 0, "user", "ValueError: a wrong shape", "rank-0.log"))
    assert outcome(orders).outcome.why.startswith("ValueError: a wrong shape")


def test_the_same_node_twice_is_for_the_operator_to_exclude() -> None:
    state = killed(training(), 9.0)
    state, _ = feed(state, sh.Stepped(20.0, 1, 6), sh.Durable(21.0, 6), sh.Exits(22.0, 1, exits(None, -9, None)))
    state, _ = feed(state, sh.Tick(24.0), sh.Ended(25.0, 1, exits(-15, -9, -15)))
    _, orders = feed(state, sh.Read(26.0, 1, "unknown", ""))
    assert "n2 for the 2. time" in outcome(orders).outcome.why


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
    state, _ = feed(training(relaunches=0), sh.Quiet(9.0, 0, 4, 8.0, 7.0, (1,), ("n2",)), sh.Ended(11.0, 0))
    _, orders = feed(state, sh.Read(12.0, 0, "unknown", ""))
    told = outcome(orders).outcome
    assert (told.cause, told.suspects, told.exits, told.durable) == ("hang", ("n2",), (), 4)


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
        sh.Quiet(20.0, 0, 4, 8.0, 7.0),
        sh.Ended(20.0, 0),
        sh.Stepped(20.0, 0, 99),
        sh.Read(20.0, 0, "user", "x"),
    ):
        assert decide(state, late) == (state, ())


def lost(state: LadderState, at: float, node: str) -> tuple[LadderState, list[Order]]:
    """A node dies: the others lose their peer, and its agent does not answer."""
    launch, dead = state.launch, state.nodes.index(node)
    told = exits(*(None if r == dead else 1 for r in range(3)), node_of=state.nodes)
    state, _ = feed(state, sh.Exits(at, launch, told), sh.Tick(at + 2), sh.Ended(at + 3, launch, unheard=(node,)))
    return feed(state, sh.Read(at + 4, launch, "peer", "Connection reset by peer", "rank-0.log"))


def test_a_spare_takes_the_place_of_a_node_that_does_not_answer() -> None:
    state, orders = lost(with_spare(), 9.0, "n2")
    assert orders[-2:] == [
        sh.Tell("l1", "swapped", "n4 for n2", "node_silent", ("n2",)),
        sh.Start(1, ("n1", "n3", "n4")),
    ]
    assert (state.spares, state.ready, state.given_up) == ((), (), ("n2",))
    state, _ = feed(state, sh.Stepped(20.0, 1, 6))
    _, orders = lost(state, 25.0, "n4")
    left = outcome(orders)
    assert "no spare is ready" in left.outcome.why and left.outcome.missing == ("n4",)
    assert left.outcome.blamed == ("n2", "n4")


def test_a_spare_that_is_not_known_to_be_good_is_not_used() -> None:
    state, _ = feed(fresh((*NODES, SPARE)), sh.Begun(0.0), sh.Stepped(5.0, 0, 4))
    assert started(lost(state, 9.0, "n2")[1]) == []
    state, _ = feed(with_spare(), sh.Spare(8.0, SPARE, good=False, words="no answer"))
    assert state.spares == () and started(lost(state, 9.0, "n2")[1]) == []
    state, _ = feed(state, sh.Spare(8.5, SPARE, good=True), sh.Spare(8.6, "n2", good=True), sh.Spare(8.7, "x", True))
    assert (state.spares, state.ready) == ((SPARE,), (SPARE,)), "again; never a node that carries ranks"


def test_two_nodes_at_once_need_two_spares() -> None:
    state, _ = feed(with_spare(), sh.Exits(9.0, 0, exits(1, None, None)), sh.Tick(11.0))
    state, _ = feed(state, sh.Ended(12.0, 0, unheard=("n2", "n3")))
    _, orders = feed(state, sh.Read(13.0, 0, "peer", ""))
    assert "2 spares are needed, and 1 ready" in outcome(orders).outcome.why
    assert outcome(orders).outcome.blamed == ("n2", "n3")


def test_a_node_whose_relaunches_are_spent_is_given_up_for_a_spare() -> None:
    state = killed(with_spare(relaunches=1), 9.0)
    assert (state.launch, state.nodes) == (1, NODES)
    state = killed(state, 19.0)
    assert (state.launch, state.nodes, state.given_up) == (2, ("n1", "n3", "n4"), ("n2",))
    assert killed(state, 29.0).launch == 3, "fresh nodes, fresh relaunches"


def test_survivors_on_a_node_are_left_behind_with_it_but_never_this_launcher() -> None:
    state, _ = feed(with_spare(), sh.Exits(9.0, 0, exits(1, -9, 1)), sh.Tick(11.0))
    away, _ = feed(state, sh.Ended(12.0, 0, survivors=(("n2", "process 5 (python, D)"),)))
    assert started(feed(away, sh.Read(13.0, 0, "unknown", ""))[1]) == [("n1", "n3", "n4")]
    stuck, _ = feed(state, sh.Ended(12.0, 0, survivors=((sh.THIS_LAUNCHER, "srun of launch 0"),)))
    assert started(feed(stuck, sh.Read(13.0, 0, "unknown", ""))[1]) == []


def test_isolated_nodes_carry_no_rank() -> None:
    all_four = fresh((*NODES, SPARE))
    state, orders = feed(all_four, sh.Begun(0.0, isolated=("n2",), insist=True))
    assert orders == [sh.Start(0, ("n1", "n3", "n4"))] and (state.spares, state.given_up) == ((), ("n2",))
    _, orders = feed(fresh(), sh.Begun(0.0, isolated=("n2",), insist=True))
    left = outcome(orders)
    assert (left.outcome.status, left.outcome.cause, left.again) == ("left", "isolated_nodes", "requeue")
    assert "3 nodes are needed, and only 2 can be used: n2 isolated" in left.outcome.why
    _, orders = feed(fresh(), sh.Begun(0.0, isolated=("n2",), insist=True, lacked=True))
    assert outcome(orders).again == "hold"
    _, orders = feed(fresh(), sh.Begun(0.0, isolated=("n2",)))
    assert orders == [sh.Start(0, NODES)], "an operator lives, and knows better"


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
    assert isinstance(feed(state, sh.Quiet(1900.0, 0, -1, 1850.0, 1800.0))[1][-1], sh.End)


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
    assert orders == [sh.Tell("", "swapped", "n4 for n2", "maintenance", ("n2",)), sh.Start(1, ("n1", "n3", "n4"))]
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
    assert started(feed(state, sh.Read(13.0, 0, "unknown", ""))[1]) == [("n1", "n3", "n4")]


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


launches, steps = st.integers(0, 4), st.integers(-1, 30)
some_exits = st.lists(st.sampled_from([None, 0, 1, 2, 15, 93, -9, -15]), min_size=3, max_size=3).map(
    lambda c: exits(*c)
)
some_nodes = st.lists(st.sampled_from((*NODES, SPARE, "n9")), max_size=2).map(tuple)
at = st.just(0.0)
stories = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 2.0, 150.0]),
        st.one_of(
            st.builds(sh.Tick, at),
            st.builds(sh.Begun, at, steps),
            st.builds(sh.Exits, at, launches, some_exits, st.booleans(), st.sampled_from([None, 0, 1])),
            st.builds(sh.Quiet, at, launches, steps, st.just(9.0), st.just(8.0), st.just((1,)), some_nodes),
            st.builds(sh.Stepped, at, launches, steps),
            st.builds(sh.Durable, at, steps),
            st.builds(
                sh.Ended,
                at,
                launches,
                some_exits,
                some_nodes,
                st.sampled_from([(), (("n1", "process 5"),)]),
            ),
            st.builds(sh.Read, at, launches, st.sampled_from(["user", "peer", "unknown"]), st.sampled_from(["", "x"])),
            st.builds(sh.Told, at, st.just("TERM")),
            st.builds(sh.Appeared, at, launches),
            st.builds(sh.NotStarted, at, launches, st.just("no space")),
            st.builds(sh.Overtime, at),
            st.builds(sh.Spare, at, st.sampled_from([SPARE, "n2"]), st.booleans()),
            st.builds(sh.Warned, at),
            st.builds(sh.Silent, at, st.sampled_from([SPARE, "n2"]), st.sampled_from([1.0, 20.0, 50.0])),
            st.builds(sh.Draining, at, some_nodes, st.just("fan")),
            st.builds(sh.Flushing, at, launches, steps, st.just(""), st.booleans()),
        ),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2), st.booleans(), stories)
def test_promises(relaunches: int, spare: bool, story: list[tuple[float, sh.Heard]]) -> None:
    allocated = (*NODES, SPARE) if spare else NODES
    state, now = fresh(allocated, relaunches=relaunches), 0.0
    clean: set[int] = set()  # launches of which nothing is left, by their agents' word
    asked: set[int] = set()
    started: list[int] = []
    in_vain, best, swaps = 0, -1, 0
    abandoned: set[str] = set()
    left = False
    for pause, heard in story:
        now += pause
        heard = replace(heard, at=now)
        before = state
        state, orders = decide(state, heard)
        assert not (left and (orders or state != before)), "nothing follows the outcome"
        counts = before.rung is Rung.ENDING and isinstance(heard, sh.Ended) and heard.launch == before.launch
        if counts:
            clean.add(heard.launch)
            abandoned = {*heard.unheard, *(node for node, _ in heard.survivors)}
        for order in orders:
            if isinstance(order, sh.Start):
                assert order.launch == len(started) and len(set(order.nodes)) == 3
                assert list(order.nodes) == [n for n in allocated if n in order.nodes], "in Slurm's order"
                assert not set(order.nodes) & set(state.given_up)
                assert not before.told or not started
                if started:
                    assert order.launch - 1 in clean, "beside what may still live"
                    assert not abandoned & set(order.nodes), "where something may still live"
                    swaps += order.nodes != before.nodes
                    reached = state.durable if state.durable >= 0 else state.max_step
                    in_vain, best = (1, reached) if reached > best else (in_vain + 1, best)
                    assert in_vain <= 4 * relaunches * (1 + swaps) + swaps, "each of the causes has its budget"
                    assert swaps <= len(allocated) - 3
                else:
                    best = state.progress
                started.append(order.launch)
            if isinstance(order, sh.End):
                assert order.launch == state.launch and order.launch not in asked
                asked.add(order.launch)
            if isinstance(order, sh.Leave):
                left = True
                told = order.outcome
                assert set(told.missing) | set(told.suspects) | set(told.blamed) <= set(allocated)
                assert order.again in ("", "requeue", "hold", "uncancelled")
                assert order.again not in ("requeue", "hold") or told.status in ("failed", "left")
                assert order.again != "uncancelled" or state.told or isinstance(heard, sh.Overtime)
                assert (told.status == "done") == (order.exit_code == 0)
                if told.status == "done":
                    assert len(state.exits) == 3 or state.srun == 0
                    assert not any(x.bad for x in state.exits)
