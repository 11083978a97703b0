"""Checkpoints of a trainer that is not changed: sealed once complete, verified before the next launch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from transom_cli.ckpt.failures import NoCheckpointRestores
from transom_cli.ckpt.foreign import ForeignSealer, looks_whole, matching, prepare
from transom_cli.ckpt.seal import read_seal, seal

STILL = 0.01


def save(path: Path, size: int = 4000) -> Path:
    """An archive as torch.save writes it: its directory is at the end."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * size)
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def sealer(pattern: Path, since: float = 0.0) -> ForeignSealer:
    made = ForeignSealer(str(pattern), lambda line: pytest.fail(line), still=STILL)
    made._since = since  # without its thread
    return made


def look(one: ForeignSealer, times: int = 3) -> None:
    for _ in range(times):
        one.look()


def test_step_is_the_last_number_of_the_name(tmp_path: Path) -> None:
    for name in ("run2-ckpt-9.pt", "run2-ckpt-10.pt", "run2-ckpt-10.pt.bad-1", "other.txt"):
        (tmp_path / name).touch()
    found = matching(str(tmp_path / "run2-*"))
    assert [(step, path.name) for step, path in found] == [(10, "run2-ckpt-10.pt"), (9, "run2-ckpt-9.pt")]


def test_checkpoint_is_sealed_when_it_has_been_still_for_a_while(tmp_path: Path) -> None:
    made, one = save(tmp_path / "ckpt-10.pt"), sealer(tmp_path / "ckpt-*.pt")
    one.look()
    assert read_seal(made) is None, "it may still be growing"
    look(one)
    found = read_seal(made)
    assert found is not None and found.step == 10
    before = (tmp_path / ".transom-seals" / "ckpt-10.pt.json").stat().st_mtime_ns
    look(one)
    assert (tmp_path / ".transom-seals" / "ckpt-10.pt.json").stat().st_mtime_ns == before, "sealed once"


def test_open_cut_or_earlier_checkpoint_is_not_sealed(tmp_path: Path) -> None:
    opened, short, old = (save(tmp_path / f"ckpt-{n}.pt") for n in (1, 2, 3))
    cut(short)
    os.utime(old, (1, 1))
    with opened.open("ab"):
        look(one := sealer(tmp_path / "ckpt-*.pt", since=100.0))
        assert [read_seal(path) for path in (opened, short, old)] == [None] * 3
    look(one)
    assert read_seal(opened) is not None and read_seal(short) is None


def test_nothing_is_sealed_while_the_launch_is_being_ended(tmp_path: Path) -> None:
    made, one = save(tmp_path / "ckpt-1.pt"), sealer(tmp_path / "ckpt-*.pt")
    one.pause()
    look(one)
    assert read_seal(made) is None


def test_incomplete_folders_are_recognised(tmp_path: Path) -> None:
    dcp, hf = tmp_path / "step-1", tmp_path / "checkpoint-1"
    for folder, first, last in ((dcp, "__0_0.distcp", ".metadata"), (hf, "optimizer.pt", "trainer_state.json")):
        folder.mkdir()
        save(folder / first)
        assert not looks_whole(folder)
        (folder / last).write_text("x")
        assert looks_whole(folder)


def test_half_written_newest_is_renamed_before_the_next_launch(tmp_path: Path) -> None:
    for n in (1, 2):
        seal(save(tmp_path / f"ckpt-{n}.pt"), n)
    cut(save(tmp_path / "ckpt-3.pt"))
    said: list[str] = []
    prepare(str(tmp_path / "ckpt-*.pt"), 0.0, said.append)
    assert [path.name for _, path in matching(str(tmp_path / "ckpt-*"))] == ["ckpt-2.pt", "ckpt-1.pt"]
    assert said == [
        f"transom: {tmp_path}/ckpt-3.pt is not used (the training ended before it was known to be complete); "
        "it was renamed to ckpt-3.pt.unsealed-1"
    ]


def test_damaged_newest_is_renamed_and_without_a_whole_one_the_launch_fails(tmp_path: Path) -> None:
    pattern = str(tmp_path / "ckpt-*.pt")
    first, second = (save(tmp_path / f"ckpt-{n}.pt") for n in (1, 2))
    for n, path in enumerate((first, second), 1):
        seal(path, n)
    cut(second)
    prepare(pattern, 0.0, lambda line: None)
    assert first.exists() and not second.exists()
    cut(first)
    with pytest.raises(NoCheckpointRestores, match=r"No checkpoint of .* is whole"):
        prepare(pattern, 0.0, lambda line: None)


def test_checkpoints_from_before_the_run_are_left_to_the_trainer(tmp_path: Path) -> None:
    made = save(tmp_path / "ckpt-1.pt")
    cut(made)
    prepare(str(tmp_path / "ckpt-*.pt"), made.stat().st_mtime + 1, lambda line: pytest.fail(line))
    assert made.exists()


def test_interrupted_first_checkpoint_is_renamed(tmp_path: Path) -> None:
    cut(save(tmp_path / "ckpt-1.pt"))
    prepare(str(tmp_path / "ckpt-*.pt"), 0.0, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1.pt.unsealed-1"]


def test_the_command_follows_the_verification(tmp_path: Path) -> None:
    cut(save(tmp_path / "ckpt-1.pt"))
    words = [sys.executable, "-m", "transom_cli.ckpt.foreign", "ckpt-*.pt", "0", "--", "echo", "started"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "started\n") and "renamed" in done.stderr
