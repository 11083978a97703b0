"""Compute on one device, again and again: the bits of what comes out, whether they stay the same, and how fast.

All kernels take turns for the whole window, so that each is timed over all of it: what else the machine does for a
while then slows none of them alone. The time in which the process waited for a processor that others had is not
counted: it tells of those others, while a device that is slow, stopped or throttled is so in the rest of the time.

TRANSOM_PROBE_FLIP injects the fault that this looks for: "gemm" turns over one bit of each result of the kernels of
that name (a device that computes wrongly, and always alike), "gemm:3" that of the third repetition only (one that does
so now and then), "exact" that of the sums whose answer is known.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from transom_cli.core.rootline import clean
from transom_cli.health.probe import exact
from transom_cli.health.probe.kernels import kernels
from transom_cli.health.probe.shapes import Compute, Computed
from transom_cli.health.probe.starving import Stopwatch

FLIP = "TRANSOM_PROBE_FLIP"
TURNS = "turns"  # of all kernels, a second: what stops the process now and then shows here, whichever it hits
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compute(ask: Compute, node: str, index: int, device: torch.device) -> Computed:
    """Never raises for what a device may do: its words are the answer's `error`."""
    try:
        with torch.inference_mode():
            return _computed(ask, node, index, device)
    except (RuntimeError, NotImplementedError, OSError, MemoryError) as error:
        return Computed(node, index, ask.id, error=clean(" ".join(str(error).split())) or type(error).__name__)


def deterministic() -> None:
    """For a GPU: one answer for one question, no shortened products. Before the first kernel; it imports a second long.

    The kernels used here are deterministic on a CPU anyway, with one number of threads.
    """
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False


def warm_up(device: torch.device) -> None:
    """Each kernel once: its inputs are made, and its library is loaded."""
    with torch.inference_mode():
        for kernel in kernels(device):
            kernel.run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _computed(ask: Compute, node: str, index: int, device: torch.device) -> Computed:
    turns = kernels(device)
    flip = Flip(os.environ)
    first: dict[str, Tensor] = {}
    for kernel in turns:
        result = kernel.run()
        if kernel.hashed:
            flip.maybe(kernel.name, 1, result)
            first[kernel.name] = result
    digests = tuple((name, _digest(name, result)) for name, result in first.items())
    spent: dict[str, float] = dict.fromkeys((kernel.name for kernel in turns), 0.0)
    differed: dict[str, int] = {}
    with Stopwatch() as watch:
        repeats, begun = 1, time.perf_counter()
        while time.perf_counter() < begun + ask.seconds or repeats < 2:
            repeats += 1
            for kernel in turns:
                watch.start()
                result = kernel.run()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                spent[kernel.name] += watch.seconds()
                if not kernel.hashed:
                    continue
                flip.maybe(kernel.name, repeats, result)
                if not torch.equal(_bits(result), _bits(first[kernel.name])):
                    differed[kernel.name] = differed.get(kernel.name, 0) + 1
        whole = watch.whole()
        starved = watch.share() if device.type == "cpu" else 0.0  # a GPU computes while its process waits
    rates = [(k.name, k.work * (repeats - 1) / spent[k.name]) for k in turns if k.work]
    rates.append((TURNS, (repeats - 1) / whole))
    return Computed(node, index, ask.id, digests, tuple(rates), repeats, tuple(differed.items()), starved)


def _bits(result: Tensor) -> Tensor:
    """The same memory as whole numbers: as floats, a NaN would differ from itself, and -0.0 would equal 0.0."""
    return result.view(_BITS[result.element_size()])


def _digest(name: str, result: Tensor) -> str:
    """Exact sums as float64, which holds each value of the narrower types: one answer is right for all of them."""
    there = result.to("cpu").contiguous()
    if name in exact.ANSWERS:
        there = there.to(torch.float64)
    return exact.digest(ctypes.string_at(there.data_ptr(), there.nbytes))


class Flip:
    """The injected fault, as TRANSOM_PROBE_FLIP in the environment asks for it; none without."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name, _, repeat = environment.get(FLIP, "").partition(":")
        self._name, self._repeat = name, int(repeat) if repeat.isdigit() else 0

    def maybe(self, kernel: str, repeat: int, result: Tensor) -> None:
        if self._name and kernel.split()[0] == self._name and self._repeat in (0, repeat):
            _bits(result).view(-1)[0] ^= 1
