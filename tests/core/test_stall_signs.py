"""What the core makes of ranks that fall silent."""

from __future__ import annotations

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action, Probe
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Request, State

NODES = ("node1", "node2", "node3")


def _running(*more: ev.Event) -> tuple[State, list[Action]]:
    state, actions = State(request=Request(num_nodes=3)), []
    for event in (
        ev.Started(0.0, 1),
        ev.Submitted(1.0, "submit", 7),
        ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES, batch_host="node1"),
        ev.LaunchSeen(3.0, "7.0", 0, NODES, 3),
        *more,
    ):
        state, new = decide(state, event)
        actions += new
    return state, actions


def test_survivors_stand_out_but_the_node_that_cannot_be_seen_is_probed_too() -> None:
    """The batch host is dead, and the launcher with it: no outcome comes, and the ranks that fell are its victims."""
    quiet = ev.Stalled(20.0, "7.0", ev.Stall(10, 5.0, 5.0, (1, 2), ("node2", "node3"), overdue=("node1",)))
    _, actions = _running(ev.StepSeen(10.0, "7.0", 10), quiet)
    assert {a.node for a in actions if isinstance(a, Probe)} == set(NODES)


def test_the_silence_of_a_trainer_that_never_beats_is_no_sign() -> None:
    quiet = ev.Stalled(2000.0, "7.0", ev.Stall(-1, 1800.0, 1800.0, (), ()))
    state, actions = _running(quiet)
    assert state.incident is None
    assert not [a for a in actions if isinstance(a, Probe)]


def test_the_silence_of_a_trainer_that_has_beaten_before_is_one_also_before_its_next_first_step() -> None:
    state, _ = _running(ev.StepSeen(10.0, "7.0", 10), ev.JobSeen(20.0, 7, 1, "RUNNING", nodes=NODES))
    state, actions = decide(state, ev.Stalled(2000.0, "7.1", ev.Stall(-1, 1800.0, 1800.0, (), ())))
    assert {a.node for a in actions if isinstance(a, Probe)} == set(NODES)


def test_the_silence_of_all_agents_beside_a_living_launcher_is_no_hang() -> None:
    unseen = ev.Stalled(20.0, "7.0", ev.Stall(10, 5.0, 5.0, (), (), overdue=NODES, unseen=True))
    state, actions = _running(ev.StepSeen(10.0, "7.0", 10), unseen)
    probes = [a for a in actions if isinstance(a, Probe)]
    assert {a.node for a in probes} == set(NODES)
    for probe in probes:
        state, actions = decide(state, ev.Probed(21.0, probe.key, probe.node, "PASS", "up"))
    assert (state.incident, actions, [i.result for i in state.incidents]) == (None, (), ["nothing"])
