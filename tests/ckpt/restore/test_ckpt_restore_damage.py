"""Damaged checkpoints and full disks: what is passed over, what is reported, and what never happens."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from ckpt_made import flip, names_in

from transom_cli.ckpt import NoCheckpointRestores, SaveFailed
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.errors import NoCheckpoint

FILES = [".metadata", "__0_0.distcp", "manifest.json"]


def _state(value: float = 0.0, width: int = 64) -> dict:
    return {"w": torch.full((width,), value), "n": value}


@pytest.fixture(scope="module")
def two_good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("good")
    state = _state()
    checkpointer = Checkpointer(state, directory, every=1)
    for step in (1, 2):
        state["w"].fill_(step)
        state["n"] = float(step)
        checkpointer.save(step)
    checkpointer.close(strict=True)
    return directory


@pytest.fixture
def directory(two_good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_good, tmp_path / "checkpoints"))


def _falls_back(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Restores step 1, and returns the one line that says why not step 2."""
    before = sorted(p.name for p in directory.rglob("*"))
    state = _state(9.0)
    assert Checkpointer(state, directory, every=1).restore() == 1
    assert state["n"] == 1.0 and bool((state["w"] == 1).all())
    assert sorted(p.name for p in directory.rglob("*")) == before  # nothing was deleted
    lines = [line for line in capsys.readouterr().err.splitlines() if "passed over" in line]
    assert len(lines) == 1 and lines[0].startswith("transom: passed over step-2: ")
    return lines[0].removeprefix("transom: passed over step-2: ")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file(directory: Path, name: str, capsys: pytest.CaptureFixture[str]):
    path = directory / "step-2" / name
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(size - 1)
    expected = "manifest.json is damaged" if name == "manifest.json" else f"{name} has {size - 1} bytes, not {size}"
    assert _falls_back(directory, capsys).startswith(expected)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.37, 0.5, 0.9, 1.0])
def test_one_flipped_bit(directory: Path, name: str, where: float, capsys: pytest.CaptureFixture[str]):
    path = directory / "step-2" / name
    flip(path, int(where * (path.stat().st_size - 1)))
    assert _falls_back(directory, capsys).startswith(f"{name} is damaged")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(directory: Path, name: str, capsys: pytest.CaptureFixture[str]):
    (directory / "step-2" / name).unlink()
    assert _falls_back(directory, capsys) == f"{name} is missing"


def test_a_checkpoint_under_the_name_of_another(directory: Path, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(directory / "step-2")
    shutil.copytree(directory / "step-1", directory / "step-2")
    assert "it says step 1" in _falls_back(directory, capsys)


def test_a_state_that_does_not_fit_is_not_half_loaded(directory: Path):
    state = {"w": torch.full((65,), 9.0), "n": 9.0}
    with pytest.raises(NoCheckpointRestores) as raised:
        Checkpointer(state, directory, every=1).restore()
    assert "step-2: w is float32[64] in the checkpoint and float32[65] here" in raised.value.why
    assert state["n"] == 9.0 and bool((state["w"] == 9).all())
    with pytest.raises(NoCheckpoint, match="None of the 2"):
        Checkpointer({**_state(), "more": 1}, directory, every=1).restore()


def test_no_checkpoint_at_all_is_a_fresh_start(tmp_path: Path):
    assert Checkpointer(_state(), tmp_path / "new", every=1).restore() is None


def test_all_damaged_ends_the_trainer_with_15(directory: Path):
    for step in (1, 2):
        flip(directory / f"step-{step}" / "__0_0.distcp", 100)
    code = "import sys; from transom_cli.ckpt import Checkpointer; Checkpointer({}, sys.argv[1], every=1).restore()"
    ended = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=False)
    assert ended.returncode == 15
    assert "error: None of the 2 checkpoints in" in ended.stderr
    assert "hint: transom ckpt verify" in ended.stderr
    assert "Traceback" not in ended.stderr


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _training_goes_on(checkpointer: Checkpointer, state: dict, directory: Path, capsys, trouble: str) -> None:
    """`step-2` has just failed; nothing but step-1 is there, and it was told once, and kept."""
    assert names_in(directory) == ["step-1"]
    assert isinstance(checkpointer.last_error, SaveFailed) and trouble in checkpointer.last_error.why
    told = [line for line in capsys.readouterr().err.splitlines() if "was not saved" in line]
    assert len(told) == 1 and told[0].startswith("transom: step-2 was not saved: ") and trouble in told[0]
    with pytest.raises(SaveFailed, match="step-2"):
        checkpointer.wait(strict=True)


def test_failed_write_is_reported_and_the_next_one_works(
    holder_within, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    state = _state(1.0, width=1 << 18)
    checkpointer = Checkpointer(state, tmp_path, every=1)
    checkpointer.save(1)
    checkpointer.wait(strict=True)
    with _largest_file(300_000):
        checkpointer.save(2)
        checkpointer.wait()
    _training_goes_on(checkpointer, state, tmp_path, capsys, "File too large")
    checkpointer.save(3)
    checkpointer.close(strict=True)
    assert checkpointer.last_error is None
    assert Checkpointer(state, tmp_path, every=1).restore() == 3


@pytest.mark.root
def test_a_full_disk(holder_within, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        state = _state(1.0, width=1 << 18)  # 1 MiB: one fits, two do not
        checkpointer = Checkpointer(state, directory, every=1)
        checkpointer.save(1)
        checkpointer.wait(strict=True)
        checkpointer.save(2)
        checkpointer.wait()
        _training_goes_on(checkpointer, state, directory, capsys, "No space left on device")
        assert checkpointer.last_error is not None and checkpointer.last_error.hint.startswith("df -h")
        checkpointer.close()
        assert Checkpointer(state, directory, every=1).restore() == 2, "it is in memory yet"
        (directory / ".memory").write_text("another directory")
        assert Checkpointer(state, directory, every=1).restore() == 1
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)


def test_state_that_cannot_be_copied_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    checkpointer = Checkpointer(state := {"n": 1}, tmp_path, every=1)
    checkpointer.save(1)
    checkpointer.wait(strict=True)
    state["n"] = lambda: None  # torch.save refuses
    checkpointer.save(2)
    checkpointer.wait()
    _training_goes_on(checkpointer, state, tmp_path, capsys, "the state could not be copied")
