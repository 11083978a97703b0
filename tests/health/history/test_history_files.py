"""The history files: one writer each, damaged lines skipped, private to the user, removed when old."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from transom_cli.health.history.files import HistoryFile, history_dir, read_history, write_lift
from transom_cli.health.history.nodes import REMEMBERED
from transom_cli.health.history.records import Lift, Over, RunOver

NOW = time.time()
ONE, TWO, THREE = Over(NOW - 3, "r", "n1"), Over(NOW - 2, "r", "n2"), RunOver(NOW - 1, "r")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "nodes"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_no_history_is_an_empty_one(folder: Path) -> None:
    assert read_history(folder, NOW) == []
    assert not folder.exists(), "who only looks makes nothing"


def test_each_writer_has_a_file_and_readers_see_all(folder: Path) -> None:
    HistoryFile(folder, "a").add([ONE])
    HistoryFile(folder, "b").add([TWO])
    write_lift(folder, Lift(NOW, "ann", ("n1",)))
    assert set(read_history(folder, NOW)) == {ONE, TWO, Lift(NOW, "ann", ("n1",))}
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_existing_records_are_not_written_again(folder: Path) -> None:
    HistoryFile(folder, "r").add([ONE, ONE, TWO])
    HistoryFile(folder, "r").add([ONE, TWO, THREE])
    assert read_history(folder, NOW) == [ONE, TWO, THREE]


@pytest.mark.parametrize(
    "damage", [b'{"type": "Over", "wall": 2', b"\xff\xfe\n", b"[1]\nnull\n", b'{"type": "Over"}\n']
)
def test_a_damaged_line_costs_itself_alone(folder: Path, damage: bytes) -> None:
    file = HistoryFile(folder, "r")
    file.add([ONE])
    with (folder / "r.jsonl").open("ab") as f:
        f.write(damage)
    HistoryFile(folder, "r").add([ONE, TWO])
    assert read_history(folder, NOW) == [ONE, TWO]


def test_what_cannot_be_read_is_passed_over_and_strange_files_too(folder: Path) -> None:
    HistoryFile(folder, "r").add([ONE])
    (folder / "dangling.jsonl").symlink_to("nowhere")
    (folder / "folder.jsonl").mkdir()
    (folder / ".lift-1.json.tmp").write_text("{}")
    (folder / "notes.txt").write_text("{}")
    assert read_history(folder, NOW) == [ONE]


def test_files_of_runs_long_gone_are_removed_by_the_next_writer(folder: Path) -> None:
    HistoryFile(folder, "old").add([ONE])
    write_lift(folder, Lift(NOW, "ann", ("n1",)))
    long_ago = NOW - 100 * 365 * 86400.0
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    (folder / "notes.txt").write_text("mine")
    os.utime(folder / "notes.txt", (long_ago, long_ago))
    assert read_history(folder, long_ago + REMEMBERED + 60) == []
    HistoryFile(folder, "new").add([TWO])
    assert sorted(path.name for path in folder.iterdir()) == ["new.jsonl", "notes.txt"]


def test_where_it_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_dir({}) == tmp_path / ".transom" / "nodes"
    assert history_dir({"TRANSOM_STATE_DIR": "/srv/ann"}) == Path("/srv/ann/nodes")
