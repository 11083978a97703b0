"""NCCL's RAS: who has launched how many collectives, as the agents save it and as ncclras prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ras_answers import BEHIND, HEAD, SILENT, answer, comm

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.files import diagnose
from transom_cli.diagnose.hangs.ras import parse
from transom_cli.diagnose.hangs.reader import read_hang
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import AttemptDir
from transom_cli.supervise.launcher.executor import verdict_of


def evidence(tmp_path: Path, said: str) -> Path:
    """Return the evidence of eight ranks on two nodes."""
    attempt = AttemptDir(tmp_path / "12.0")
    folder = attempt.evidence("l1")
    folder.mkdir(parents=True)
    attempt.nodes.mkdir()
    for node in range(2):
        beats = [RankBeat(rank, 0, 5, 9, 0.0, None, "step", 7, "S") for rank in range(4 * node, 4 * node + 4)]
        (attempt.nodes / f"n{node}.beats").write_bytes(encode(NodeTable(f"n{node}", "12.0", 3, tuple(beats))))
    for rank in range(8):
        facts = {"schema": 1, "rank": rank, "pid": 100 + rank, "state": "S"}
        (folder / f"rank-{rank}.proc.json").write_text(json.dumps(facts))
    (folder / "ras-n0.txt").write_text(said)
    return folder


@pytest.mark.parametrize(
    "said",
    [
        HEAD.format("MISMATCH") + BEHIND,
        answer(comm({rank: 6650 - (rank == 5) for rank in range(8)})),
        HEAD.format("INCOMPLETE") + SILENT,
        answer(comm({rank: 6650 for rank in range(8) if rank != 5}, silent=(5,))),
    ],
    ids=["behind, as text", "behind, as JSON", "silent, as text", "silent, as JSON"],
)
def test_the_rank_that_the_others_wait_for_is_the_culprit(tmp_path: Path, said: str) -> None:
    clue, *_ = read_hang(evidence(tmp_path, said))
    assert [(one.rank, one.node) for one in clue.culprits] == [(5, "n1")] and clue.category is Category.NCCL_HANG
    assert "NCCL RAS: rank 5" in clue.evidence[0]
    assert verdict_of((clue,)).nodes == ("n1",), "the launcher suspects its node"


def test_waits_are_followed_over_communicators(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 in a tensor-parallel group; rank 1 waits for rank 5 in a data-parallel one."""
    said = answer(
        comm({0: 90, 1: 89}, "0xa"),
        comm({4: 90, 5: 89}, "0xb"),
        comm({1: 40, 5: 39}, "0xc"),
        comm(dict.fromkeys(range(8), 7), "0xd"),
    )
    clue, *_ = read_hang(evidence(tmp_path, said))
    assert [one.rank for one in clue.culprits] == [5], "ranks 0, 1 and 4 wait themselves"


def test_equal_counts_blame_nobody(tmp_path: Path) -> None:
    (clue,) = read_hang(evidence(tmp_path, answer(comm(dict.fromkeys(range(8), 7)))))
    assert clue.culprits == () and clue.confidence == 0.0
    assert any("have launched the same collectives" in line for line in clue.evidence)


def test_ranks_that_wait_for_each_other_are_all_victims(tmp_path: Path) -> None:
    (clue,) = read_hang(evidence(tmp_path, answer(comm({0: 9, 1: 8}, "0xa"), comm({1: 5, 0: 4}, "0xb"))))
    assert clue.culprits == () and sum("waiting elsewhere themselves" in line for line in clue.evidence) == 2


def test_ranks_are_unknown_if_process_ids_do_not_show_them(tmp_path: Path) -> None:
    folder = evidence(tmp_path, answer(comm({1: 40, 5: 39}, size=2), comm(dict.fromkeys(range(8), 7), "0xd", 16)))
    for rank in range(8):
        (folder / f"rank-{rank}.proc.json").write_text(json.dumps({"rank": rank, "pid": 9, "state": "S"}))
    assert [clue.culprits for clue in read_hang(folder)] == [()], "those of a container differ"


def test_output_of_ncclras_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ncclras.out"
    path.write_text(HEAD.format("MISMATCH")[HEAD.index("NCCL version") :] + BEHIND)
    (comm,) = parse(path.read_text())
    assert comm.counts["AllReduce"] == {rank: 6650 - (rank == 5) for rank in range(8)}
    assert diagnose([path], Rulebook(()))["incidents"] == [], "no rank of a job is known"


@pytest.mark.parametrize("said", ["", "SERVER PROTOCOL 2\nOK\n", "{", '{"communicators": [{"hash": 1, "ranks": 3}]}'])
def test_a_broken_answer_says_nothing(said: str) -> None:
    assert parse(said) == ()
