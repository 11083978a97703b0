"""A checkpoint is data: its bytes never make a reader run code, unless the reader allows it."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from typer.testing import CliRunner

from transom_cli.ckpt import files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import NoCheckpointRestores
from transom_cli.ckpt.manifest import Manifest, encode
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.errors import TransomError, UsageError


class Program:
    """A value that runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._marker}",)


class Curriculum:
    """An object of the trainer's own."""

    def __init__(self, stage: int) -> None:
        self.stage = stage


def _sealed(path: Path, step: int) -> Path:
    """A manifest that matches: anyone who can write the files can write it too."""
    (path / "manifest.json").unlink(missing_ok=True)
    entries = tuple(files.measure(file) for file in sorted(path.iterdir()))
    manifest = Manifest(step, 1, "1.0", str(torch.__version__), "2026-01-01T00:00:00+00:00", entries)
    files.write_new(path / "manifest.json", encode(manifest))
    return path


def _stored(directory: Path, step: int, **entries: Any) -> Path:
    """A checkpoint as a Checkpointer writes it, made by stock torch, with anything in it."""
    path = directory / f"step-{step}"
    rng = {"python": random.getstate(), "torch": torch.get_rng_state()}
    state = {**entries, "ranks": {"0": {"rng": rng}}}
    dcp.save(state, storage_writer=FileSystemWriter(path), no_dist=True)
    return _sealed(path, step)


def _with_planted_metadata(directory: Path, step: int, planted: object) -> Path:
    path = _stored(directory, step, note="x", weights=torch.ones(3))
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.storage_meta = planted
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    return _sealed(path, step)


def _run(*words: object) -> Any:
    return CliRunner().invoke(ckpt_app, [str(word) for word in words])


def _restore(directory: Path, **how: Any) -> tuple[int | None, dict[str, Any]]:
    state: dict[str, Any] = {"note": None, "weights": torch.zeros(3)}
    checkpointer = Checkpointer(state, directory, every=1, **how)
    try:
        return checkpointer.restore(), state
    finally:
        checkpointer.close()


