"""Nodes are examined before the first launch and after a failure; what an agent proves ends a launch at once."""

from __future__ import annotations

from core_launcher import NODES, SPARE, exits, feed, fresh, outcome, started

from transom_cli.core import launcher
from transom_cli.core.events import NodeFault
from transom_cli.core.launcher import Action, Phase, State

ALL = (*NODES, SPARE)


def fault(node: str, verdict: str = "FAIL", check: str = "gpu_rows") -> NodeFault:
    return NodeFault(node, check, verdict, "row remapping failed", "repair", "GPU-1", "165")


def preflight(allocated: tuple[str, ...] = ALL, **begun: object) -> tuple[State, list[Action]]:
    return feed(fresh(allocated, preflight=True), launcher.AttemptStarted(0.0, **begun))  # type: ignore[arg-type]


def told(actions: list[Action], what: str) -> list[launcher.Journal]:
    return [o for o in actions if isinstance(o, launcher.Journal) and o.what == what]


def training_with_spare() -> State:
    state, _ = preflight()
    state, actions = feed(state, launcher.NodesChecked(3.0, "preflight"), launcher.SpareChecked(4.0, SPARE, good=True))
    assert started(actions) == [NODES]
    return feed(state, launcher.Stepped(5.0, 0, 4), launcher.CheckpointDurable(6.0, 4))[0]


def test_no_rank_is_started_before_all_nodes_were_examined_spares_too() -> None:
    state, actions = preflight()
    assert actions == [launcher.CheckNodes("preflight", ALL, "quick")]
    assert state.phase is Phase.CHECKING and state.launch.number == -1
    state, actions = feed(state, launcher.NodesChecked(3.0, "preflight", words="4 nodes examined"))
    assert started(actions) == [NODES] and state.nodes.spares == (SPARE,)
    assert [t.words for t in told(actions, "checked")] == ["4 nodes examined"]


def test_a_spare_stands_in_for_a_node_that_was_found_bad_and_the_operator_hears_why() -> None:
    state, _ = preflight()
    bad = fault("n2")
    state, actions = feed(state, launcher.NodesChecked(3.0, "preflight", (bad,)))
    assert started(actions) == [("n1", "n3", SPARE)]
    assert [o.faults for o in actions if isinstance(o, launcher.StartLaunch)] == [(bad,)]
    assert state.nodes.given_up == ("n2",) and state.nodes.spares == ()
    state, _ = feed(state, launcher.SpareChecked(9.0, "n2", good=True))
    assert "n2" not in state.nodes.ready, "its agent answers, and it is bad all the same"


def test_without_a_spare_the_attempt_is_left_for_other_nodes_and_blames_the_bad_one() -> None:
    state, _ = preflight(NODES)
    bad = (fault("n3"), fault("n2", "SUSPECT", "compute_speed"))
    state, actions = feed(state, launcher.NodesChecked(3.0, "preflight", bad))
    left = outcome(actions)
    assert state.phase is Phase.OVER and started(actions) == []
    assert (left.outcome.status, left.outcome.cause, left.again) == ("left", "preflight", "requeue")
    assert left.outcome.faults == bad and set(left.outcome.blamed) == {"n2", "n3"}
    assert "n3: gpu_rows: row remapping failed" in left.outcome.why


def test_a_second_preflight_in_a_row_that_lacks_nodes_holds_the_job() -> None:
    state, _ = preflight(NODES, lacked=True)
    _, actions = feed(state, launcher.NodesChecked(3.0, "preflight", (fault("n1"),)))
    assert outcome(actions).again == "hold"


def test_a_suspicion_that_holds_wherever_the_job_goes_does_not_keep_it_from_training() -> None:
    doubts = tuple(fault(n, "SUSPECT", "write") for n in NODES)
    state, _ = preflight(NODES)
    assert outcome(feed(state, launcher.NodesChecked(3.0, "preflight", doubts))[1]).outcome.cause == "preflight"
    state, _ = preflight(NODES, lacked=True)
    _, actions = feed(state, launcher.NodesChecked(3.0, "preflight", doubts))
    assert [(o.nodes, o.faults) for o in actions if isinstance(o, launcher.StartLaunch)] == [(NODES, ())]
    _, actions = feed(state, launcher.NodesChecked(3.0, "preflight", (*doubts, fault("n2"))))
    assert outcome(actions).again == "hold", "a proof keeps its node out"


def test_a_node_that_an_earlier_attempt_blamed_is_not_examined_but_may_have_to_do() -> None:
    state, actions = preflight(isolated=("n1",))
    assert actions == [launcher.CheckNodes("preflight", ("n2", "n3", SPARE), "quick")]
    _, actions = feed(state, launcher.NodesChecked(3.0, "preflight", (fault(SPARE),)))
    assert started(actions) == [NODES], "the operator keeps it out if need be; the bad one must not carry a rank"
    state, _ = preflight(isolated=("n1",), insist=True)
    _, actions = feed(state, launcher.NodesChecked(3.0, "preflight", (fault(SPARE),)))
    assert outcome(actions).outcome.cause == "preflight"


