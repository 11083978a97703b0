"""Which heartbeat tables the screens show: those of the launcher's one file, or of the nodes' own files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transom_cli.heartbeat.aggregate import Part, encode_all
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import AttemptDir
from transom_cli.view.read_nodes import CURRENT, NodeReader

AT = 1_700_000_000.0


class Attempt:
    def __init__(self, folder: Path) -> None:
        self.dir = AttemptDir(folder / "7.0")
        self.dir.nodes.mkdir(parents=True)
        self.number = 0

    def own(self, node: str, step: int, at: float) -> None:
        path = self.dir.nodes / f"{node}.beats"
        path.write_bytes(encode(self.table(node, step)))
        os.utime(path, (at, at))

    def together(self, step: int, at: float, **ages: float) -> None:
        self.number += 1
        parts = [Part(encode(self.table(node, step)), age, (0.0,)) for node, age in ages.items()]
        self.dir.heartbeats.write_bytes(encode_all(self.number, parts))
        os.utime(self.dir.heartbeats, (at, at))

    def table(self, node: str, step: int) -> NodeTable:
        rank = int(node[1:])
        return NodeTable(node, "7.0", step, (RankBeat(rank, 0, step, step, 0.1, None, "step", 9, "R"),))


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(tmp_path)
    for node in ("n1", "n2", "n3"):
        made.own(node, 10, AT - 9.0)
    made.together(50, AT, n1=0.5, n2=0.0, n3=20.0)
    return made


def steps(reader: NodeReader, attempt: Attempt) -> tuple[list[int], list[float]]:
    sights, _ = reader.read(attempt.dir)
    tables = [sight.table.seq for sight in sights.values() if sight.table is not None]
    return tables, [round(sight.behind, 1) for sight in sights.values()]


def test_the_launchers_file_counts_while_it_is_current(attempt: Attempt) -> None:
    reader = NodeReader()
    assert steps(reader, attempt) == ([50, 50, 50], [0.5, 0.0, 20.0])
    attempt.own("n2", 54, AT + 4.0)
    assert steps(reader, attempt)[0] == [50, 50, 50], "a node's rare file makes the others no late ones"
    attempt.together(55, AT + 5.0, n1=0.0, n2=0.0, n3=25.0)
    assert steps(reader, attempt) == ([55, 55, 55], [0.0, 0.0, 25.0])


def test_the_nodes_own_files_count_when_the_launcher_is_silent(attempt: Attempt) -> None:
    reader = NodeReader()
    steps(reader, attempt)
    for node in ("n1", "n3"):
        attempt.own(node, 60, AT + CURRENT + 1.0)
    assert steps(reader, attempt)[0] == [60, 50, 60], "the newest of each"


def test_the_last_tables_count_when_the_attempt_is_over(attempt: Attempt) -> None:
    for node in ("n1", "n2", "n3"):
        attempt.own(node, 52, AT + 1.0)
    attempt.dir.outcome.write_text("{}")
    assert steps(NodeReader(), attempt)[0] == [52, 52, 52]


def test_a_damaged_file_of_all_tables_is_as_good_as_none(attempt: Attempt) -> None:
    attempt.dir.heartbeats.write_bytes(b"nonsense")
    assert steps(NodeReader(), attempt)[0] == [10, 10, 10]
