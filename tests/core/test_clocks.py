"""Which rank failed first, where the clocks of the nodes differ."""

from __future__ import annotations

from dataclasses import replace

from core_launcher import feed, training

from transom_cli.core import launcher
from transom_cli.core.clocks import NodeClock, failed_first, first_bad, measured, on_launchers_clock
from transom_cli.core.events import RankExit
from transom_cli.core.launcher import ReadLogs, State

CULPRIT = RankExit(1, "n2", 1, None, wall=1000.0 + 200.0, mono=50.0)  # n2's wall clock is 200 s ahead
VICTIM = RankExit(0, "n1", 1, None, wall=1003.0, mono=90003.0)
CLOCKS = (NodeClock("n1", 90000.0 - 1000.0, 0.01), NodeClock("n2", 50.0 - 1000.0, 0.01))


def test_a_clock_is_known_to_within_half_a_round_trip() -> None:
    assert measured("n1", 10.0, 110.3, 10.4) == NodeClock("n1", 110.3 - 10.2, (10.4 - 10.0) / 2)


def test_wall_clocks_200_seconds_apart_do_not_make_a_victim_the_first() -> None:
    assert first_bad((VICTIM, CULPRIT)) == VICTIM, "as the nodes' own clocks say"
    (first,) = failed_first(on_launchers_clock((VICTIM, CULPRIT), CLOCKS))
    assert (first.rank, first.wall, first.error) == (1, 1000.0, 0.01)


def test_a_wall_clock_that_jumps_before_the_end_changes_nothing() -> None:
    for jump in (-3600.0, 3600.0, 7200.0):
        (first,) = failed_first(on_launchers_clock((VICTIM, replace(CULPRIT, wall=1000.0 + jump)), CLOCKS))
        assert first.rank == 1


def test_no_order_is_claimed_within_the_error_of_the_clocks() -> None:
    rough = tuple(replace(clock, error=2.0) for clock in CLOCKS)
    found = failed_first(on_launchers_clock((VICTIM, CULPRIT), rough))
    assert [x.rank for x in found] == [1, 0], "3 s apart, each known to 2 s"
    close = RankExit(2, "n2", 1, None, mono=50.5)
    assert [x.rank for x in failed_first(on_launchers_clock((close, CULPRIT), rough))] == [1], "one node has one clock"


def test_a_node_whose_clock_is_not_known_may_have_been_first() -> None:
    found = failed_first(on_launchers_clock((VICTIM, CULPRIT), CLOCKS[1:]))
    assert {x.rank for x in found} == {0, 1}


def test_a_time_is_converted_once() -> None:
    once = on_launchers_clock((VICTIM, CULPRIT), CLOCKS)
    assert on_launchers_clock(once, CLOCKS) == once
    assert on_launchers_clock((RankExit(0, "n1", 1, None, wall=5.0),), CLOCKS)[0].wall == 5.0, "srun's own message"


def failed(clocks: tuple[NodeClock, ...], line: launcher.LogsRead) -> tuple[State, int | None]:
    """The state after both ranks have failed, and the rank whose log is read first."""
    state, actions = feed(
        training(),
        launcher.RanksExited(10.0, 0, (VICTIM, CULPRIT)),
        launcher.Tick(12.0),
        launcher.LaunchEnded(13.0, 0, clocks=clocks),
    )
    (read,) = [action for action in actions if isinstance(action, ReadLogs)]
    return feed(state, line)[0], read.rank


SILENT = launcher.LogsRead(14.0, 0, "unknown", "")


def blamed(state: State) -> tuple[tuple[str, ...], str]:
    incident = state.history.incidents[-1] if state.incident is None else state.incident
    assert incident.diagnosis is not None
    return incident.diagnosis.nodes, incident.diagnosis.words


def test_the_launcher_blames_the_node_that_failed_first() -> None:
    state, read = failed(CLOCKS, SILENT)
    assert read == 1
    assert blamed(state)[0] == ("n2",)


def test_the_launcher_blames_no_node_when_the_order_is_not_known() -> None:
    state, read = failed(tuple(replace(clock, error=2.0) for clock in CLOCKS), SILENT)
    assert read is None
    nodes, words = blamed(state)
    assert nodes == ()
    assert "or first rank 0 on n1 ended with exit code 1: the nodes' clocks do not show the order" in words


def test_the_log_with_the_cause_decides_when_the_clocks_do_not() -> None:
    cause = launcher.LogsRead(14.0, 0, "cuda_oom", "CUDA out of memory", "rank-0.log")
    state, _ = failed(tuple(replace(clock, error=2.0) for clock in CLOCKS), cause)
    assert blamed(state)[1].startswith("rank 0 on n1 ended with exit code 1: CUDA out of memory")