@pytest.fixture(params=["metadata", "value"])
def crafted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A directory whose one checkpoint has a program in it, and the file that appears when the program runs."""
    directory, marker = tmp_path / "checkpoints", tmp_path / "it-ran"
    if request.param == "metadata":
        _with_planted_metadata(directory, 7, Program(marker))
    else:
        _stored(directory, 7, note=Program(marker), weights=torch.ones(3))
    assert _run("verify", directory).exit_code == 0  # its bytes are those of its manifest
    assert not marker.exists()
    return directory, marker


def test_export_of_a_crafted_checkpoint_runs_nothing_and_names_the_program(crafted: tuple[Path, Path], tmp_path: Path):
    directory, marker = crafted
    error = _run("export", directory, "-o", tmp_path / "out.pt").exception
    assert not marker.exists()
    assert isinstance(error, TransomError), error
    assert error.exit_code == 13 and "posix.system" in str(error) and "--allow-code" in error.hint
    assert not (tmp_path / "out.pt").exists()


def test_restore_of_a_crafted_checkpoint_runs_nothing_and_names_the_program(
    crafted: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
):
    directory, marker = crafted
    with pytest.raises(NoCheckpointRestores) as caught:
        _restore(directory)
    assert not marker.exists()
    assert "posix.system" in caught.value.why and "allow_code=True" in caught.value.why
    assert "posix.system" in capfd.readouterr().err


def test_a_crafted_checkpoint_does_not_hide_the_good_one_before_it(crafted: tuple[Path, Path]):
    directory, marker = crafted
    _stored(directory, 3, note="good", weights=torch.full((3,), 2.0))
    step, state = _restore(directory)
    assert step == 3 and state["note"] == "good" and not marker.exists()


def test_code_runs_where_the_reader_allows_it(tmp_path: Path):
    directory = tmp_path / "checkpoints"
    _stored(directory, 7, note=Curriculum(4), weights=torch.ones(3))
    result = _run("export", directory, "-o", tmp_path / "out.pt", "--allow-code", "--json")
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["exported"]["needs_code"] == ["note"]
    step, state = _restore(directory, allow_code=True)
    assert step == 7 and state["note"].stage == 4


def test_other_parts_of_a_crafted_checkpoint_can_be_exported(tmp_path: Path):
    directory, marker = tmp_path / "checkpoints", tmp_path / "it-ran"
    _stored(directory, 7, note=Program(marker), weights=torch.ones(3))
    assert _run("export", directory, "-o", tmp_path / "out.pt", "--only", "weights").exit_code == 0
    assert torch.equal(torch.load(tmp_path / "out.pt")["weights"], torch.ones(3)) and not marker.exists()


def test_metadata_that_points_outside_the_checkpoint_is_refused(tmp_path: Path):
    directory = tmp_path / "checkpoints"
    path = _stored(directory, 7, note="x", weights=torch.ones(3))
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = f"../../{info.relative_path}"
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    _sealed(path, 7)
    error = _run("export", directory, "-o", tmp_path / "out.pt").exception
    assert isinstance(error, TransomError) and "outside" in str(error)


VALUES = {
    "plain": {1: [None, True, 2.5, "text", b"bytes", 1 << 80, 1j], "empty": {}},
    "containers": [deque([1, 2], maxlen=3), defaultdict(list, a=[1]), OrderedDict(a=1), Counter("aab"), {1, 2}],
    "frozen": (frozenset({1}), slice(1, 2), range(3), bytearray(b"x")),
    "times": [
        datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        datetime.date(2026, 1, 2),
        datetime.timedelta(seconds=1),
    ],
    "path": [PurePosixPath("/data/shard-1")],
    "numbers": [np.float32(1.5), np.int64(3), np.bool_(True)],
    "torch": (torch.float16, torch.Size([2, 3]), torch.device("cpu")),
    "nested": deque([{"loss": np.float64(2.0), "when": datetime.date(2026, 1, 2)}, torch.float32]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_the_standard_library_numpy_and_torch_are_restored_without_a_flag(kind: str, tmp_path: Path):
    saved = Checkpointer({"note": VALUES[kind], "weights": torch.ones(3)}, tmp_path, every=1)
    saved.save(1)
    saved.close(strict=True)
    step, state = _restore(tmp_path)
    assert step == 1 and state["note"] == VALUES[kind] and type(state["note"]) is type(VALUES[kind])


def test_arrays_and_tensors_within_values_are_restored_without_a_flag(tmp_path: Path):
    random_numbers = np.random.default_rng(1).bit_generator.state
    inner = (np.arange(3), np.array(["a", "bc"]), deque([torch.arange(3)]), np.random.get_state(), random_numbers)
    saved = Checkpointer({"note": inner, "weights": torch.ones(3)}, tmp_path, every=1)
    saved.save(1)
    saved.close(strict=True)
    _, state = _restore(tmp_path)
    numbers, texts, tensors, legacy, newer = state["note"]
    assert numbers.tolist() == [0, 1, 2] and texts.tolist() == ["a", "bc"] and torch.equal(tensors[0], torch.arange(3))
    assert (legacy[1] == inner[3][1]).all() and newer == random_numbers


def test_an_object_that_could_not_be_restored_is_refused_before_training(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        Checkpointer({"note": Curriculum(1)}, tmp_path, every=1)
    assert "Curriculum" in str(caught.value) and "`note`" in str(caught.value)
    assert "allow_code=True" in caught.value.hint and "add_safe_globals" in caught.value.hint
    Checkpointer({"note": Curriculum(1)}, tmp_path, every=1, allow_code=True).close()


def test_an_object_that_appears_later_is_saved_with_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    state: dict[str, Any] = {"note": None, "weights": torch.ones(3)}
    saved = Checkpointer(state, tmp_path, every=1)
    state["note"] = Curriculum(5)
    for step in (1, 2):
        saved.save(step)
        saved.wait(strict=True)
    saved.close(strict=True)
    told = capfd.readouterr().err
    assert told.count("Curriculum") == 1 and "allow_code=True" in told
    with pytest.raises(NoCheckpointRestores):
        _restore(tmp_path)
    assert _restore(tmp_path, allow_code=True)[1]["note"].stage == 5


def test_classes_that_the_trainer_declares_safe_are_restored_without_a_flag(tmp_path: Path):
    with torch.serialization.safe_globals([Curriculum]):
        saved = Checkpointer({"note": Curriculum(6), "weights": torch.ones(3)}, tmp_path, every=1)
        saved.save(1)
        saved.close(strict=True)
        assert _restore(tmp_path)[1]["note"].stage == 6
