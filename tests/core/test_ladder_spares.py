"""The launcher's core: which nodes carry ranks, and when a spare takes the place of one."""

from __future__ import annotations

from core_ladder import NODES, SPARE, exits, feed, fresh, killed, lost, outcome, started, with_spare

from transom_cli.core import launcher as sh


def test_a_spare_takes_the_place_of_a_node_that_does_not_answer() -> None:
    state, orders = lost(with_spare(), 9.0, "n2")
    assert orders[-2:] == [
        sh.Tell("l1", "swapped", "n4 for n2", "node_silent", ("n2",)),
        sh.Start(1, ("n1", "n4", "n3")),
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
    assert (state.launch, state.nodes, state.given_up) == (2, ("n1", "n4", "n3"), ("n2",))
    assert killed(state, 29.0).launch == 3, "fresh nodes, fresh relaunches"


def test_survivors_on_a_node_are_left_behind_with_it_but_never_this_launcher() -> None:
    state, _ = feed(with_spare(), sh.Exits(9.0, 0, exits(1, -9, 1)), sh.Tick(11.0))
    away, _ = feed(state, sh.Ended(12.0, 0, survivors=(("n2", "process 5 (python, D)"),)))
    assert started(feed(away, sh.Read(13.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")]
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