def test_an_examination_that_never_ends_speaks_against_nobody() -> None:
    state, _ = preflight()
    state, actions = feed(state, launcher.Tick(59.0))
    assert actions == []
    state, actions = feed(state, launcher.Tick(60.0))
    assert started(actions) == [NODES]
    assert feed(state, launcher.NodesChecked(70.0, "preflight", (fault("n1"),)))[1] == [], "too late: the ranks run"


def test_stop_request_ends_the_attempt_at_once() -> None:
    state, _ = preflight()
    state, actions = feed(state, launcher.StopRequested(1.0, "SIGTERM"))
    assert outcome(actions).outcome.status == "stopped" and state.phase is Phase.OVER


def test_what_is_proven_against_a_node_ends_the_launch_and_the_spare_continues() -> None:
    state = training_with_spare()
    bad = fault("n2", check="kernel")
    state, actions = feed(state, launcher.FaultsFound(9.0, (bad,)))
    assert [o for o in actions if isinstance(o, launcher.EndLaunch)] == [launcher.EndLaunch(0, "l1", evidence=False)]
    state, actions = feed(state, launcher.LaunchEnded(11.0, 0), launcher.LogsRead(12.0, 0, "unknown", ""))
    assert started(actions) == [("n1", SPARE, "n3")]
    (swap,) = told(actions, "swapped")
    assert (swap.cause, swap.nodes, swap.faults) == ("node_fault", ("n2",), (bad,))


def test_without_a_spare_the_outcome_names_the_fault() -> None:
    state, _ = feed(fresh(), launcher.AttemptStarted(0.0), launcher.Stepped(5.0, 0, 4))
    state, _ = feed(state, launcher.FaultsFound(9.0, (fault("n2"),)), launcher.LaunchEnded(11.0, 0))
    _, actions = feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))
    left = outcome(actions).outcome
    assert left.status == "failed" and left.blamed == ("n2",) and [f.node for f in left.faults] == ["n2"]


def test_a_suspicion_ends_nothing_but_is_remembered_when_the_launch_fails() -> None:
    state = training_with_spare()
    doubt = fault("n1", "SUSPECT", "ib_counters")
    state, actions = feed(state, launcher.FaultsFound(9.0, (doubt,)))
    assert [type(o) for o in actions] == [launcher.Journal] and state.phase is Phase.TRAINING
    assert feed(state, launcher.FaultsFound(10.0, (doubt,)))[1] == [], "reported once"
    state, _ = feed(
        state, launcher.RanksExited(20.0, 0, exits(None, None, -9)), launcher.Tick(22.0), launcher.LaunchEnded(23.0, 0)
    )
    _, actions = feed(state, launcher.LogsRead(24.0, 0, "unknown", ""))
    assert started(actions) == [(SPARE, "n2", "n3")]


def failed_after(state: State, at: float) -> list[Action]:
    """A rank dies of its own; the actions of what follows."""
    state, _ = feed(
        state,
        launcher.RanksExited(at, 0, exits(None, None, -9)),
        launcher.Tick(at + 2),
        launcher.LaunchEnded(at + 3, 0),
    )
    return feed(state, launcher.LogsRead(at + 4, 0, "unknown", ""))[1]


def test_a_suspicion_of_long_ago_explains_no_failure() -> None:
    doubt = fault("n1", "SUSPECT", "ib_link")
    state, _ = feed(training_with_spare(), launcher.FaultsFound(9.0, (doubt,)))
    assert started(failed_after(state, 500.0)) == [(SPARE, "n2", "n3")]
    assert started(failed_after(state, 5000.0)) == [NODES], "the same nodes: nothing speaks against n1 now"
    again, actions = feed(state, launcher.FaultsFound(4900.0, (doubt,)))
    assert [type(o) for o in actions] == [launcher.Journal] or actions == []
    assert started(failed_after(again, 5000.0)) == [(SPARE, "n2", "n3")], "it was received again"


def test_a_suspicion_that_most_nodes_share_counts_against_none() -> None:
    state = training_with_spare()
    doubts = tuple(fault(n, "SUSPECT", "ib_link") for n in ALL[:3])
    state, _ = feed(
        state, *(launcher.FaultsFound(9.0 + i, (d,)) for i, d in enumerate(doubts)), launcher.FaultsFound(15.0, doubts)
    )
    assert started(failed_after(state, 20.0)) == [NODES], "a switch, not three nodes"
    state, _ = feed(state, launcher.FaultsFound(16.0, (fault("n2", "FAIL", "gpu_xid"),)))
    state, actions = feed(state, launcher.LaunchEnded(18.0, 0), launcher.LogsRead(19.0, 0, "unknown", ""))
    assert started(actions) == [("n1", SPARE, "n3")], "what is proven counts"


def test_a_spare_that_is_found_bad_stands_by_no_more() -> None:
    state = training_with_spare()
    state, actions = feed(state, launcher.FaultsFound(9.0, (fault(SPARE),)))
    assert state.nodes.ready == () and state.nodes.spares == () and state.phase is Phase.TRAINING
    assert [t.nodes for t in told(actions, "swapped")] == [(SPARE,)]


