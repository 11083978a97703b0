"""One experiment over all attempts of a run: W&B, MLflow and TensorBoard continue where training resumes.

- W&B: the run ID is the same in all attempts, and W&B resumes it (`WANDB_RUN_ID`, `WANDB_RESUME=allow`).
- MLflow: the ID of the first attempt's run is kept in the run directory, and later attempts get it (`MLFLOW_RUN_ID`).
- TensorBoard: later attempts write to the same folder, and hide the points after the step from which they resume.

Only rank 0 logs to an experiment. A variable that you set yourself is left alone.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from transom_cli.files import publish_text
from transom_cli.heartbeat import paths

WANDB, MLFLOW, TENSORBOARD = "WANDB_RUN_ID", "MLFLOW_RUN_ID", "TENSORBOARD_LOGGING_DIR"
_URI = "MLFLOW_TRACKING_URI"
_resumed = -1  # the step from which training resumes in this process


def name() -> str:
    """The experiment's name in all attempts; "" outside transom."""
    run = os.environ.get(paths.RUN_DIR, "")
    return f"{Path(run).name}-{crc32(os.fsencode(run)):08x}" if run else ""


def _logs() -> bool:
    return bool(name()) and paths.own_rank() == 0


def prepare() -> None:
    """Set what the loggers read. Call before they start."""
    if not _logs():
        return
    if WANDB not in os.environ:
        os.environ[WANDB] = name()
        os.environ.setdefault("WANDB_RESUME", "allow")
    os.environ.setdefault(TENSORBOARD, f"{os.environ[paths.RUN_DIR]}/tensorboard")
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(_file().read_text())
        if known["uri"] == os.environ.get(_URI, ""):  # another server does not know this ID
            os.environ.setdefault(MLFLOW, str(known["run_id"]))


def keep() -> None:
    """Keep the ID of the MLflow run that is active in this process."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or not _logs():
        return
    with suppress(Exception):  # training matters more
        active = mlflow.active_run()
        if active is not None and os.environ.get(MLFLOW) != active.info.run_id:
            os.environ[MLFLOW] = active.info.run_id
            known = {"run_id": active.info.run_id, "uri": os.environ.get(_URI, "")}
            publish_text(_file(), json.dumps(known) + "\n")


def resume_after(step: int) -> None:
    """Let TensorBoard's writers that are made from now on hide the points after `step`."""
    global _resumed
    first, _resumed = _resumed < 0, step
    if not first or not _logs():
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    init = SummaryWriter.__init__

    @functools.wraps(init)
    def purging(self: Any, log_dir: Any = None, comment: str = "", purge_step: int | None = None, **more: Any) -> None:
        init(self, log_dir, comment, _resumed + 1 if purge_step is None else purge_step, **more)

    SummaryWriter.__init__ = purging  # type: ignore[method-assign,assignment]


def _file() -> Path:
    return Path(os.environ[paths.RUN_DIR]) / "mlflow.json"
