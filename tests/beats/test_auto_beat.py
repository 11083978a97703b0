"""Beats of a trainer that knows nothing of transom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.beats import places
from transom_cli.beats import record as rec

TRAIN = """
import torch
model = torch.nn.Linear(2, 2)
other = torch.nn.Linear(2, 2)
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.Adam(other.parameters())
def train(optimizer, net, steps):
    for _ in range(steps):
        optimizer.zero_grad(); net(torch.ones(2)).sum().backward(); optimizer.step()
"""


def trainer(code: str, tmp_path: Path, *paths: Path, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    clean["PYTHONPATH"] = ":".join([places.AUTO_BEAT_PATH, *map(str, paths)])
    env = {"TRANSOM_BEAT_DIR": str(tmp_path / "beats"), "RANK": "0"} | env
    (tmp_path / "beats").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", code], env=clean | env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def last(tmp_path: Path) -> rec.Record:
    found = rec.newest((tmp_path / "beats" / "rank-0").read_bytes())
    assert found is not None
    return found


def test_every_step_of_the_first_optimizer_beats(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
train(first, model, 4); train(second, other, 3); train(first, model, 1)
step = torch.compile(first.step, backend="eager")
for _ in range(3): step()
"""
    trainer(TRAIN + code, tmp_path)
    assert (last(tmp_path).step, last(tmp_path).count, rec.PHASES[last(tmp_path).phase]) == (8, 8, "done")


def test_a_call_of_beat_ends_automatic_ones(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = "train(first, model, 2)\nfrom transom_cli import beat\nbeat(100)\ntrain(first, model, 5)"
    trainer(TRAIN + code, tmp_path)
    assert (last(tmp_path).step, last(tmp_path).count) == (100, 3)


def test_without_torch_nothing_of_transom_is_imported(tmp_path: Path) -> None:
    out = trainer("import sys; print([m for m in sys.modules if 'transom' in m or m == 'torch'])", tmp_path)
    assert out == "[]\n" and list((tmp_path / "beats").iterdir()) == []


def test_a_hidden_sitecustomize_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.users_own = __name__\n")
    code = "import sys; print(users_own, sys.modules['sitecustomize'].__file__)"
    assert trainer(code, tmp_path, tmp_path) == f"sitecustomize {tmp_path}/sitecustomize.py\n"


def test_a_torch_without_the_hook_is_left_as_it_is(tmp_path: Path) -> None:
    old = tmp_path / "torch" / "optim"
    old.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (old / "__init__.py").write_text("")
    (old / "optimizer.py").write_text("class Optimizer: pass\n")
    out = trainer("import torch.optim.optimizer as o; print(o.Optimizer.__name__)", tmp_path, tmp_path)
    assert out == "Optimizer\n"


def test_outside_a_run_the_folder_does_nothing(tmp_path: Path) -> None:
    out = trainer(
        "import sys; print([f for f in sys.meta_path if 'Optimizer' in repr(f)])", tmp_path, TRANSOM_BEAT_DIR=""
    )
    assert out == "[]\n"
