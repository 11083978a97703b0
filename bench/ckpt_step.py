"""The training steps during a save in bench/ckpt.py: real matrix products, in step with the other ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_SIDE = 384  # rows and columns of the matrices
_MOST = 20_000  # steps that a save may last


class Training:
    """A step of all ranks. It takes about `step_s` seconds on an idle machine."""

    def __init__(self, step_s: float) -> None:
        self._left, self._right = torch.randn(2, _SIDE, _SIDE)
        self._products = 1
        self.step(True)
        each = statistics.median(self._timed() for _ in range(20))
        fitting = torch.tensor([max(1, round(step_s / each))])
        dist.broadcast(fitting, src=0)  # the same work for all, or the slowest would be measured
        self._products = int(fitting.item())

    def step(self, done: bool) -> bool:
        """Compute, then meet the others, as gradients do. Whether all ranks came with `done`."""
        for _ in range(self._products):
            torch.mm(self._left, self._right)
        together = torch.tensor([int(done)])
        dist.all_reduce(together, op=dist.ReduceOp.MIN)
        return bool(together.item())

    def alone(self, steps: int) -> float:
        """Seconds a step, without a save."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step(True)
        return (time.perf_counter() - began) / steps

    def beside(self, done: Callable[[], bool]) -> tuple[int, float]:
        """Steps until `done` on all ranks: how many, and seconds a step."""
        began = time.perf_counter()
        steps = 0
        over = False
        while not over and steps < _MOST:
            over = self.step(done())
            steps += 1
        return steps, (time.perf_counter() - began) / steps

    def _timed(self) -> float:
        began = time.perf_counter()
        torch.mm(self._left, self._right)
        return time.perf_counter() - began
