"""Nodes lost with all that they held: the others' memory gives it back, bit for bit, without a look at the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from ckpt_memory_nodes import Nodes

CASES = [
    ("replica", 2, 1),
    pytest.param("xor:2", 3, 1, marks=pytest.mark.long),
    pytest.param("rs:2+1", 3, 1, marks=pytest.mark.long),
    pytest.param("rs:2+2", 4, 2, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("protect", "count", "lost"), CASES)
def test_lost_nodes_are_made_good_from_the_others_memory(tmp_path: Path, protect: str, count: int, lost: int) -> None:
    names = [f"n{n}" for n in range(count)]
    with Nodes(tmp_path / "c", protect, names) as nodes:
        nodes.start(steps=3, launch=0)
        nodes.until("settled")
        nodes.protected(3)
        nodes.kill_ranks()
        for name in names[:lost]:
            nodes.kill_holder(name)
        nodes.start(steps=2, launch=1)
        assert nodes.until("restored") == [["restored 3"]] * count
        nodes.until("settled")
        on_disk = {path.name for path in (tmp_path / "c").glob("step-*")}
        assert on_disk <= {"step-4", "step-5"}, "what was restored was never on disk; what comes after it goes there"
        nodes.finish()
        assert "parity in memory" in nodes.said()


@pytest.mark.long
def test_what_all_ranks_hold_alike_brings_no_share_to_another_node(tmp_path: Path) -> None:
    names = ["n0", "n1"]
    with Nodes(tmp_path / "c", "none", names) as nodes:
        nodes.start(steps=2, launch=0)
        nodes.until("settled")
        nodes.kill_ranks()
        nodes.resume(2)
        assert "restored step-2 in memory (own memory; " in nodes.said()


@pytest.mark.long
def test_two_checkpointers_of_a_training_both_reach_the_other_nodes(tmp_path: Path) -> None:
    names = ["n0", "n1"]
    with Nodes(tmp_path / "a", "replica", names, beside=tmp_path / "b") as nodes:
        nodes.start(steps=2, launch=0)
        nodes.until("settled")
        for directory in nodes.directories:
            nodes.protected(2, directory)
        nodes.kill_ranks()
        nodes.kill_holder("n0")
        nodes.resume(2)


@pytest.mark.long
def test_a_holder_killed_in_the_middle_of_a_transfer_costs_nothing_but_time(tmp_path: Path) -> None:
    """Its ranks live on: they lend their memory to the next one, and the step after is protected again."""
    names = ["n0", "n1", "n2"]
    with Nodes(tmp_path / "c", "xor:2", names) as nodes:
        nodes.start(steps=1, launch=0, RATE="1e6")  # 786 KB a rank: most of a second
        nodes.until("settled")
        nodes.kill_holder("n1")
        nodes.go(1)
        nodes.until("settled")
        nodes.go(1)
        nodes.until("settled")
        nodes.protected(3)
        nodes.kill_ranks()
        nodes.kill_holder("n2")
        nodes.resume(3)
