"""Heartbeats of a trainer that does not call transom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.heartbeat import paths
from transom_cli.heartbeat import record as rec

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


def trainer(code: str, tmp_path: Path, *folders: Path, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    clean["PYTHONPATH"] = ":".join([paths.AUTO_BEAT_PATH, *map(str, folders)])
    env = {"TRANSOM_BEAT_DIR": str(tmp_path / "beats"), "RANK": "0"} | env
    (tmp_path / "beats").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", code], env=clean | env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def last(tmp_path: Path) -> rec.Record:
    found = rec.newest((tmp_path / "beats" / "rank-0").read_bytes())
    assert found is not None
    return found


@pytest.mark.long
def test_every_step_of_the_first_optimizer_beats_after_its_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
train(first, model, 4); train(second, other, 3); train(first, model, 1)
import os; print(os.environ["TRANSOM_RANK_PID"].endswith(f":{os.getpid()}"))
"""
    assert trainer(TRAIN + code, tmp_path) == "True\n", "Pythons that it starts are no ranks"
    assert (last(tmp_path).step, last(tmp_path).count, rec.PHASES[last(tmp_path).phase]) == (5, 4, "done")
    assert last(tmp_path).since_start, "they are no steps of the training"


@pytest.mark.long
def test_compiled_step_sends_heartbeats_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import logging, warnings
logging.disable()  # torch says that its own profiler is ignored
with warnings.catch_warnings(record=True) as seen:
    step = torch.compile(first.step, backend="eager")
    for _ in range(5): step()
print([str(w.message) for w in seen if "transom" in str(w.message) or "monotonic" in str(w.message)])
"""
    assert trainer(TRAIN + code, tmp_path) == "[]\n"
    assert (last(tmp_path).step, last(tmp_path).count) == (5, 4)


@pytest.mark.long
def test_call_of_beat_ends_automatic_heartbeats(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = "train(first, model, 3)\nfrom transom_cli import beat\nbeat(100)\ntrain(first, model, 5)"
    trainer(TRAIN + code, tmp_path)
    assert (last(tmp_path).step, last(tmp_path).count) == (100, 3)
    assert not last(tmp_path).since_start


@pytest.mark.long
def test_a_trainer_that_beats_from_its_first_step_on_is_never_mixed_with_ours(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = "from transom_cli import beat\nfor i in range(40, 43): train(first, model, 1); beat(i)"
    trainer(TRAIN + code, tmp_path)
    assert (last(tmp_path).step, last(tmp_path).count) == (42, 3)


def test_without_torch_nothing_of_transom_is_imported(tmp_path: Path) -> None:
    out = trainer("import sys; print([m for m in sys.modules if 'transom' in m or m == 'torch'])", tmp_path)
    assert out == "[]\n" and list((tmp_path / "beats").iterdir()) == []


def test_a_hidden_sitecustomize_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.users_own = __name__\n")
    code = "import sys; print(users_own, sys.modules['sitecustomize'].__file__)"
    assert trainer(code, tmp_path, tmp_path) == f"sitecustomize {tmp_path}/sitecustomize.py\n"


def test_torch_without_the_hook_is_unchanged(tmp_path: Path) -> None:
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


@pytest.mark.long
def test_a_resumed_training_counts_from_where_it_resumed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
from transom_cli.heartbeat.client import resumed
resumed(40)
train(first, model, 3)
"""
    trainer(TRAIN + code, tmp_path)
    assert (last(tmp_path).step, last(tmp_path).since_start) == (43, False)


LIGHTNING = """
import signal
signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # as ranks start
import torch
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

class Trainer:
    global_step, optimizers = 0, [None]
"""


def test_lightning_installs_its_handlers_although_ranks_start_with_the_signal_ignored(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    code = "print(_SignalConnector._has_already_handler(signal.SIGUSR2)); signal.signal(signal.SIGUSR2, print)"
    code += "; print(_SignalConnector._has_already_handler(signal.SIGUSR2))"
    assert trainer(LIGHTNING + code, tmp_path) == "False\nTrue\n"


@pytest.mark.parametrize(("optimizers", "step", "since_start"), ((1, 215, False), (2, 5, True)))
def test_lightnings_trainer_tells_the_step(tmp_path: Path, optimizers: int, step: int, since_start: bool) -> None:
    pytest.importorskip("lightning")
    code = f"""
made = _SignalConnector(trainer := Trainer())
trainer.optimizers, trainer.global_step = [None] * {optimizers}, 210
for _ in range(5):
    train(first, model, 1)
    trainer.global_step += 1
"""
    trainer(LIGHTNING + TRAIN + code, tmp_path)
    assert (last(tmp_path).step, last(tmp_path).since_start) == (step, since_start)
