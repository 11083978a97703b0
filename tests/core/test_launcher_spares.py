"""The launcher's core: which nodes carry ranks, and when a spare takes the place of one."""

from __future__ import annotations

from core_launcher import NODES, SPARE, exits, feed, fresh, killed, lost, outcome, started, with_spare

from transom_cli.core import launcher


def test_a_spare_takes_the_place_of_a_node_that_does_not_answer() -> None:
    state, actions = lost(with_spare(), 9.0, "n2")
    assert actions[-2:] == [
        launcher.Journal("l1", "swapped", "n4 for n2", "node_silent", ("n2",)),
        launcher.StartLaunch(1, ("n1", "n4", "n3")),
    ]
    assert (state.nodes.spares, state.nodes.ready, state.nodes.given_up) == ((), (), ("n2",))
    state, _ = feed(state, launcher.Stepped(20.0, 1, 6))
    _, actions = lost(state, 25.0, "n4")
    left = outcome(actions)
    assert "no spare is ready" in left.outcome.why and left.outcome.missing == ("n4",)
    assert left.outcome.blamed == ("n2", "n4")


def test_a_spare_that_is_not_known_to_be_good_is_not_used() -> None:
    state, _ = feed(fresh((*NODES, SPARE)), launcher.AttemptStarted(0.0), launcher.Stepped(5.0, 0, 4))
    assert started(lost(state, 9.0, "n2")[1]) == []
    state, _ = feed(with_spare(), launcher.SpareChecked(8.0, SPARE, good=False, words="no answer"))
    assert state.nodes.spares == () and started(lost(state, 9.0, "n2")[1]) == []
    state, _ = feed(
        state,
        launcher.SpareChecked(8.5, SPARE, good=True),
        launcher.SpareChecked(8.6, "n2", good=True),
        launcher.SpareChecked(8.7, "x", True),
    )
    assert (state.nodes.spares, state.nodes.ready) == ((SPARE,), (SPARE,)), "again; never a node that carries ranks"


def test_two_nodes_at_once_need_two_spares() -> None:
    state, _ = feed(with_spare(), launcher.RanksExited(9.0, 0, exits(1, None, None)), launcher.Tick(11.0))
    state, _ = feed(state, launcher.LaunchEnded(12.0, 0, unheard=("n2", "n3")))
    _, actions = feed(state, launcher.LogsRead(13.0, 0, "network_fabric", ""))
    assert "2 spares are needed, and 1 ready" in outcome(actions).outcome.why
    assert outcome(actions).outcome.blamed == ("n2", "n3")


def test_a_node_whose_relaunches_are_spent_is_given_up_for_a_spare() -> None:
    state = killed(with_spare(relaunches=1), 9.0)
    assert (state.launch.number, state.nodes.training) == (1, NODES)
    state = killed(state, 19.0)
    assert (state.launch.number, state.nodes.training, state.nodes.given_up) == (2, ("n1", "n4", "n3"), ("n2",))
    assert killed(state, 29.0).launch.number == 3, "fresh nodes, fresh relaunches"


def test_survivors_on_a_node_are_left_behind_with_it_but_never_this_launcher() -> None:
    state, _ = feed(with_spare(), launcher.RanksExited(9.0, 0, exits(1, -9, 1)), launcher.Tick(11.0))
    away, _ = feed(state, launcher.LaunchEnded(12.0, 0, survivors=(("n2", "process 5 (python, D)"),)))
    assert started(feed(away, launcher.LogsRead(13.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")]
    stuck, _ = feed(state, launcher.LaunchEnded(12.0, 0, survivors=((launcher.THIS_LAUNCHER, "srun of launch 0"),)))
    assert started(feed(stuck, launcher.LogsRead(13.0, 0, "unknown", ""))[1]) == []


def test_isolated_nodes_carry_no_rank() -> None:
    all_four = fresh((*NODES, SPARE))
    state, actions = feed(all_four, launcher.AttemptStarted(0.0, isolated=("n2",), insist=True))
    assert actions == [launcher.StartLaunch(0, ("n1", "n3", "n4"))] and (state.nodes.spares, state.nodes.given_up) == (
        (),
        ("n2",),
    )
    _, actions = feed(fresh(), launcher.AttemptStarted(0.0, isolated=("n2",), insist=True))
    left = outcome(actions)
    assert (left.outcome.status, left.outcome.cause, left.again) == ("left", "isolated_nodes", "requeue")
    assert "3 nodes are needed, and only 2 can be used: n2 isolated" in left.outcome.why
    _, actions = feed(fresh(), launcher.AttemptStarted(0.0, isolated=("n2",), insist=True, lacked=True))
    assert outcome(actions).again == "hold"
    _, actions = feed(fresh(), launcher.AttemptStarted(0.0, isolated=("n2",)))
    assert actions == [launcher.StartLaunch(0, NODES)], "an operator lives, and knows better"


def test_node_on_probation_is_a_spare_first_and_the_last_one_to_be_used() -> None:
    nodes = (*NODES, SPARE, "n5")
    begun = launcher.AttemptStarted(0.0, probation=("n1", "n5"))
    state, actions = feed(fresh(nodes), begun)
    assert started(actions) == [("n2", "n3", "n4")]
    assert state.nodes.spares == ("n1", "n5")
    (entry,) = (a for a in actions if isinstance(a, launcher.Journal))
    assert (entry.what, entry.nodes) == ("probation", ("n1", "n5"))
    ready = (launcher.SpareChecked(1.0, n, good=True) for n in ("n1", "n5"))
    state, _ = feed(state, launcher.Stepped(5.0, 0, 4), *ready)
    assert started(lost(state, 9.0, "n2")[1]) == [("n1", "n3", "n4")]


def test_node_on_probation_carries_a_rank_where_no_other_is_left() -> None:
    _, actions = feed(fresh(), launcher.AttemptStarted(0.0, probation=("n1",)))
    assert started(actions) == [NODES]
    assert not any(isinstance(a, launcher.Journal) for a in actions), "nothing has changed"
    _, actions = feed(fresh((*NODES, SPARE)), launcher.AttemptStarted(0.0, probation=("n1",)))
    assert started(actions) == [("n2", "n3", SPARE)]
