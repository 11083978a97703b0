"""One experiment over all attempts of a run: W&B, MLflow and TensorBoard continue where training resumes.

- W&B: the run ID is the same in all attempts, and W&B resumes it (`WANDB_RUN_ID`, `WANDB_RESUME=allow`).
- MLflow: the ID of the first attempt's run is kept in the run directory, and later attempts get it (`MLFLOW_RUN_ID`).
- TensorBoard: later attempts write to the same folder, and hide the points after the step from which they resume.

W&B and MLflow cannot hide points. Steps that were lost are made again, and are not logged a second time: the run
directory has the newest training step for which something was logged. With `TRANSOM_WANDB=rewind`, W&B's server forgets
these points instead, and they are logged again.

Only rank 0 logs to an experiment. A variable that you set yourself is left alone.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from transom_cli.files import publish_text
from transom_cli.heartbeat import paths

WANDB, MLFLOW, TENSORBOARD = "WANDB_RUN_ID", "MLFLOW_RUN_ID", "TENSORBOARD_LOGGING_DIR"
_URI = "MLFLOW_TRACKING_URI"
_RESUME, _RESUME_FROM = "WANDB_RESUME", "WANDB_RESUME_FROM"
_TAIL = 256 * 1024  # bytes of the record of logged steps that are read
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
    if WANDB not in os.environ and _RESUME_FROM not in os.environ:
        os.environ[WANDB] = name()
        os.environ.setdefault(_RESUME, "allow")
        _let_fork(sys.modules.get("wandb"))
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
    """Let TensorBoard's writers that are made from now on hide the points after `step`, and W&B forget them."""
    global _resumed
    first, _resumed = _resumed < 0, step
    if not first or not _logs():
        return
    if os.environ.get("TRANSOM_WANDB") == "rewind" and os.environ.get(WANDB) == name():
        kept = [at for of, one, _, at in _read_logged() if of == name() and one <= step and at is not None]
        if kept:
            os.environ.pop(_RESUME, None)
            os.environ[_RESUME_FROM] = f"{name()}?_step={kept[-1]}"
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    init = SummaryWriter.__init__

    @functools.wraps(init)
    def purging(self: Any, log_dir: Any = None, comment: str = "", purge_step: int | None = None, **more: Any) -> None:
        init(self, log_dir, comment, _resumed + 1 if purge_step is None else purge_step, **more)

    SummaryWriter.__init__ = purging  # type: ignore[method-assign,assignment]


def _let_fork(wandb: Any) -> None:
    """W&B refuses `resume` together with the script's own `fork_from` or `resume_from`, so these come first."""
    if wandb is None:
        return
    init = wandb.init

    @functools.wraps(init)
    def forking(*args: Any, **options: Any) -> Any:
        if options.get("fork_from") or options.get("resume_from"):
            for variable in (WANDB, _RESUME, _RESUME_FROM):
                os.environ.pop(variable, None)
        return init(*args, **options)

    wandb.init = forking


# --- no step twice ---


class _Logged:
    """What is logged once. Each line of its file: run of W&B or MLflow, training step, names, W&B's own step."""

    def __init__(self) -> None:
        self.step = -1  # the training step that was finished last
        self.hooks: dict[str, Callable[[Any], None]] = {}
        if _logs():
            self.hooks = {"wandb.sdk.wandb_run": _hook_wandb, "mlflow.tracking.client": _hook_mlflow}
        self._logs = bool(self.hooks)
        self._before: dict[str, tuple[int, set[str]]] = {}  # by earlier processes, and entries of this one
        self._fd = -1
        self.read()

    def read(self) -> None:
        """Know what was logged until now."""
        self.step = -1
        for run, step, names, _ in _read_logged() if self._logs else ():
            known = self._before.get(run, (-1, set()))
            if step >= known[0]:
                self._before[run] = step, {*names, *(known[1] if step == known[0] else ())}

    def again(self, run: str, names: Iterable[str], at: int | None = None) -> bool:
        """Whether an earlier process has logged this for a step that is made again. If not, note it."""
        step, known = self._before.get(run, (-1, set[str]()))
        names = set(names)
        if self.step < 0 or not names:
            return False
        if self.step < step or (self.step == step and names <= known):
            return True
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(_logged_file(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.write(self._fd, (json.dumps([run, self.step, sorted(names), at]) + "\n").encode())
        return False


@functools.cache
def _logged() -> _Logged:
    return _Logged()


def reentered() -> None:
    """This process trains again from an earlier step (`integrations.recoverable`)."""
    _logged().read()


def at(step: int) -> None:
    """`step` is the training step that was finished last. What is logged from now on belongs to it."""
    logged = _logged()
    logged.step = step
    for module in [name for name in logged.hooks if name in sys.modules]:
        with suppress(AttributeError):  # another version: its steps may be logged twice
            logged.hooks.pop(module)(sys.modules[module])


def _hook_wandb(module: Any) -> None:
    log = module.Run._log

    def once(self: Any, data: Any, step: int | None = None, commit: bool | None = None) -> None:
        names = map(str, data) if isinstance(data, Mapping) else ()
        own = getattr(self, "_local_step", None) if step is None else step
        if not _logged().again(self.id, names, own) or self.settings.resume_from is not None:
            log(self, data, step, commit)

    module.Run._log = once


def _hook_mlflow(module: Any) -> None:
    client = module.MlflowClient
    log_metric, log_batch = client.log_metric, client.log_batch

    def once(self: Any, run_id: str, key: str, *args: Any, **options: Any) -> Any:
        if key.startswith("system/") or not _logged().again(run_id, (key,)):
            return log_metric(self, run_id, key, *args, **options)
        return log_batch(self, run_id, synchronous=options.get("synchronous"))

    def batch_once(self: Any, run_id: str, metrics: Any = (), *args: Any, **options: Any) -> Any:
        names = [one.key for one in metrics if not one.key.startswith("system/")]  # these have a clock of their own
        if _logged().again(run_id, names):
            metrics = [one for one in metrics if one.key.startswith("system/")]
        return log_batch(self, run_id, metrics, *args, **options)

    client.log_metric, client.log_batch = once, batch_once


def _read_logged() -> list[tuple[str, int, list[str], int | None]]:
    """Return the newest lines that are whole."""
    try:
        with _logged_file().open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError, TypeError):
            run, step, names, at = json.loads(line)
            found.append((str(run), int(step), [str(one) for one in names], None if at is None else int(at)))
    return found


def _logged_file() -> Path:
    return Path(os.environ[paths.RUN_DIR]) / "logged.jsonl"


def _file() -> Path:
    return Path(os.environ[paths.RUN_DIR]) / "mlflow.json"
