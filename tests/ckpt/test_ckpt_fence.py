"""A rank of an older launch publishes no checkpoint, and deletes none, once a newer launch has started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ckpt_made import bare_checkpoint, flip, names_in

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.inventory import candidates

Make = Callable[..., Checkpointer]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def checkpointer(attempt: str, launch: str, keep: int = 2) -> Checkpointer:
        monkeypatch.setenv("TRANSOM_ATTEMPT", attempt)
        monkeypatch.setenv("TRANSOM_LAUNCH", launch)
        return Checkpointer({"w": torch.arange(8.0)}, tmp_path, every=1, keep=keep)

    return checkpointer


def steps(directory: Path) -> list[int]:
    return sorted(c.step for c in candidates(directory))


def saved(checkpointer: Checkpointer, step: int) -> str:
    """Why the step was not saved; "" when it was."""
    checkpointer.save(step)
    checkpointer.wait()
    return checkpointer.last_error.why if checkpointer.last_error else ""


def test_a_stale_rank_publishes_nothing_and_deletes_nothing(tmp_path: Path, make: Make) -> None:
    fence.take(tmp_path, "12.0.0")
    stale = make("12.0", "0", keep=1)
    assert saved(stale, 1) == ""
    fence.take(tmp_path, "12.0.1")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    assert saved(stale, 2) == "launch 12.0.1 has taken over; 12.0.0 publishes and deletes no more checkpoints"
    assert sorted(p.name for p in tmp_path.rglob("*")) == before, "nothing of it is left either"
    assert saved(make("12.0", "1"), 2) == ""
    assert steps(tmp_path) == [1, 2]
    stale.close()


def test_taken_over_between_the_rename_and_the_removal_of_old_ones(
    holder_within, tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpointer = make("12.0", "0", keep=1)
    assert saved(checkpointer, 1) == ""
    real = files.publish

    def then_taken_over(work: Path, final: Path) -> None:
        real(work, final)
        fence.take(tmp_path, "13.0.0")

    monkeypatch.setattr(files, "publish", then_taken_over)
    assert saved(checkpointer, 2) == ""
    assert steps(tmp_path) == [1, 2]
    assert "old checkpoints could not be removed: launch 13.0.0 has taken over" in capsys.readouterr().err


def test_a_stale_rank_moves_no_bad_checkpoint_out_of_the_way(tmp_path: Path, make: Make) -> None:
    flip(bare_checkpoint(tmp_path, 2) / "__0_0.distcp", 3)
    stale = make("12.0", "3")
    fence.take(tmp_path, "12.1.0")
    assert saved(stale, 2).startswith("launch 12.1.0 has taken over")
    assert names_in(tmp_path) == [".fence", "step-2"]


def fence_of_an_older(folder: Path) -> None:
    fence.take(folder, "12.0.0")


def fence_of_its_own(folder: Path) -> None:
    fence.take(folder, "12.1.0")


def no_fence(_: Path) -> None:
    pass


def nonsense(folder: Path) -> None:
    (folder / ".fence").write_bytes(b"\xff 99.9.9")


def unreadable(folder: Path) -> None:
    (folder / ".fence").mkdir()


@pytest.mark.parametrize("left", [no_fence, fence_of_an_older, fence_of_its_own, nonsense, unreadable])
def test_harmless_differences_are_accepted(tmp_path: Path, make: Make, left: Callable[[Path], None]) -> None:
    left(tmp_path)
    assert saved(make("12.1", "0"), 1) == ""
    assert steps(tmp_path) == [1]


def test_trainer_started_by_hand_is_not_fenced(tmp_path: Path, make: Make) -> None:
    fence.take(tmp_path, "12.0.0")
    assert saved(make("", ""), 1) == ""
    assert (tmp_path / ".fence").read_text() == "12.0.0\n", "and takes over from nobody"


@pytest.mark.parametrize(
    ("older", "newer"), [("12.0.0", "12.0.1"), ("12.0.9", "12.1.0"), ("12.9.9", "13.0.0"), ("9.0.0", "10.0.0")]
)
def test_newer_launch_keeps_the_fence(tmp_path: Path, older: str, newer: str) -> None:
    for launch in (older, newer, newer):
        fence.take(tmp_path / "made", launch)
    with pytest.raises(TakenOver, match=f"launch {newer} has taken over the checkpoints; .*remove .*/made/.fence"):
        fence.take(tmp_path / "made", older)
    assert (tmp_path / "made" / ".fence").read_text() == f"{newer}\n"
    assert names_in(tmp_path / "made") == [".fence"]


def test_directory_unknown_to_the_launcher_is_fenced_by_the_first_rank(tmp_path: Path, make: Make) -> None:
    stale = make("12.0", "0")
    assert saved(stale, 1) == ""
    newer = make("12.0", "1")
    assert saved(stale, 2) == "launch 12.0.1 has taken over; 12.0.0 publishes and deletes no more checkpoints"
    assert saved(newer, 2) == ""
    assert steps(tmp_path) == [1, 2]


def test_late_stale_rank_is_refused_at_once(tmp_path: Path, make: Make) -> None:
    make("12.1", "0")
    left = tmp_path / ".tmp-step-3-12.0.2-0badcafe"
    left.mkdir()
    with pytest.raises(TakenOver, match=r"launch 12\.1\.0 has taken over the checkpoints"):
        make("12.0", "3")
    assert left.exists(), "it has removed nothing"
    assert (tmp_path / ".fence").read_text() == "12.1.0\n"


def test_ranks_do_not_rewrite_the_launchers_fence(tmp_path: Path, make: Make) -> None:
    fence.take(tmp_path, "12.0.1")
    before = (tmp_path / ".fence").stat()
    make("12.0", "1")
    assert (tmp_path / ".fence").stat().st_ino == before.st_ino
