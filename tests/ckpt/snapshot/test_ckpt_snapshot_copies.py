"""Copies of durable checkpoints in further directories: which checkpoints are copied, and what a failure costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ckpt_made import bare_checkpoint, flip, names_in
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import NoCheckpointRestores, TakenOver
from transom_cli.ckpt.inventory import candidates, verify
from transom_cli.ckpt.names import COPIES_OF
from transom_cli.ckpt.schedule import CopyTurns
from transom_cli.ckpt.snapshot import writer
from transom_cli.errors import UsageError


def steps(directory: Path) -> list[int]:
    """Of what verifies in full."""
    return sorted(found.step for found in candidates(directory) if verify(found).good)


class Two:
    """A trainer with a main directory, and one for every second durable checkpoint."""

    def __init__(self, tmp_path: Path, **more: object) -> None:
        self.main, self.copies = tmp_path / "main", tmp_path / "copies"
        self.state = {"w": torch.zeros(1000)}
        more = {"keep": 2, "also": {self.copies: 2}, **more}
        self.checkpointer = Checkpointer(self.state, self.main, every=1, **more)  # type: ignore[arg-type]

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.state["w"].fill_(step)
            assert self.checkpointer.save(step)
            self.checkpointer.wait(strict=True)
            assert self.checkpointer._snapshots.copied(60.0)

    def restore(self) -> int | None:
        found = self.checkpointer.restore()
        assert found is None or bool((self.state["w"] == found).all())
        return found


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)), st.lists(st.sets(st.sampled_from("abc"))))
def test_every_nth_copy_is_due_and_the_first_and_one_after_a_failure(also: dict[str, int], failing: list[set[str]]):
    turns, counted = CopyTurns({Path(name): every for name, every in also.items()}), dict.fromkeys(also, -1)
    for failed in failing:
        due = [str(path) for path in turns.due()]
        counted = {name: since + 1 if since >= 0 else since for name, since in counted.items()}
        assert due == [name for name, since in counted.items() if since < 0 or since >= also[name]]
        for name in due:
            counted[name] = -1 if name in failed else 0
            if name in failed:
                turns.failed(Path(name))


def test_every_second_is_there_too_with_retention_of_its_own_and_is_restored(tmp_path: Path, capsys):
    two = Two(tmp_path)
    two.train(1, 7)
    two.checkpointer.close(strict=True)
    assert (steps(two.main), steps(two.copies)) == ([6, 7], [5, 7])
    assert (two.copies / COPIES_OF).read_text() == f"{two.main}\n"
    for step in (6, 7):
        flip(two.main / f"step-{step}" / "__0_0.distcp", 100)
    flip(two.copies / "step-7" / ".metadata", 0)
    again = Two(tmp_path)
    assert again.restore() == 5
    said = capsys.readouterr().err
    assert "passed over step-7: __0_0.distcp is damaged" in said
    assert f"passed over step-7 in {two.copies}: .metadata is damaged" in said
    assert f"restored step-5 in {two.copies} (written by attempt" in said
    again.checkpointer.close(strict=True)


def test_main_directory_is_preferred_and_refilled_when_lost(tmp_path: Path, capsys):
    two = Two(tmp_path)
    two.train(1, 1)
    two.checkpointer.close(strict=True)
    again = Two(tmp_path)
    assert again.restore() == 1
    assert "restored step-1 (" in capsys.readouterr().err
    again.checkpointer.close(strict=True)
    files.delete_tree(two.main)
    third = Two(tmp_path)
    assert third.restore() == 1
    third.train(2, 2)
    third.checkpointer.close(strict=True)
    assert (steps(two.main), steps(two.copies)) == ([2], [1, 2]), "the first of a launch goes everywhere"


def test_none_restores_names_all_directories(tmp_path: Path):
    two = Two(tmp_path)
    two.train(1, 1)
    two.checkpointer.close(strict=True)
    for directory in (two.main, two.copies):
        flip(directory / "step-1" / "manifest.json", 10)
    again = Two(tmp_path)
    with pytest.raises(NoCheckpointRestores) as found:
        again.restore()
    assert found.value.what == f"None of the 2 checkpoints in {two.main} and {two.copies} restores"
    again.checkpointer.close()


def test_missing_directory_loses_only_its_copies_and_gets_the_next_one(tmp_path: Path, capsys):
    two = Two(tmp_path)
    two.train(1, 2)
    two.copies.rename(tmp_path / "away")
    two.train(3, 3)
    assert not two.copies.exists(), "nothing is written where nothing is mounted"
    (tmp_path / "away").rename(two.copies)
    two.train(4, 5)
    two.checkpointer.close(strict=True)
    assert f"step-3 was not copied to {two.copies}: its {COPIES_OF} is gone; is it mounted?" in capsys.readouterr().err
    assert (steps(two.main), steps(two.copies)) == ([4, 5], [1, 4])


def test_failure_of_the_last_copy_is_reported_by_close(holder_within, tmp_path: Path, monkeypatch, capsys):
    two = Two(tmp_path)
    real = files.publish

    def publish(work: Path, final: Path) -> None:
        if final.parent == two.copies:
            raise OSError(28, "No space left on device", str(work))
        real(work, final)

    monkeypatch.setattr(files, "publish", publish)
    two.train(1, 1)
    two.checkpointer.close(strict=True)
    assert f"step-1 was not copied to {two.copies}: No space left on device" in capsys.readouterr().err
    assert steps(two.main) == [1] and names_in(two.copies) == [COPIES_OF], "and leaves nothing there"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ("no", "{} is not the same directory on all nodes"),
        ("another", "__0_0.distcp was written and is not there: {} is not shared by all nodes"),
    ],
)
def test_a_node_that_has_a_directory_of_its_own_there(holder_within, tmp_path, monkeypatch, capsys, seen, words):
    """It sees no working directory there, or writes into one that nobody else sees."""
    two = Two(tmp_path)
    real = writer.CheckpointWriter.write
    (tmp_path / "own").mkdir()

    def write(self, step: int, work: Path, names: list[str]):
        if work.parent != two.copies:
            return real(self, step, work, names)
        return real(self, step, tmp_path / "own" if seen == "another" else tmp_path / "copies/none", names)

    monkeypatch.setattr(writer.CheckpointWriter, "write", write)
    two.train(1, 1)
    two.checkpointer.close(strict=True)
    told = words.format(tmp_path / "copies")
    assert f"step-1 was not copied to {two.copies}: {told}" in capsys.readouterr().err
    assert steps(two.main) == [1] and names_in(two.copies) == [COPIES_OF], (
        "the main one stands, and nothing else is left"
    )


def test_close_waits_for_a_copy_that_is_being_written(holder_within, tmp_path: Path, monkeypatch):
    import threading

    two = Two(tmp_path)
    real, go = files.publish, threading.Event()

    def publish(work: Path, final: Path) -> None:
        if final.parent == two.copies:
            assert go.wait(60)
        real(work, final)

    monkeypatch.setattr(files, "publish", publish)
    assert two.checkpointer.save(1)
    two.checkpointer.wait(strict=True)
    assert steps(two.main) == [1] and steps(two.copies) == [], "durable, and nobody waits for the copy"
    for step in (2, 3, 4, 5):
        assert two.checkpointer.save(step), "nor does the training"
        two.checkpointer.wait(strict=True)
    assert not two.checkpointer._snapshots.copied(0.0)
    closing = threading.Thread(target=two.checkpointer.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    go.set()
    closing.join(60)
    assert not closing.is_alive() and steps(two.copies) == [1]


def test_a_newer_launch_has_the_copies_too_and_leftovers_of_the_older_go(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TRANSOM_ATTEMPT", "12.0")
    monkeypatch.setenv("TRANSOM_LAUNCH", "1")
    (tmp_path / "copies").mkdir()
    left = tmp_path / "copies" / ".tmp-step-3-12.0.0-00000000"
    left.mkdir()
    two = Two(tmp_path)
    assert not left.exists()
    two.train(1, 1)
    fence.take(two.copies, "12.0.2")
    two.train(2, 3)
    assert steps(two.copies) == [1] and steps(two.main) == [2, 3]
    two.checkpointer.close(strict=True)
    said = capsys.readouterr().err
    assert f"step-3 was not copied to {two.copies}: launch 12.0.2 has taken over; 12.0.1 publishes" in said
    with pytest.raises(TakenOver, match=r"launch 12\.0\.2 has taken over"):
        Two(tmp_path)


def test_a_directory_that_cannot_be_made_is_left_out(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("in the way")
    two = Two(tmp_path, also={tmp_path / "file" / "x": 1})
    assert two.restore() is None
    two.train(1, 1)
    two.checkpointer.close(strict=True)
    assert steps(two.main) == [1]
    assert f"no checkpoints are copied to {tmp_path / 'file' / 'x'}, and none is looked for" in capsys.readouterr().err


def test_another_trainings_directory_is_refused(tmp_path: Path):
    bare_checkpoint(tmp_path / "copies", 9)
    with pytest.raises(UsageError, match="is not for copies of") as found:
        Two(tmp_path)
    assert "checkpoints are there, and no .copies-of says whose" in found.value.why
    assert names_in(tmp_path / "copies") == ["step-9"]
    (tmp_path / "copies" / COPIES_OF).write_text("/runs/other\n")
    with pytest.raises(UsageError, match="is not for copies of") as found:
        Two(tmp_path)
    assert "it has the copies of /runs/other" in found.value.why
    (tmp_path / "copies" / COPIES_OF).write_text(str(tmp_path / "main"))  # as the hint says
    Two(tmp_path).checkpointer.close()


@pytest.mark.parametrize("every", [0, True, 2.0, "often"])
def test_invalid_arguments_are_refused(tmp_path: Path, every: object):
    with pytest.raises(UsageError, match="must be a number, at least 1"):
        Two(tmp_path, also={tmp_path / "copies": every})


def test_directory_of_copies_cannot_be_given_twice(tmp_path: Path):
    (tmp_path / "main").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "main")
    for also in ({tmp_path / "link": 1}, {tmp_path / "a": 1, str(tmp_path / "b/../a"): 2}):
        with pytest.raises(UsageError, match="must be another directory"):
            Two(tmp_path, also=also)
