"""The example of docs/checkpoints.md runs as it is, and continues from its newest checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.search(r"```python\n(import os\n.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(), re.DOTALL)


README = re.search(r"```python\n(import os\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.long
def test_readme_example_runs_as_copied_on_two_ranks(tmp_path: Path) -> None:
    assert README is not None
    (tmp_path / "train.py").write_text(README[1])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRANSOM_CHECKPOINT_DIR": str(tmp_path / "ck")}
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    for _ in range(2):
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "ck" / "step-200").is_dir()
    assert "restored step-200" in done.stdout + done.stderr


def train(folder: Path, checkpoints: str, steps: int) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRANSOM_CHECKPOINT_DIR": str(folder / checkpoints)}
    words = [sys.executable, "train.py"]
    done = subprocess.run(
        words, cwd=folder, env={**env, "STEPS": str(steps)}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_example_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    assert EXAMPLE is not None
    (tmp_path / "train.py").write_text(EXAMPLE[1])
    whole = train(tmp_path, "whole", 60)
    assert whole.startswith("from step 0\n")
    assert train(tmp_path, "parts", 25).startswith("from step 0\n")
    rest = train(tmp_path, "parts", 60)
    assert rest.startswith("from step 20\n") and rest.splitlines()[1:] == whole.splitlines()[1:]
