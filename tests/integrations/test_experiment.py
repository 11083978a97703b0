"""W&B, MLflow and TensorBoard over two attempts of a run, with the real packages (`make test-frameworks` has them)."""

from __future__ import annotations

import json
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


WANDB = """
import json, os, wandb
experiment.at({resumed})
run = wandb.init(project="p")
experiment.at({resumed})
for step in range({resumed} + 1, {end} + 1):
    experiment.at(step)
    run.log({{"loss": float({end}), "train/global_step": step}}{explicit})
    if step % 3 == 0 and step != {unseen}:
        run.log({{"eval": float({end}), "train/global_step": step}}{explicit})
run.finish()
"""
HISTORY = """
import glob, json
from wandb.proto.wandb_internal_pb2 import Record

def records(data):  # LevelDB's log: blocks of 32 KiB, records in one to many pieces
    at, parts = 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record

found = []
for path in sorted(glob.glob("wandb/offline-run-*/*.wandb")):
    for record in records(open(path, "rb").read()):
        items = {}
        for item in [*record.history.item, *record.request.partial_history.item]:
            items[item.key or item.nested_key[0]] = json.loads(item.value_json)
        found += [[key, items["train/global_step"], items[key]] for key in ("loss", "eval") if key in items]
print(json.dumps(found))
"""


@pytest.mark.parametrize("explicit", ["", ", step=step"])
def test_wandb_has_each_step_once(tmp_path: Path, explicit: str) -> None:
    """Killed at step 7, and again in step 9, whose evaluation was not logged; the checkpoint is of step 4."""
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    for resumed, end, unseen in ((-1, 7, -1), (4, 9, 9), (4, 12, -1)):
        attempt(run, WANDB.format(resumed=resumed, end=end, unseen=unseen, explicit=explicit))
    found = json.loads(attempt(run, HISTORY))
    assert [(step, int(value)) for key, step, value in found if key == "loss"] == [
        (n, 7 if n <= 7 else 9 if n <= 9 else 12) for n in range(13)
    ]
    assert [(step, int(value)) for key, step, value in found if key == "eval"] == [
        (0, 7), (3, 7), (6, 7), (9, 12), (12, 12)
    ]  # fmt: skip


def test_wandb_rewinds_to_the_restored_step_on_request(tmp_path: Path) -> None:
    """What its server then forgets cannot be shown without one: here, the client continues after the right point."""
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    first = "import wandb; run = wandb.init(project='p')\nfor step in range(8):\n    experiment.at(step)\n"
    attempt(run, first + "    run.log({'loss': 1.0})\n    run.log({'speed': 1.0})")
    again = "experiment.resume_after(4); import wandb; run = wandb.init(project='p'); experiment.at(4)\n"
    again += "print(run.id, run.starting_step); experiment.at(5); run.log({'loss': 1.0}); print(run.step)"
    assert attempt(run, again, TRANSOM_WANDB="rewind") == "11"  # 10 points of the steps 0 to 4, and this one
    assert attempt(run, again) == "0"  # logged before


@pytest.mark.parametrize("how", ["fork_from='other?_step=5'", "resume_from='other?_step=5'"])
def test_script_that_forks_a_run_itself_is_not_refused(tmp_path: Path, how: str) -> None:
    pytest.importorskip("wandb")
    code = "import os, wandb; del os.environ['WANDB_RUN_ID'], os.environ['WANDB_RESUME']; experiment.prepare(); "
    code += f"print(os.environ['WANDB_RESUME'], wandb.init(project='p', {how}).settings.resume)"
    assert attempt(tmp_path / "run", code) == "allow None"


def test_mlflow_continues_the_first_attempts_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    code = "import mlflow; run = mlflow.start_run(); experiment.keep(); print(run.info.run_id)"
    store = (tmp_path / "mlruns").as_uri()
    here = {"MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}
    first = attempt(tmp_path / "run", code, **here)
    assert attempt(tmp_path / "run", code, **here) == first
    elsewhere = {**here, "MLFLOW_TRACKING_URI": (tmp_path / "elsewhere").as_uri()}
    assert attempt(tmp_path / "run", code, **elsewhere) != first, "another server does not know the run"


def test_mlflow_has_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    code = """
import mlflow
mlflow.start_run()
experiment.keep()
experiment.at({resumed})
for step in range({resumed} + 1, {end} + 1):
    experiment.at(step)
    mlflow.log_metrics({{"loss": float({end}), "rate": 1.0}}, step=step)
    mlflow.log_metric("epoch_loss", float({end}), step=step // 5)
    mlflow.log_metric("system/cpu", 1.0, step=step)
client = mlflow.MlflowClient()
history = [(one.step, int(one.value)) for one in client.get_metric_history(mlflow.active_run().info.run_id, "loss")]
epochs = len(client.get_metric_history(mlflow.active_run().info.run_id, "epoch_loss"))
system = len(client.get_metric_history(mlflow.active_run().info.run_id, "system/cpu"))
print(history, epochs, system)
"""
    here = {"MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    attempt(tmp_path / "run", code.format(resumed=-1, end=7), **here)
    once = [(n, 7) for n in range(8)] + [(8, 9), (9, 9)]
    assert attempt(tmp_path / "run", code.format(resumed=4, end=9), **here) == f"{once} 10 13"


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
