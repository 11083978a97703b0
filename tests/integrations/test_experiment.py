"""W&B, MLflow and TensorBoard over two attempts of a run, with the real packages (`make test-frameworks` has them)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.heartbeat import paths

PREPARE = "from transom_cli.integrations import experiment; experiment.prepare(); "


def attempt(run: Path, code: str, **env: str) -> str:
    """Run a trainer's code in an attempt of `run`; return the last line that it prints."""
    run.mkdir(exist_ok=True)
    base = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_", "TRANSOM_"))}
    env = {**base, paths.RUN_DIR: str(run), "RANK": "0", "WANDB_MODE": "offline", "WANDB_SILENT": "true", **env}
    done = subprocess.run(
        (sys.executable, "-c", PREPARE + code),
        env=env,
        cwd=run,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def test_variables_are_set_on_rank_0_of_a_run_and_never_replaced(tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('WANDB_RUN_ID'), os.environ.get('WANDB_RESUME'))"
    one, other = tmp_path / "one", tmp_path / "other"
    first = attempt(one, code)
    assert first.startswith("one-") and first.endswith(" allow")
    assert attempt(one, code) == first != attempt(other, code)
    assert attempt(one, code, RANK="1") == "None None"
    assert attempt(one, code, WANDB_RUN_ID="mine") == "mine None"


def test_wandb_continues_one_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = "import wandb; run = wandb.init(project='p'); run.log({'loss': 1.0}); print(run.id, run.settings.resume)"
    first = attempt(tmp_path / "run", code)
    assert first == attempt(tmp_path / "run", code)
    assert first.startswith("run-") and first.endswith(" allow")


def test_mlflow_continues_the_first_attempts_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    code = "import mlflow; run = mlflow.start_run(); experiment.keep(); print(run.info.run_id)"
    store = (tmp_path / "mlruns").as_uri()
    here = {"MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}
    first = attempt(tmp_path / "run", code, **here)
    assert attempt(tmp_path / "run", code, **here) == first
    elsewhere = {**here, "MLFLOW_TRACKING_URI": (tmp_path / "elsewhere").as_uri()}
    assert attempt(tmp_path / "run", code, **elsewhere) != first, "another server does not know the run"


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code = """
from torch.utils.tensorboard import SummaryWriter
import os
if {resumed} >= 0:
    experiment.resume_after({resumed})
with SummaryWriter(os.environ["TENSORBOARD_LOGGING_DIR"]) as writer:
    for step in range({resumed} + 1, {end} + 1):
        writer.add_scalar("loss", {end}, step)
"""
    run = tmp_path / "run"
    attempt(run, code.format(resumed=-1, end=7))  # killed at step 7; its newest checkpoint is of step 4
    attempt(run, code.format(resumed=4, end=9))
    read = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
import os
events = EventAccumulator(os.environ["TENSORBOARD_LOGGING_DIR"])
events.Reload()
print([(one.step, int(one.value)) for one in events.Scalars("loss")])
"""
    assert attempt(run, read) == str([(n, 7) for n in range(5)] + [(n, 9) for n in range(5, 10)])
