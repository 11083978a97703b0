"""The launcher's core: a run that may shrink continues without a lost node, if enough others remain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_launcher import NODES, exits, feed, fresh, lost, outcome, started, training, with_spare
from core_policy import DEFAULT

from transom_cli.core import launcher
from transom_cli.core.placement import Network
from transom_cli.core.policy import Rule

FOUR = (*NODES, "n4")


def elastic(nodes: tuple[str, ...] = FOUR, *, fewest: int = 2, unit: int = 1) -> launcher.State:
    state = fresh(nodes)
    state = replace(state, nodes=replace(state.nodes, wanted=len(nodes), fewest=fewest, unit=unit))
    state, _ = feed(state, launcher.AttemptStarted(0.0), launcher.Stepped(5.0, 0, 4))
    assert state.nodes.training == nodes
    return state


def test_a_lost_node_is_left_out_until_too_few_remain() -> None:
    state, actions = lost(elastic(), 9.0, "n2")
    (entry,) = (a for a in actions if isinstance(a, launcher.Journal) and a.what == "swapped")
    assert entry.words == "continues on 3 of 4 nodes, without n2" and entry.nodes == ("n2",)
    assert started(actions) == [("n1", "n3", "n4")]
    state, actions = lost(feed(state, launcher.Stepped(20.0, 1, 6))[0], 25.0, "n4")
    assert started(actions) == [("n1", "n3")]
    state, actions = lost(feed(state, launcher.Stepped(40.0, 2, 8))[0], 45.0, "n1")
    assert started(actions) == [] and "n1" in outcome(actions).outcome.blamed, "one node is below the fewest"


def test_the_remaining_nodes_are_ordered_by_the_network_again() -> None:
    """n1 and n4 share a switch, all others another. Slurm's order would cross four times."""
    switches = {n: ("top", leaf) for n, leaf in zip((*FOUR, "n5", "n6"), "abbabb", strict=True)}
    state = elastic((*FOUR, "n5", "n6"))
    state, actions = lost(replace(state, network=Network(switches)), 9.0, "n2")
    (order,) = started(actions)
    leaves = [switches[n][1] for n in order]
    assert sum(a != b for a, b in zip(leaves, [*leaves[1:], leaves[0]], strict=True)) == 2
    (entry,) = (a for a in actions if isinstance(a, launcher.Journal) and a.what == "swapped")
    assert "without n2; ranks are ordered by the network" in entry.words


def test_a_rule_gives_the_job_back_instead_of_continuing_on_fewer_nodes() -> None:
    state = elastic()
    rule = Rule("whole", "requeue", cause=("node_lost", "node_silent"))
    state, actions = lost(replace(state, policy=replace(state.policy, rules=(rule,))), 9.0, "n2")
    assert started(actions) == [] and "n2" in outcome(actions).outcome.blamed


def test_whole_replicas_train_and_the_others_nodes_are_spares() -> None:
    state, actions = lost(elastic(unit=2), 9.0, "n2")
    assert started(actions) == [("n1", "n3")] and state.nodes.spares == state.nodes.ready == ("n4",)
    state, actions = lost(feed(state, launcher.Stepped(20.0, 1, 6))[0], 25.0, "n1")
    assert sorted(started(actions)[0]) == ["n3", "n4"], "the spare takes its place"


def test_a_spare_is_used_before_a_run_shrinks() -> None:
    state = with_spare()
    state = replace(state, nodes=replace(state.nodes, fewest=2))
    assert started(lost(state, 9.0, "n2")[1]) == [("n1", "n4", "n3")]
    two, _ = feed(state, launcher.RanksExited(9.0, 0, exits(1, None, None)), launcher.Tick(11.0))
    two, _ = feed(two, launcher.LaunchEnded(12.0, 0, unheard=("n2", "n3")))
    assert started(feed(two, launcher.LogsRead(13.0, 0, "network_fabric", ""))[1]) == [("n1", "n4")]


def test_a_job_that_got_fewer_nodes_trains_on_them() -> None:
    state = fresh(NODES)
    state = replace(state, nodes=replace(state.nodes, wanted=3, fewest=2))
    _, actions = feed(state, launcher.AttemptStarted(0.0, isolated=("n2",), insist=True))
    assert started(actions) == [("n1", "n3")]


