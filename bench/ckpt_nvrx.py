"""NVIDIA's resiliency-ext in bench/ckpt.py: asynchronous torch.save, and local checkpoints.

It is made for CUDA: its copy to the host protects the state from training, and it does not copy tensors that are
already on the host. On the CPU, the bench therefore clones them instead of that copy, and waits for no device. It does
not fsync, so the bench does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ckpt_methods import Method, Place, sync_tree
from ckpt_state import State
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

from transom_cli.ckpt.names import parse_step


def _without_cuda() -> None:
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None


class AsyncTorch(Method):
    """A file is written under its final name: what is torn is found by loading it."""

    synced = False

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        _without_cuda()
        self._writer = TorchAsyncCheckpoint(persistent_queue=True)
        self._path: Path | None = None

    def save(self, step: int) -> None:
        if not self.place.own_file:
            return
        self._path = self.path(step) / f"rank-{self.place.rank}.pt"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer.async_save({name: local.clone() for name, local in self.state.local.items()}, self._path)

    def done(self) -> bool:
        self._writer.finalize_async_save(blocking=False)
        return bool(self._writer._async_calls_queue.get_num_unfinalized_calls() == 0)

    def finish(self) -> None:
        self._writer.finalize_async_save(blocking=True)
        if self._path is not None:
            sync_tree(self._path.parent)

    def steps(self) -> list[int]:
        named = {parse_step(path.name): path for path in self.place.folder.glob("step-*")}
        whole = [step for step, path in named.items() if step is not None and self._files(path) == self.place.files]
        return sorted(whole, reverse=True)

    def load(self, step: int) -> None:
        path = self.path(step) / f"rank-{self.place.file_rank}.pt"
        self.state.put(torch.load(path, map_location="cpu", weights_only=True))

    def close(self) -> None:
        self._writer.finalize_async_save(blocking=True, terminate=True)

    def _files(self, folder: Path) -> int:
        return len(list(folder.glob("rank-*.pt")))


class OnHost(BasicTensorAwareStateDict):
    """The same state dict for tensors that are on the host already."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        self.state_dict = {name: tensor.clone() for name, tensor in self.state_dict.items()}

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        pass


class Local(Method):
    """Each rank keeps its own file, of replicas too; here on the disk that all methods use, without replication."""

    synced = False

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        _without_cuda()
        self._manager = LocalCheckpointManager(str(place.folder))
        self._queue = AsyncCallsQueue(persistent=True)
        self._step = 0

    def save(self, step: int) -> None:
        self._step = step
        request = self._manager.save(OnHost(dict(self.state.local)), iteration=step, is_async=True)
        self._queue.schedule_async_request(request)

    def done(self) -> bool:
        return self._file(self._step).exists()

    def finish(self) -> None:
        """Finalizing is a collective, which also removes the checkpoints before this one."""
        self._queue.maybe_finalize_async_calls(blocking=True, no_dist=True)
        path = self._file(self._step)
        if path.exists():
            sync_tree(path.parent)

    def steps(self) -> list[int]:
        newest = int(self._manager.find_latest())
        return [newest] if newest >= 0 else []

    def load(self, step: int) -> None:
        self._manager.find_latest()
        loaded, _ = self._manager.load()
        self.state.put(loaded.state_dict)

    def prune(self, step: int) -> None:
        """It keeps the newest by itself."""

    def close(self) -> None:
        self._queue.close()

    def _file(self, step: int) -> Path:
        return Path(self._manager._local_ckpt_path_from_id(self._manager._ckpt_id(step)))
