"""A snapshot in memory outlives changes of nodes and ranks until a newer one counts, and its loss is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ckpt_memory_nodes import Nodes
from ckpt_memory_nodes_worker import WIDTH

FOUR_TO_TWO = pytest.param(["a", "a", "b", "b"], ["a", "b"], "none", [], id="4-ranks-become-2", marks=pytest.mark.long)
SWITCHED = pytest.param(["a", "b"], ["b", "a"], "none", [], id="nodes-in-another-order")
MOVED = ["a", "b", "c"], ["a", "c", "d"]
REPLICA = pytest.param(*MOVED, "replica", ["b"], id="replica-b-replaced-by-d", marks=pytest.mark.long)
XOR = pytest.param(*MOVED, "xor:2", ["b"], id="xor-b-replaced-by-d", marks=pytest.mark.long)
LAYOUTS = pytest.mark.parametrize(("before", "after", "protect", "lost"), [FOUR_TO_TWO, SWITCHED, REPLICA, XOR])


def save_three(nodes: Nodes, lost: list[str], scale: int = 1) -> dict[str, str]:
    """Three steps in memory alone, then every rank is killed, and the `lost` nodes with what they hold."""
    total = {"TOTAL": str(WIDTH * len(nodes.names) * scale)}
    nodes.start(steps=3, launch=0, **total)
    nodes.until("settled")
    if nodes.protect != "none":
        nodes.protected(3)
    nodes.kill_ranks()
    for name in lost:
        nodes.kill_holder(name)
    return total


def restore_and_die(nodes: Nodes, launch: int, total: dict[str, str]) -> None:
    """All ranks restore step 3, bit for bit, and are killed before they have saved."""
    nodes.start(steps=1, launch=launch, HOLD="1", **total)
    assert nodes.until("restored") == [["restored 3"]] * len(nodes.names)
    nodes.kill_ranks()


def refused(nodes: Nodes, launch: int, **env: str) -> str:
    """No rank starts to train; every one exits with code 15. Returns what rank 0 said."""
    nodes.start(steps=1, launch=launch, **env)
    ends = [rank.communicate(timeout=120) for rank in nodes.ranks]
    assert [rank.returncode for rank in nodes.ranks] == [15] * len(nodes.ranks), ends
    assert not any(out for out, _ in ends)
    return ends[0][1]


@pytest.mark.long
@LAYOUTS
def test_snapshot_restored_on_other_nodes_is_there_again_after_the_next_kill(
    tmp_path: Path, before: list[str], after: list[str], protect: str, lost: list[str]
) -> None:
    with Nodes(tmp_path / "c", protect, before) as nodes:
        total = save_three(nodes, lost)
        nodes.move(after)
        restore_and_die(nodes, 1, total)
        restore_and_die(nodes, 2, total)
        assert not list((tmp_path / "c").glob("step-*")), "it was in memory alone all the time"
        nodes.start(steps=2, launch=3, **total)
        assert nodes.until("restored") == [["restored 3"]] * len(after)
        nodes.until("settled")
        if protect != "none":
            nodes.protected(5)
        nodes.kill_ranks()
        nodes.start(steps=1, launch=4, HOLD="1", **total)
        assert nodes.until("restored") == [["restored 5"]] * len(after)
        nodes.kill_ranks()
        nodes.kill_holders()
        for saved in (tmp_path / "c").glob("step-*"):  # the first save after a restore from memory is durable
            shutil.rmtree(saved)
        said = refused(nodes, 5, **total)
        assert "step 4 or a later one was saved in the memory of" in said, said


@pytest.mark.long
def test_memory_of_replaced_ranks_is_given_back_when_a_newer_step_counts(tmp_path: Path) -> None:
    with Nodes(tmp_path / "c", "none", ["a", "a", "b", "b"]) as nodes:
        total = save_three(nodes, [])
        nodes.move(["a", "b"])
        nodes.start(steps=1, launch=1, HOLD="1", **total)
        nodes.until("restored")
        assert sorted(held["rank"] for held in nodes.held("b")[3]) == [2, 3]
        nodes.go(1)
        nodes.until("settled")
        assert 3 not in nodes.held("b") and nodes.held("b")[4] != []


@pytest.mark.parametrize(("room", "to_disk"), [(96, False), (24, True)])
@pytest.mark.long
def test_without_room_for_both_the_restored_step_is_on_disk_before_its_memory_is_used(
    tmp_path: Path, room: int, to_disk: bool
) -> None:
    """`room`: MiB for the snapshots of a node, the old ones counted. An old buffer has 8 MiB, a new one 14."""
    with Nodes(tmp_path / "c", "none", ["a", "a", "b", "b"]) as nodes:
        total = save_three(nodes, [], scale=8)
        nodes.move(["a", "b"])
        nodes.start(steps=1, launch=1, HOLD="1", ROOM=str(room << 20), **total)
        assert nodes.until("restored") == [["restored 3"]] * 2
        nodes.go(1)
        nodes.until("settled")
        nodes.kill_ranks()
        said = nodes.said()
        assert "was not saved" not in said
        assert ("step 3, restored from memory, is written to disk" in said) == to_disk, said
        assert (tmp_path / "c" / "step-3").exists() == to_disk
        nodes.start(steps=1, launch=2, HOLD="1", **total)
        assert nodes.until("restored") == [["restored 4"]] * 2


def test_first_start_of_a_run_begins_at_step_0(tmp_path: Path) -> None:
    with Nodes(tmp_path / "c", "none", ["a", "b"]) as nodes:
        nodes.start(steps=1, launch=0, HOLD="1")
        assert nodes.until("restored") == [["restored 0"]] * 2
        nodes.kill_ranks()
        nodes.kill_holders()
        nodes.start(steps=1, launch=1, HOLD="1")  # nothing was saved yet
        assert nodes.until("restored") == [["restored 0"]] * 2


def test_lost_snapshot_is_an_error_that_names_step_place_and_remedy(tmp_path: Path) -> None:
    with Nodes(tmp_path / "c", "none", ["a", "b"]) as nodes:
        save_three(nodes, ["a", "b"])
        nodes.move(["a", "c"])
        said = refused(nodes, 1)
        assert "step 1 or a later one was saved in the memory of a, b by attempt 7.0.0" in said, said
        assert "b takes no part in this launch" in said, said
        (remedy,) = [line for line in said.splitlines() if "to start from the beginning" in line]
        record = tmp_path / "c" / ".saved"
        assert str(record) in remedy
        record.unlink()
        nodes.start(steps=1, launch=2, HOLD="1")
        assert nodes.until("restored") == [["restored 0"]] * 2


@pytest.mark.long
def test_one_node_of_two_lost_without_protection_is_an_error(tmp_path: Path) -> None:
    with Nodes(tmp_path / "c", "none", ["a", "b"]) as nodes:
        save_three(nodes, ["b"])
        said = refused(nodes, 1)
        assert "step-3 in memory" in said and "__1_0.distcp: no parity of it is held" in said, said


@pytest.mark.long
def test_lost_checkpoints_directory_is_an_error_where_the_run_knows_of_it(tmp_path: Path) -> None:
    run = {"TRANSOM_RUN_DIR": str(tmp_path / "run")}
    (tmp_path / "run").mkdir()
    with Nodes(tmp_path / "c", "none", ["a"]) as nodes:
        nodes.start(steps=2, launch=0, **run)
        nodes.until("settled")
        nodes.finish()
        assert list((tmp_path / "c").glob("step-*")), "durable"
        (tmp_path / "c").rename(tmp_path / "not-mounted")
        assert str(tmp_path / "c") in refused(nodes, 1, **run)
        (tmp_path / "c").rename(tmp_path / "other")
        (tmp_path / "not-mounted").rename(tmp_path / "c")
        nodes.start(steps=1, launch=2, HOLD="1", **run)
        assert nodes.until("restored") == [["restored 2"]]


@pytest.mark.long
def test_older_durable_checkpoint_is_used_where_newer_memory_is_lost(tmp_path: Path) -> None:
    with Nodes(tmp_path / "c", "none", ["a", "b"]) as nodes:
        nodes.start(steps=2, launch=0)
        nodes.until("settled")
        nodes.finish()
        nodes.start(steps=2, launch=1)
        nodes.until("settled")
        nodes.kill_ranks()
        nodes.kill_holders()
        nodes.start(steps=1, launch=2, HOLD="1")
        assert nodes.until("restored") == [["restored 2"]] * 2
        nodes.kill_ranks()
        said = nodes.said()
        assert "step 3 or a later one was saved" in said and "is lost: training continues from step 2" in said, said