@pytest.mark.parametrize(("count", "number"), [(5, 4), (4, 4), (3, 2), (2, 2), (1, 0), (0, 0)])
def test_the_number_of_nodes_is_the_largest_that_fits(count: int, number: int) -> None:
    assert launcher.Nodes((), 4, fewest=2, unit=2).number_for(count) == number
    assert launcher.Nodes((), 4).number_for(count) == (4 if count >= 4 else 0)


def killed(state: launcher.State, at: float) -> launcher.State:
    """Rank 1 dies, wherever it runs, and all agents answer."""
    launch, nodes = state.launch.number, state.nodes.training
    codes = [-9 if rank == 1 else None for rank in range(len(nodes))]
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, exits(*codes, node_of=nodes)),
        launcher.Tick(at + 2),
        launcher.LaunchEnded(at + 3, launch),
        launcher.LogsRead(at + 4, launch, "unknown", ""),
    )
    return state


def test_a_failure_that_follows_the_ranks_costs_one_node_and_not_all_of_them() -> None:
    state, sizes, at = elastic(fewest=1), [], 9.0
    while state.phase is not launcher.Phase.OVER and at < 900.0:
        state = killed(state, at)  # always at the same step
        sizes.append(len(state.nodes.training))
        at += 20.0
    assert state.phase is launcher.Phase.OVER, "the operator counts attempts without progress"
    assert min(sizes) == 3, sizes


def test_a_node_that_dies_is_left_out_also_without_progress() -> None:
    _, actions = lost(lost(elastic(), 9.0, "n2")[0], 25.0, "n4")
    assert started(actions) == [("n1", "n3")]


REFUSED = "transom_cli.ckpt.failures.WorldSizeChanged: step-152 was written by {} ranks, and this training has {}"


def refused(
    state: launcher.State, at: float, wrote: int, code: int = 1
) -> tuple[launcher.State, list[launcher.Action]]:
    """All ranks refuse a checkpoint that another number of ranks wrote."""
    launch, nodes = state.launch.number, state.nodes.training
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, exits(*(code for _ in nodes), node_of=nodes)),
        launcher.Tick(at + 2),
        launcher.LaunchEnded(at + 3, launch),
    )
    line = REFUSED.format(wrote, len(nodes))
    return feed(state, launcher.LogsRead(at + 4, launch, "user_code", line, "rank-0.log"))


def test_a_checkpoint_of_fewer_ranks_is_continued_on_as_many_nodes_for_good() -> None:
    state = elastic(fewest=1)
    state, actions = refused(replace(state, policy=replace(state.policy, rules=DEFAULT)), 9.0, 2)
    (entry,) = (a for a in actions if isinstance(a, launcher.Journal) and a.what == "resized")
    assert entry.words == "continues on 2 nodes, as many as wrote the checkpoint" and entry.nodes == ()
    assert started(actions) == [("n1", "n2")] and state.nodes.given_up == () and state.nodes.lacking == 0
    assert state.nodes.ready == ("n3", "n4"), "healthy nodes stay, as spares"
    assert started(lost(state, 25.0, "n1")[1]) == [("n3", "n2")], "the number of ranks stays"
    assert outcome(refused(state, 25.0, 4)[1]).outcome.status == "failed", "a second refusal ends it"


def test_a_checkpoint_of_more_ranks_than_remain_gives_the_job_back() -> None:
    state = elastic(fewest=2)
    state, actions = refused(lost(replace(state, policy=replace(state.policy, rules=DEFAULT)), 9.0, "n2")[0], 25, 4)
    left = outcome(actions).outcome
    assert left.status == "failed" and "can continue on 4 nodes; 3 nodes can carry ranks" in left.why
    assert "stopped by rule" not in left.why and state.nodes.given_up == ("n2",)


@pytest.mark.parametrize("code", [1, 2, 19])
def test_a_checkpoint_that_no_number_of_nodes_can_use_stops_the_run_and_blames_no_node(code: int) -> None:
    state = training(rules=DEFAULT)  # a fixed number of nodes
    state, actions = refused(state, 9.0, 2, code)
    left = outcome(actions).outcome
    assert left.status == "failed" and not left.blamed and not left.suspects and not started(actions)
    assert left.why.startswith("step-152 was written by 2 ranks, and this training has 3: start with 2 ranks, or")
    assert left.why.endswith("; stopped by rule `other-number-of-ranks` (default): user_code"), "its line is there once"
    assert [t.decided.rule for t in left.taken] == ["other-number-of-ranks"]
