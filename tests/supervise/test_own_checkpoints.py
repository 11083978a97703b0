"""The trainer's own newest checkpoint, by its name and place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from transom_cli.ckpt.seal import seal
from transom_cli.layout import RunDir
from transom_cli.supervise.own_checkpoints import newest_own

CREATED = 1000.0


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run, work = RunDir(tmp_path / "run"), tmp_path / "work"
    run.path.mkdir()
    work.mkdir()
    run.settings.write_text("")
    os.utime(run.settings, (CREATED, CREATED))
    run.submission.write_text(json.dumps({"chdir": str(work)}))
    run.script.write_text("srun python train.py --output_dir='models/a' --steps=60\n")
    return run


def checkpoint(run: RunDir, name: str, *, changed: float = CREATED + 10, sealed: int | None = None) -> Path:
    path = run.path.parent / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix:
        path.write_text("state")
    else:
        path.mkdir()
        (path / "model.safetensors").write_text("state")
    if sealed is not None:
        seal(path, sealed)
    os.utime(path, (changed, changed))
    return path


def found(run: RunDir) -> tuple[str, int, bool] | None:
    one = newest_own(run)
    return None if one is None else (one.path, one.step, one.sealed)


def test_newest_in_a_folder_that_the_script_names(run: RunDir) -> None:
    assert found(run) is None
    checkpoint(run, "models/a/checkpoint-90", sealed=90)
    checkpoint(run, "models/a/checkpoint-100")
    checkpoint(run, "models/b/checkpoint-500")  # of another training
    assert found(run) == ("models/a/checkpoint-100", 100, False)
    seal(run.path.parent / "work/models/a/checkpoint-100", 100)
    assert found(run) == ("models/a/checkpoint-100", 100, True)
    checkpoint(run, "models/a/step-110")
    one = newest_own(run, run.path.parent / "work/models/a")
    assert one is not None and one.step == 100, "the Checkpointer publishes it right now"


@pytest.mark.parametrize(
    "name", ["out/epoch=1-step=40.ckpt", "lightning_logs/version_0/checkpoints/epoch=1-step=40.ckpt", "ckpt-40.pt"]
)
def test_newest_beside_the_script_if_it_names_no_folder(run: RunDir, name: str) -> None:
    checkpoint(run, "old/checkpoint-500", changed=CREATED - 10)  # an earlier run's
    assert found(run) is None
    path = checkpoint(run, name)
    assert found(run) == (name, 40, False)
    seal(path, 40)
    assert found(run) == (name, 40, True)


def test_older_checkpoint_counts_only_until_the_run_has_written_one(run: RunDir) -> None:
    checkpoint(run, "models/a/checkpoint-500", changed=CREATED - 10)
    assert found(run) == ("models/a/checkpoint-500", 500, False)
    checkpoint(run, "models/a/checkpoint-20")
    assert found(run) == ("models/a/checkpoint-20", 20, False)


def test_run_that_cannot_be_read_has_none(run: RunDir) -> None:
    run.submission.write_text("{}")
    assert found(run) is None
