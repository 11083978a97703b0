"""A folder of evidence, as the agents leave it or as a person has gathered it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import hang_made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.hangs.reader import gather, is_dump, read_hang
from transom_cli.diagnose.hangs.stacks import Kind
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import AttemptDir

STACK = 'Process 1: x\nPython v3.11.7 (x)\n\nThread 1 (idle): "MainThread"\n    {}\n    step (train.py:9)\n'
WAITS, LOADS = "all_reduce (torch/distributed/distributed_c10d.py:9)", "__next__ (torch/utils/data/dataloader.py:708)"


def stacks(folder: Path, name: str = "rank-{}.stack.txt") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(4):
        path = folder / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STACK.format(LOADS if rank == 2 else WAITS))


def test_evidence_of_an_attempt(tmp_path: Path) -> None:
    """Nodes come from its beat tables, states from /proc's account; the dumps of both kinds count."""
    attempt = AttemptDir(tmp_path / "12.0")
    folder = attempt.evidence("l1")
    made = hang_made.hang("data loader", 8, 5)
    folder.mkdir(parents=True)
    hang_made.write(made, folder)
    for rank in range(8):
        (folder / f"rank-{rank}.proc.json").write_text(json.dumps({"schema": 1, "rank": rank, "state": "S"}))
    (folder / "launcher-n1.stack.txt").write_text(STACK.format(LOADS))
    attempt.nodes.mkdir()
    for node in range(2):
        beats = [RankBeat(rank, 0, 5, 9, 0.0, None, "step", 7, "S") for rank in range(4 * node, 4 * node + 4)]
        (attempt.nodes / f"n{node}.beats").write_bytes(encode(NodeTable(f"n{node}", "12.0", 3, tuple(beats))))
    (attempt.nodes / "n9.beats").write_bytes(b"no table")
    assert len(gather(folder).flights) == 8 and gather(folder, flights=False).flights == {}
    assert sorted(gather(folder).stacks) == list(range(8)) and made.culprits != (1,)
    assert gather(folder).stacks[1].place.kind is not Kind.LOADER, "torchrun is no rank"
    first, second = read_hang(folder)
    assert (first.source, second.source, first.category) == ("collectives", "stacks", Category.DATA_LOADER)
    culprit = first.culprits[0]
    assert culprit.rank in made.culprits and culprit.node == f"n{culprit.rank // 4}" and first.confidence > 0.85


@pytest.mark.parametrize("name", ["rank-{}.stack.txt", "stack_rank_{}.txt", "job.{}.txt", "{}", "rank{}/stack"])
def test_names_of_others(tmp_path: Path, name: str) -> None:
    stacks(tmp_path / "dumps", name)
    (found,) = read_hang(tmp_path / "dumps")
    assert (found.source, [c.rank for c in found.culprits]) == ("stacks", [2])


def test_folders_a_node(tmp_path: Path) -> None:
    for rank in range(4):
        path = tmp_path / f"gpu{rank // 2:03}" / f"rank_{rank}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(STACK.format(LOADS if rank == 2 else WAITS))
    assert [str(c) for c in read_hang(tmp_path)[0].culprits] == ["rank 2 on gpu001"]


def test_torchs_own_names(tmp_path: Path) -> None:
    made = hang_made.hang("CUDA sync", 8, 3)
    for rank in range(8):
        (tmp_path / f"comm_lib_trace_rank_{rank}").write_bytes(hang_made.flight(made, rank))
    (found,) = read_hang(tmp_path)
    assert found.source == "collectives" and found.culprits[0].rank in made.culprits


@pytest.mark.parametrize(
    ("hang", "category", "place", "line"),
    [
        ("loader", Category.DATA_LOADER, "the data loader", "<module> (train.py:18)"),
        ("ckpt", Category.STORAGE_IO, "a checkpoint", "save_checkpoint (train.py:22)"),
        ("lock", Category.NCCL_HANG, "the training's own code", "<module> (train.py:25)"),
    ],
)
def test_recorded_stacks(hang: str, category: Category, place: str, line: str) -> None:
    """Of three ranks of DistributedDataParallel over gloo, by py-spy: with native frames, the last ones without."""
    (found,) = read_hang(Path(__file__).parents[1] / "data" / f"ddp-{hang}")
    assert [c.rank for c in found.culprits] == [1] and found.category is category and found.confidence >= 0.65
    said = f"non-communication hang: rank 1 is in {place}, the others wait; its line is {line}"
    assert found.evidence[0] == said


def test_one_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.stack.txt"
    path.write_text(STACK.format(LOADS))
    (found,) = read_hang(path)
    assert found.category is Category.DATA_LOADER and found.culprits == ()


def test_the_newest_dump_of_a_rank_counts(tmp_path: Path) -> None:
    stacks(tmp_path)
    old = tmp_path / "old" / "rank-2.stack.txt"
    old.parent.mkdir()
    old.write_text(STACK.format(WAITS))
    os.utime(old, (1, 1))
    assert [c.rank for c in read_hang(tmp_path)[0].culprits] == [2]


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    stacks(tmp_path)
    whole = hang_made.dump([hang_made.entry("0", 1, "all_reduce")], {"0": (0, 1)})
    (tmp_path / "fr_rank_1").write_bytes(whole[:-20])
    (tmp_path / "fr_rank_0").write_bytes(whole.replace(b"2.10", b"1.77"))
    (found, _) = read_hang(tmp_path)
    assert [c.rank for c in found.culprits] == [2]
    assert any(x.startswith("rank 1: fr_rank_1: cannot read the flight recorder dump: ") for x in found.evidence)
    assert "rank 0: a dump of version 1.77; versions 2.4 to 2.10 are supported" in found.evidence


def test_nothing_but_dumps_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "fr_rank_1\x1b[31m").write_bytes(b"\x80\x02}X\x09\x00\x00\x00pg_config")
    (found,) = read_hang(tmp_path)
    assert (found.category, found.confidence, found.culprits) == (Category.UNKNOWN, 0.0, ())
    assert "\x1b" not in found.evidence[0]


def test_what_lies_around_is_passed_over(tmp_path: Path) -> None:
    stacks(tmp_path)
    (tmp_path / "rank-7.log").write_text("step 1\n" * 100)
    (tmp_path / "rank-8.stack.txt").write_text("py-spy: permission denied\n")
    (tmp_path / "rank-2.proc.json").write_text("{")
    (tmp_path / "events.9").write_bytes(b"\x80\x04\x00")
    os.mkfifo(tmp_path / "rank-5.pipe")
    (tmp_path / "rank-6.gone").symlink_to(tmp_path / "nowhere")
    assert sorted(gather(tmp_path).stacks) == [0, 1, 2, 3]
    assert not is_dump(tmp_path / "rank-5.pipe")
    assert read_hang(tmp_path / "none") == ()


@given(st.dictionaries(st.sampled_from(["rank-0.stack.txt", "rank-1.flight", "x2", "rank-0.proc.json"]), st.binary()))
def test_any_files_have_an_answer(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert isinstance(read_hang(folder), tuple)
