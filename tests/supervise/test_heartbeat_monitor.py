"""What the launcher sees of nodes that fall silent alone, or all together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transom_cli.core.stall import NodeSilent, StallLimits
from transom_cli.heartbeat.table import NodeTable, encode
from transom_cli.supervise import heartbeat_monitor as beatwatch
from transom_cli.supervise.heartbeat_monitor import A_TABLE, LEAST, LONGEST, OPERATIONS, SHARE, HeartbeatMonitor


class Nodes:
    def __init__(self, folder: Path) -> None:
        self.folder, self.seq = folder, 0
        self.watch = HeartbeatMonitor(folder, StallLimits())

    def look(self, now: float, *alive: str) -> tuple[tuple[str, float], ...]:
        self.seq += 1
        for node in alive:
            (self.folder / f"{node}.beats").write_bytes(encode(NodeTable(node, "7.0", self.seq, ())))
        self.watch.look(now)
        return self.watch.alone(now)


def test_a_node_that_falls_silent_alone(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    assert nodes.look(0.0, "n1", "n2") == ()
    for now in range(1, 4):
        assert nodes.look(float(now), "n1") == (), "an agent may be late"
    assert nodes.look(4.0, "n1") == (("n2", 0.0),)
    assert nodes.look(9.0, "n1") == (("n2", 5.0),)
    assert nodes.look(10.0, "n1", "n2") == ()


def test_all_that_fall_silent_together_are_the_file_systems_trouble(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.look(0.0, "n1", "n2")
    assert nodes.look(60.0) == ()
    assert nodes.look(61.0, "n1") == (("n2", 0.0),), "the first that is heard again proves nothing against the others"
    assert nodes.look(61.5, "n1", "n2") == ()


def test_a_look_that_takes_long_is_not_repeated_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of nodes it does: a share of a core is what they get; and never too seldom to see silence."""
    nodes, spent = Nodes(tmp_path), [0.0]

    def thread_time() -> float:
        spent[0] += cost / 2  # asked twice in a look, at its begin and at its end
        return spent[0]

    monkeypatch.setattr(beatwatch.time, "thread_time", thread_time)
    cost = 2 * 0.5 * SHARE  # half a second at that share
    nodes.look(100.0, "n1")
    nodes.look(100.4, "n1")
    assert nodes.watch.tables["n1"].seq == 1
    nodes.look(100.6, "n1")
    assert nodes.watch.tables["n1"].seq == 3
    cost = 100.0
    nodes.look(110.0, "n1")
    nodes.look(110.0 + LONGEST - 0.1, "n1")
    assert nodes.watch.tables["n1"].seq == 4
    nodes.look(110.0 + LONGEST, "n1")
    assert nodes.watch.tables["n1"].seq == 6, "whatever it costs"
    nodes.look(50.0, "n1")
    assert nodes.watch.tables["n1"].seq == 7, "the clock was set back"


@pytest.mark.parametrize("count", [1, 16, 300, 1000])
def test_what_a_second_of_looks_asks_of_the_file_server_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    nodes = Nodes(tmp_path)
    nodes.look(0.0, *(f"n{i}" for i in range(count)))
    asked = 0

    def counting(call: str) -> None:
        real = getattr(os, call)

        def counted(*args: object, **kwargs: object) -> object:
            nonlocal asked
            asked += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(beatwatch.os, call, counted)

    monkeypatch.setattr(beatwatch.time, "thread_time", lambda: 0.0)
    for call in ("open", "read", "close", "scandir", "stat"):
        counting(call)
    for turn in range(1, 301):  # of a tenth of a second each, as the operator's
        nodes.watch.look(turn / 10)
    listings = 30 / LEAST + 1
    assert asked <= max(30 * OPERATIONS, 30 / LONGEST * A_TABLE * count) + A_TABLE * count + listings
    assert asked <= 30 / LEAST * (A_TABLE * count + 1)
    assert asked >= 30 / (LONGEST + 0.1) * A_TABLE * count - 1, "no silence is seen later for it"


@pytest.mark.parametrize("last", [1.5, 1.55, 2.0, 2.3, 2.7, 2.95])
def test_a_silence_is_judged_when_its_limit_is_reached_and_not_only_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: float
) -> None:
    """However long the looks take: that its last table is seen late is all that a follower of thousands is behind."""
    nodes, spent = Nodes(tmp_path), [0.0]

    def thread_time() -> float:
        spent[0] += 100.0
        return spent[0]

    monkeypatch.setattr(beatwatch.time, "thread_time", thread_time)
    told: dict[str, float] = {}
    looks = 0
    for tick in range(400):
        now = 0.05 * tick
        nodes.seq += 1
        for node in ("n1", "n2") if now <= last else ("n1",):
            (nodes.folder / f"{node}.beats").write_bytes(encode(NodeTable(node, "7.0", nodes.seq, ())))
        for found in nodes.watch.look(now):
            if isinstance(found, NodeSilent):
                told[found.node] = now
        looks += nodes.watch.tables["n1"].seq == nodes.seq
    assert list(told) == ["n2"]
    assert 0.0 <= told["n2"] - last - StallLimits().node_silent <= LONGEST + 0.06
    assert looks <= 20.0 / LONGEST + 3
