"""What heartbeats ask of a shared file system, counted; and that nobody sees trouble later for it.

Agents, launcher and operator are real, in the simulated time of `bench/neighbour_files.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from neighbour_files import SETTLE, TURN, Calls, World, measured

from transom_cli.core import events as ev
from transom_cli.core.stall import NodeSilent, Stall, StallLimits
from transom_cli.heartbeat.table import decode
from transom_cli.layout import RunDir
from transom_cli.supervise.attempt_files import Tail
from transom_cli.supervise.follow import AttemptFollower
from transom_cli.supervise.launcher import heartbeat_stream
from transom_cli.supervise.launcher.heartbeat_stream import EVERY

LIMITS = StallLimits(settle=0.0)
A_ROUND = 1.5  # seconds between two rounds of a follower that reads files, at most
OLD = LIMITS.node_silent + 1.0 + A_ROUND  # a table is written once a second


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, 6, 2, limits=LIMITS)
    made.go_on(SETTLE)
    assert not made.found[1:] and not troubles(made), "a healthy run"
    return made


def troubles(world: World) -> list[ev.Event]:
    return [e for e in world.events if isinstance(e, (ev.NodeSilent, ev.Stalled, ev.StallEnded, ev.NodeBack))]


def until(world: World, claim: Callable[[], object], most: float) -> float:
    """Seconds until it is so."""
    began = world.now
    while not claim():
        assert world.now - began < most, (most, world.found, troubles(world))
        world.turn()
    return world.now - began


def silent(world: World, node: str) -> bool:
    return any(isinstance(e, ev.NodeSilent) and e.node == node for e in world.events)


def test_calls_of_a_healthy_run_do_not_grow_with_its_nodes_where_one_process_makes_them() -> None:
    few, many = measured(4, 2, 15.0, fetches=True), measured(24, 2, 15.0, fetches=True)
    for calls, nodes in ((few, 4), (many, 24)):
        assert calls["agents"] <= 1.0 * nodes
        assert calls["launcher"] <= 8.0 and calls["operator"] <= 30.0
        assert calls["renames"] <= 1.5 + 0.12 * nodes and not calls["fsyncs"]
    assert many["launcher"] <= few["launcher"] + 0.5 and many["operator"] <= few["operator"] + 1.0
    assert few["launcher"] >= 4.0 and few["operator"] >= 5.0, "something is counted"


def test_one_file_of_all_tables_is_published_every_five_seconds(world: World) -> None:
    before = world.publications
    world.go_on(60.0)
    assert 60.0 / EVERY - 1 <= world.publications - before <= 60.0 / EVERY + 1
    assert set(world.operator.tables) == set(world.agents)
    assert all(table.ranks[0].step >= world.now - EVERY - 3.0 for table in world.operator.tables.values())


def test_a_dead_node_is_found_silent_by_both_as_soon_as_before(world: World) -> None:
    world.dead.add("gpu0003")
    assert until(world, lambda: silent(world, "gpu0003"), OLD) >= LIMITS.node_silent - 1.0
    assert any(isinstance(found, NodeSilent) for _, found in world.found)
    world.go_on(30.0)
    assert [e.node for e in world.events if isinstance(e, ev.NodeSilent)] == ["gpu0003"]
    world.dead.clear()
    until(world, lambda: any(isinstance(e, ev.NodeBack) for e in world.events), 5.0)


def test_a_hang_is_found_by_the_operator_when_the_launcher_finds_it(world: World) -> None:
    for ranks in world.ranks.values():
        for rank in ranks:
            rank.hangs = world.now
    until(world, lambda: any(isinstance(found, Stall) for _, found in world.found), 60.0)
    watch = world.operator._watch
    assert until(world, lambda: watch.found is not None, 2.0) <= 1.5
    assert watch.found is not None and watch.found.step == world.watch.found.step  # type: ignore[union-attr]


@pytest.mark.parametrize("phase", [0.0, 2.0, 4.5])
def test_a_launcher_that_dies_makes_no_node_silent(world: World, phase: float) -> None:
    world.go_on(phase)
    world.launcher_lives = False
    world.go_on(90.0)
    assert not troubles(world)
    newest = {t.node: t.seq for t in world.operator.tables.values()}
    world.go_on(2.5)
    assert all(table.seq > newest[table.node] for table in world.operator.tables.values()), "from the nodes' own files"


def test_patience_with_a_node_whose_file_shows_late_counts_from_the_launchers_last_sign(world: World) -> None:
    count = world.publications
    until(world, lambda: world.publications > count, EVERY + 1.0)
    world.go_on(EVERY - 2 * TURN)
    world.launcher_lives = False
    world.dead.add("gpu0001")
    world.go_on(7.5)
    world.dead.clear()
    world.go_on(30.0)
    assert not troubles(world)


@pytest.mark.parametrize("phase", [0.0, 2.0, 4.5, 5.5, 10.75])
def test_a_node_that_dies_with_the_launcher_is_found_as_soon_as_before(world: World, phase: float) -> None:
    world.go_on(phase)
    world.launcher_lives = False
    world.dead.add("gpu0000")
    until(world, lambda: silent(world, "gpu0000"), OLD)
    world.go_on(30.0)
    assert [e.node for e in world.events if isinstance(e, ev.NodeSilent)] == ["gpu0000"]


def test_a_hang_after_the_launchers_death_is_found_by_the_operator(world: World) -> None:
    world.launcher_lives = False
    world.go_on(10.0)
    for ranks in world.ranks.values():
        for rank in ranks:
            rank.hangs = world.now
    limit = world.operator._watch._stall_state.limit
    until(world, lambda: any(isinstance(e, ev.Stalled) for e in world.events), limit + 1.0 + A_ROUND + 2 * TURN)


def test_the_launcher_reads_the_file_of_a_node_that_it_cannot_reach(world: World) -> None:
    world.cut.add("gpu0002")
    world.go_on(60.0)
    assert not troubles(world) and not world.watch.overdue(world.now)
    assert world.watch.tables["gpu0002"].ranks[0].step >= world.now - 4.0
    world.cut.clear()
    world.go_on(20.0)
    own = decode((world.attempt.nodes / "gpu0002.beats").read_bytes())
    assert world.watch.tables["gpu0002"].seq > own.seq, "fetched again"


def test_the_agents_write_their_files_while_the_launcher_cannot_publish(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heartbeat_stream, "publish", full)
    world.go_on(60.0)
    assert not troubles(world) and not [f for _, f in world.found if isinstance(f, NodeSilent)]
    steps = [table.ranks[0].step for table in world.operator.tables.values()]
    assert min(steps) >= world.now - 4.0
    monkeypatch.undo()
    world.go_on(60.0)
    assert not troubles(world)


def test_news_do_not_wait_for_the_next_publication(world: World) -> None:
    world.go_on(2.0)
    count = world.publications
    world.dead.add("gpu0001")
    until(world, lambda: world.publications > count + 1, 5.0)
    assert world.watch.overdue(world.now) == ("gpu0001",)


def test_following_an_attempt_without_a_directory_costs_one_call_a_second(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(7, 0)
    follower = AttemptFollower(attempt, LIMITS)
    with Calls(tmp_path).counting() as calls:
        for turn in range(41):
            assert not list(follower.poll(1000.0 + TURN * turn))
    assert sum(calls.count.values()) <= 11
    attempt.nodes.mkdir(parents=True)
    attempt.launcher_alive.write_text("1\n")
    assert not list(follower.poll(1011.5)) and follower.launcher_lives


def test_looking_for_new_lines_costs_three_calls_while_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "launcher.jsonl"
    path.write_text('{"n": 1}\n{"n"')
    tail = Tail(path)
    assert list(tail.records()) == [{"n": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert list(tail.records()) == [{"n": 2}]
    with Calls(tmp_path).counting() as calls:
        assert not list(tail.records())
    assert sum(calls.count.values()) == 3