def test_a_traceback_on_a_node_that_is_proven_bad_is_not_the_users_error() -> None:
    state, _ = feed(
        fresh(ALL),
        launcher.AttemptStarted(0.0),
        launcher.SpareChecked(1.0, SPARE, good=True),
        launcher.FaultsFound(2.0, (fault("n2"),)),
    )
    state, _ = feed(state, launcher.LaunchEnded(3.0, 0, exits(1, 1, 1)))
    _, actions = feed(
        state, launcher.LogsRead(4.0, 0, "user_code", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    )
    assert started(actions) == [("n1", SPARE, "n3")]
    state, _ = feed(
        fresh(ALL),
        launcher.AttemptStarted(0.0),
        launcher.SpareChecked(1.0, SPARE, good=True),
        launcher.RanksExited(2.0, 0, exits(93, 93, 93)),
    )
    state, _ = feed(state, launcher.FaultsFound(2.1, (fault("n2"),)), launcher.Tick(4.0), launcher.LaunchEnded(5.0, 0))
    assert not started(feed(state, launcher.LogsRead(6.0, 0, "unknown", ""))[1]), (
        "the trainer's own word to stop stands"
    )


def failing(state: State, at: float, category: str) -> tuple[State, list[Action]]:
    launch = state.launch.number
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, exits(None, 1, None, node_of=state.nodes.training)),
        launcher.Tick(at + 2),
    )
    return feed(state, launcher.LaunchEnded(at + 3, launch), launcher.LogsRead(at + 4, launch, category, "CUDA error"))


def test_a_failure_of_a_device_has_the_suspect_and_its_neighbours_examined() -> None:
    state, _ = feed(
        fresh(ALL, deep=True),
        launcher.AttemptStarted(0.0),
        launcher.SpareChecked(1.0, SPARE, good=True),
        launcher.Stepped(5.0, 0, 4),
    )
    state, actions = failing(state, 10.0, "gpu_hardware")
    assert [o for o in actions if isinstance(o, launcher.CheckNodes)] == [launcher.CheckNodes("l1", NODES, "deep")]
    assert state.phase is Phase.CHECKING and not started(actions)
    _, actions = feed(state, launcher.NodesChecked(40.0, "l1", words="all well"))
    assert started(actions) == [NODES], "nothing was found: it is tried again there"
    _, actions = feed(state, launcher.NodesChecked(40.0, "l1", (fault("n2", check="compute"),)))
    assert started(actions) == [("n1", SPARE, "n3")]
    assert feed(state, launcher.NodesChecked(40.0, "preflight", (fault("n2"),)))[1] == [], (
        "an answer to another question"
    )
    assert feed(state, launcher.Tick(14.0 + 330.0))[0].phase is Phase.TRAINING, "not waited for any longer"


def test_any_other_first_failure_is_relaunched_without_an_examination() -> None:
    state, _ = feed(fresh(deep=True), launcher.AttemptStarted(0.0), launcher.Stepped(5.0, 0, 4))
    _, actions = failing(state, 10.0, "unknown")
    assert started(actions) == [NODES] and not any(isinstance(o, launcher.CheckNodes) for o in actions)


SWITCHES = (("n1", ("top", "a")), ("n2", ("top", "b")), ("n3", ("top", "a")), ("n4", ("top", "a")))


def test_ranks_are_ordered_by_the_network_and_the_far_node_is_the_spare() -> None:
    state, _ = preflight()
    state, actions = feed(state, launcher.NodesChecked(3.0, "preflight", switches=SWITCHES))
    assert [sorted(nodes) for nodes in started(actions)] == [["n1", "n3", "n4"]] and state.nodes.spares == ("n2",)
    assert any("ordered by the network" in entry.words for entry in told(actions, "checked"))


def test_a_swap_takes_the_spare_nearest_to_the_neighbours_of_the_lost_node() -> None:
    five = (*ALL, "n5")
    where = (*((n, ("top", "a")) for n in NODES), (SPARE, ("top", "far")), ("n5", ("top", "a")))
    state, _ = preflight(five)
    ready = [launcher.SpareChecked(4.0, n, good=True) for n in (SPARE, "n5")]
    state, actions = feed(state, launcher.NodesChecked(3.0, "preflight", switches=where), *ready)
    assert started(actions) == [NODES]
    steps = (launcher.Stepped(5.0, 0, 4), launcher.CheckpointDurable(6.0, 4))
    _, actions = feed(
        state,
        *steps,
        launcher.FaultsFound(7.0, (fault("n2"),)),
        launcher.LaunchEnded(9.0, 0),
        launcher.LogsRead(9.5, 0, "unknown", ""),
    )
    assert started(actions) == [("n1", "n5", "n3")]


def test_slurms_order_stays_if_nothing_is_known_of_the_network() -> None:
    state, _ = preflight()
    _, actions = feed(state, launcher.NodesChecked(3.0, "preflight"))
    assert started(actions) == [NODES]
