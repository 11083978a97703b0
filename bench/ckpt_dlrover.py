"""DLRover's flash checkpoint in bench/ckpt.py.

Its saver runs in the agent of `dlrover-run`, which survives the trainer. Here a companion process runs the same saver,
so that the trainer needs nothing else from DLRover. DLRover does not fsync its data, so the bench does.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import torch
from ckpt_methods import Method, Place, sync_tree
from ckpt_state import State
from dlrover.python.common.constants import CheckpointConstant
from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from harness import BenchError

_LIMIT = 300.0  # s that a save may take


class Flash(Method):
    memory = True
    synced = False

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        os.environ["TORCHELASTIC_RUN_ID"] = place.job
        os.environ["ROLE_NAME"] = "dlrover-trainer"  # started by dlrover-run: the agent is there
        self._step = 0
        shards = place.case.ranks if place.case.sharded else 1
        self._flash = DdpCheckpointer(str(place.folder), local_shard_num=shards, global_shard_num=shards)

    def save(self, step: int) -> None:
        self._step = step
        self._flash.save_checkpoint(step, dict(self.state.local), storage_type=StorageType.DISK)
        if self.place.rank == 0 and self._flash._engine._cached_step != step:
            raise BenchError(f"DLRover skipped the save of step {step}: it was still writing")

    def done(self) -> bool:
        return self._newest() >= self._step

    def finish(self) -> None:
        """Its own wait_latest_checkpoint looks every 3 s only."""
        deadline = time.monotonic() + _LIMIT
        while not self.done():
            if time.monotonic() > deadline:
                raise BenchError(f"DLRover did not write step {self._step} within {_LIMIT:.0f} s")
            time.sleep(0.005)
        if self.place.rank == 0:
            sync_tree(self.place.folder)

    def steps(self) -> list[int]:
        return [newest] if (newest := self._newest()) >= 0 else []

    def load(self, step: int) -> None:
        """As it does itself when it has nothing in memory."""
        path = self.place.folder / str(step) / f"rank_{self.place.file_rank}.pt"
        self.state.put(torch.load(path, map_location="cpu"))

    def load_memory(self) -> int | None:
        step, found = self._flash._engine.get_state_dict_from_memory()  # load() does not tell the step
        if not found:
            return None
        self.state.put(next(iter(found.values())))
        return int(step)

    def prune(self, step: int) -> None:
        shutil.rmtree(self.place.folder / str(step), ignore_errors=True)

    def _newest(self) -> int:
        try:
            return int((self.place.folder / CheckpointConstant.TRACER_FILE_NAME).read_text())
        except (OSError, ValueError):
            return -1


def serve(job: str) -> None:
    """The companion: what dlrover-run's agent does for checkpoints. Runs until it is killed."""
    os.environ["TORCHELASTIC_RUN_ID"] = job
    saver: Any = AsyncCheckpointSaver
    saver.start_async_saving_ckpt()
    while True:
        time.sleep(60)
