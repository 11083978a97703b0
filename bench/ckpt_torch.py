"""Plain writers in bench/ckpt.py: torch.save, safetensors, and a forked child that writes.

They know nothing about ranks, steps or crashes, so the bench adds what a careful trainer does: one file per rank (one
in total for replicas), written under a temporary name, fsync, rename, fsync.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from ckpt_methods import Method, Place, publish
from ckpt_state import State
from harness import BenchError

from transom_cli.ckpt.names import parse_step


class TorchSave(Method):
    background = False

    def save(self, step: int) -> None:
        if self.place.own_file:
            publish(self.path(step), self._name, self._write)
        dist.barrier()

    def steps(self) -> list[int]:
        named = {parse_step(path.name): path for path in self.place.folder.glob("step-*")}
        whole = [step for step, path in named.items() if step is not None and len(_files(path)) == self.place.files]
        return sorted(whole, reverse=True)

    def load(self, step: int) -> None:
        self.state.put(self._read(self.path(step) / self._name))

    @property
    def _name(self) -> str:
        return f"rank-{self.place.file_rank}.pt"

    def _write(self, path: Path) -> None:
        torch.save(self.state.local, path)

    def _read(self, path: Path) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return found


class SafeTensors(TorchSave):
    def __init__(self, state: State, place: Place) -> None:
        import safetensors.torch

        super().__init__(state, place)
        self._library = safetensors.torch

    def _write(self, path: Path) -> None:
        self._library.save_file(self.state.local, path)

    def _read(self, path: Path) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = self._library.load_file(path)
        return found


class Fork(TorchSave):
    """The child sees the state as it was at the fork. Without CUDA only, and only where no lock is held meanwhile."""

    background = True

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        self._child = 0

    def save(self, step: int) -> None:
        if not self.place.own_file:
            return
        self._child = os.fork()
        if self._child == 0:
            code = 1
            try:
                publish(self.path(step), self._name, self._write)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def done(self) -> bool:
        return not self._child or os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self) -> None:
        if self._child:
            status = os.waitpid(self._child, 0)[1]
            self._child = 0
            if status:
                raise BenchError("The forked child did not write", f"it ended with status {status}")
        dist.barrier()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]
