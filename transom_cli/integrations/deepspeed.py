"""DeepSpeed: heartbeats with the loss, final checkpoints, seals, snapshots.

    from transom_cli.integrations.deepspeed import attach, resume

    run = attach(engine)                              # after deepspeed.initialize(...)
    resume(engine, "out")
    ...
    if engine.global_steps % 100 == 0 or run.due:     # due: a final checkpoint is requested, on all ranks
        engine.save_checkpoint("out")

`save_checkpoint` seals the tag that it has written. If `latest` passes over a damaged tag, it corrects DeepSpeed's own
file `latest` too. `resume` loads the newest tag with any number of ranks: ZeRO's own format fits only the number that
wrote it, so for another number rank 0 converts the tag to DeepSpeed's universal format first.

With `attach(engine, snapshot_every=10)`, a snapshot of the training is kept in node memory as well (up to ZeRO stage
2). Training resumes from that if it is newer: `load_checkpoint` then does nothing.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from transom_cli.ckpt.failures import NoCheckpointRestores
from transom_cli.errors import UsageError
from transom_cli.heartbeat.client import phase
from transom_cli.inherited import rank_variables
from transom_cli.integrations.base import Attached, barrier, checkpoint_step, first, latest
from transom_cli.integrations.memory import keeps

__all__ = ["attach", "latest", "resume"]
_PART = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
LOOK = 0.2  # seconds between two looks whether rank 0 has converted a tag


def saved_ranks(tag: Path) -> tuple[int, int]:
    """Return the numbers of data-parallel and of model-parallel ranks that wrote a tag; (0, 0) without ZeRO."""
    found = [match for path in tag.iterdir() if (match := _PART.fullmatch(path.name))]
    return len({match[1] for match in found}), len({match[2] for match in found})


def _remove_parts(tag: Path, ranks: int) -> None:
    """Remove what more ranks left in this tag before: it would be loaded as a part of it."""
    for path in tag.iterdir():
        if (match := _PART.fullmatch(path.name)) and int(match[1]) >= ranks:
            path.unlink()


def resume(engine: Any, save_dir: str | Path) -> int:
    """Load the newest checkpoint that verifies, on all ranks. Returns the number of finished steps, or 0.

    If another number of data-parallel ranks wrote it, it is converted first, which needs its size on disk once more.

    Snapshots in memory (`attach(engine, snapshot_every=...)`) hold each rank's own part of the optimizer. They fit only
    the number of ranks that wrote them: with another one, training continues from the newest checkpoint on disk, and
    repeats the steps since then. Standard error says so.

    Raises:
        NoCheckpointRestores: the conversion failed, with DeepSpeed's own message.
    """
    path = latest(save_dir)
    if path is None:
        return int(engine.global_steps)
    tag = Path(path)
    ranks, model_ranks = saved_ranks(tag)
    if not ranks or ranks == int(engine.dp_world_size):
        engine.load_checkpoint(str(save_dir), tag=tag.name)
        return int(engine.global_steps)
    if engine.global_steps >= (checkpoint_step(tag) or 1):
        return int(engine.global_steps)  # resumed from a snapshot in memory that is newer
    with phase("restore"):
        universal = _universal(tag, model_ranks)
        engine._config.load_universal_checkpoint = True
        try:
            engine.load_checkpoint(str(save_dir), tag=universal.name)
        finally:
            engine._config.load_universal_checkpoint = False
        barrier()
        if first():
            shutil.rmtree(universal, ignore_errors=True)
    return int(engine.global_steps)


def _universal(tag: Path, model_ranks: int) -> Path:
    """Convert a tag, on rank 0. The others wait for the folder: a collective could reach its timeout before."""
    done, work = tag.with_name(f"{tag.name}.universal"), tag.with_name(f"{tag.name}.converting")
    failed = work.with_suffix(".failed")
    if first():
        for path in (done, work):
            shutil.rmtree(path, ignore_errors=True)
        failed.unlink(missing_ok=True)
    barrier()
    if first():
        about = ["--input_folder", str(tag), "--output_folder", str(work), "--num_extract_workers", "1"]
        about += ["--num_merge_workers", "1"] + (["--inject_missing_state"] if model_ranks <= 1 else [])
        env = {name: value for name, value in os.environ.items() if name not in rank_variables(os.environ)}
        argv = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *about]
        ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if ended.returncode:
            failed.write_text((ended.stderr or ended.stdout).strip().splitlines()[-1][:500])
        else:
            work.rename(done)
    while not done.is_dir() and not failed.exists():
        time.sleep(LOOK)
    if failed.exists():
        raise NoCheckpointRestores(
            f"{tag} cannot be converted to another number of ranks",
            failed.read_text(),
            "resume with the ranks that saved it",
        )
    return done


def attach(engine: Any, *, snapshot_every: int | None = None) -> Attached:
    """Report the steps of an engine, and seal what its `save_checkpoint` writes.

    Args:
        snapshot_every: keep a snapshot in memory after each of this many steps.
    """
    run = Attached()
    load = engine.load_checkpoint
    backward, step, save = engine.backward, engine.step, engine.save_checkpoint
    newest: list[Any] = [None]

    def backward_and_note(loss: Any, *args: Any, **kwargs: Any) -> Any:
        newest[0] = loss.detach()
        return backward(loss, *args, **kwargs)

    def step_and_report(*args: Any, **kwargs: Any) -> None:
        before = engine.global_steps
        run.begin(before)
        step(*args, **kwargs)
        if engine.global_steps != before:  # not a micro-batch of gradient accumulation
            run.stepped(engine.global_steps, newest[0])
            run.snapshot()

    def save_and_seal(save_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        tag = f"global_step{engine.global_steps}" if tag is None else tag
        done = save(save_dir, tag, *args, **kwargs)
        if first():
            _remove_parts(Path(save_dir) / str(tag), int(engine.dp_world_size))
        run.rank.saved(Path(save_dir) / str(tag), engine.global_steps)
        return done

    def load_if_newer(load_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        if tag is not None and run.is_newer(Path(load_dir) / str(tag)):
            return None, {}
        return load(load_dir, tag, *args, **kwargs)

    engine.backward, engine.step, engine.save_checkpoint = backward_and_note, step_and_report, save_and_seal
    engine.load_checkpoint = load_if_newer
    if keeps(snapshot_every):
        counters = _Counters(engine)
        run.remember(
            {"module": engine.module, **_optimizer(engine), "engine": counters, "run": run}, snapshot_every or 1
        )
    return run


def _optimizer(engine: Any) -> dict[str, Any]:
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage in (1, 2) and hasattr(optimizer, "single_partition_of_fp32_groups"):
        return {"optimizer": _Partition(optimizer)}
    if stage == 0 and hasattr(optimizer, "param_groups") and not hasattr(optimizer, "loss_scaler"):
        return {"optimizer": optimizer}
    raise UsageError(f"snapshot_every does not work with ZeRO stage {stage} and {type(optimizer).__name__}")


class _Partition:
    """What one rank has of the optimizer under ZeRO stages 1 and 2."""

    def __init__(self, optimizer: Any) -> None:
        self._zero = optimizer

    def state_dict(self) -> dict[str, Any]:
        scaler = {
            name: value for name, value in vars(self._zero.loss_scaler).items() if isinstance(value, (int, float))
        }
        return {
            "base": self._zero.optimizer.state_dict(),
            "parameters": list(self._zero.single_partition_of_fp32_groups),
            "loss_scaler": scaler,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._zero.optimizer.load_state_dict(state["base"])
        for live, saved in zip(self._zero.single_partition_of_fp32_groups, state["parameters"], strict=True):
            live.data.copy_(saved)
        vars(self._zero.loss_scaler).update(state["loss_scaler"])


class _Counters:
    """The engine's own counters, and its schedule of the learning rate."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        names = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
        schedule = self._engine.lr_scheduler
        return {
            "counters": {name: getattr(self._engine, name) for name in names},
            "schedule": schedule.state_dict() if hasattr(schedule, "state_dict") else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["counters"].items():
            setattr(self._engine, name, value)
        if state["schedule"]:
            self._engine.lr_scheduler.load_state_dict(state["schedule"])
