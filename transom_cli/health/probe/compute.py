"""Compute on one device, again and again: which bits come out, whether they stay the same, and how fast.

Kernels run in turn for the whole time window, so that another load on the machine slows all of them alike. Time in
which the process waited for a CPU is not counted: it is about the other processes, while a slow, stopped or throttled
device is slow in the remaining time.

Inputs are computed with integer arithmetic on the device itself, so every device that calculates correctly starts from
the same bits.

$TRANSOM_PROBE_FLIP injects the faults that this looks for: "gemm" flips one bit in each result of the kernels of that
name (a device that is always wrong), "gemm:3" only in the third repetition (one that is wrong now and then), "exact" in
the sums with known answers.
"""

import ctypes
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from transom_cli.core.log_lines import clean
from transom_cli.health.probe import bits
from transom_cli.health.probe.cpu_wait import Stopwatch
from transom_cli.health.probe.messages import Compute, Computed

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Kernel:
    """work: FLOP or bytes of one run; 0 if its speed does not matter. hashed: whether its result is compared."""

    name: str
    run: Callable[[], Tensor]
    work: float = 0.0
    hashed: bool = True


@dataclass(frozen=True)
class Sizes:
    """gemm: rows of a square matrix. heads, length, width: of the attention. sums: numbers. copied: bytes."""

    dtypes: tuple[torch.dtype, ...]
    gemm: int
    heads: int
    length: int
    width: int
    sums: int
    copied: int
    exact: tuple[bits.Exact, ...]


# Each run takes about a millisecond on one core or on a current GPU.
CPU = Sizes((torch.float32,), 384, 4, 256, 64, 1 << 22, 1 << 25, bits.CPU)
CUDA = Sizes((torch.bfloat16, torch.float16, torch.float32), 4096, 32, 2048, 128, 1 << 26, 1 << 30, bits.CUDA)


@cache
def kernels(device: torch.device) -> tuple[Kernel, ...]:
    """Return the kernels with their inputs, made once per process."""
    sizes = CUDA if device.type == "cuda" else CPU
    made = [_exact(one, device) for one in sizes.exact]
    for dtype in sizes.dtypes:
        made += [_gemm(sizes, dtype, device), _attention(sizes, dtype, device)]
    made += [_reduce(sizes, device), _copy(sizes, device)]
    if device.type == "cuda":
        made += [_from_host(sizes, device), _to_host(sizes, device)]
    return tuple(made)


def scrambled(count: int, seed: int, device: torch.device) -> Tensor:
    """Return pseudo-random numbers from 0 to 2**32 - 1, by a hash of 64-bit integers that never overflows."""
    x = (torch.arange(count, dtype=torch.int64, device=device) * 2654435761 + seed * 40503) & _MASK
    x = ((x ^ (x >> 15)) * 739982445) & _MASK
    x = ((x ^ (x >> 12)) * 695872825) & _MASK
    return x ^ (x >> 15)


def odd(count: int, seed: int, most: int, device: torch.device) -> Tensor:
    """Return odd numbers from -most to most; without 0, no sum can be -0.0."""
    return ((scrambled(count, seed, device) >> 7) % (most + 1)) * 2 - most


def fractions(count: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers from -1/2 to 1/2 in steps of 2**-16, rounded once for narrower types."""
    return ((scrambled(count, seed, device) & 0xFFFF).to(torch.float32) / 65536 - 0.5).to(dtype)


def _exact(one: bits.Exact, device: torch.device) -> Kernel:
    dtype = getattr(torch, one.dtype)
    left, right = (odd(one.size**2, seed, one.most, device).to(dtype).view(one.size, -1) for seed in (1, 2))
    product = torch._int_mm if dtype is torch.int8 else torch.matmul  # int8 has no other product on a GPU
    return Kernel(one.name, lambda: product(left, right))


def _gemm(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Kernel:
    n = sizes.gemm
    left, right = (fractions(n * n, seed, dtype, device).view(n, n) for seed in (3, 4))
    return Kernel(f"gemm {_short(dtype)}", lambda: left @ right, 2.0 * n**3)


def _attention(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Kernel:
    shape = (sizes.heads, sizes.length, sizes.width)
    q, k, v = (fractions(math.prod(shape), seed, dtype, device).view(shape) for seed in (5, 6, 7))
    scale = sizes.width**-0.5

    def run() -> Tensor:
        return torch.softmax((q @ k.transpose(1, 2)) * scale, dim=-1) @ v

    return Kernel(f"attention {_short(dtype)}", run, 4.0 * sizes.heads * sizes.length**2 * sizes.width)


def _reduce(sizes: Sizes, device: torch.device) -> Kernel:
    numbers = fractions(sizes.sums, 8, torch.float32, device).view(-1, 1024)
    return Kernel("reduce float32", lambda: numbers.sum(0), 4.0 * sizes.sums)


def _copy(sizes: Sizes, device: torch.device) -> Kernel:
    source = torch.ones(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Kernel("copy", lambda: target.copy_(source), 2.0 * sizes.copied, hashed=False)  # read and written


def _from_host(sizes: Sizes, device: torch.device) -> Kernel:
    source = torch.ones(sizes.copied // 8, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device=device)
    return Kernel("copy from host", lambda: target.copy_(source), sizes.copied / 8, hashed=False)


def _to_host(sizes: Sizes, device: torch.device) -> Kernel:
    source = torch.ones(sizes.copied // 8, dtype=torch.uint8, device=device)
    target = torch.empty_like(source, device="cpu", pin_memory=True)
    return Kernel("copy to host", lambda: target.copy_(source), sizes.copied / 8, hashed=False)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


FLIP = "TRANSOM_PROBE_FLIP"
TURNS = "turns"  # of all kernels per second: a process that is stopped now and then is slow here for every kernel
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compute(request: Compute, node: str, index: int, device: torch.device) -> Computed:
    """Run the request. A device's error becomes the answer's `error`."""
    try:
        with torch.inference_mode():
            return _computed(request, node, index, device)
    except (RuntimeError, NotImplementedError, OSError, MemoryError) as error:
        return Computed(node, index, request.id, error=clean(" ".join(str(error).split())) or type(error).__name__)


def deterministic() -> None:
    """Make a GPU deterministic and forbid reduced precision. Call it before the first kernel; it takes a second.

    On a CPU these kernels are deterministic anyway, for a fixed number of threads.
    """
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False


def warm_up(device: torch.device) -> None:
    """Run each kernel once, which creates its inputs and loads its library."""
    with torch.inference_mode():
        for kernel in kernels(device):
            kernel.run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _computed(request: Compute, node: str, index: int, device: torch.device) -> Computed:
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
        while time.perf_counter() < begun + request.seconds or repeats < 2:
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
    return Computed(node, index, request.id, digests, tuple(rates), repeats, tuple(differed.items()), starved)


def _bits(result: Tensor) -> Tensor:
    """Return the same memory as integers: as floats, a NaN differs from itself, and -0.0 equals 0.0."""
    return result.view(_BITS[result.element_size()])


def _digest(name: str, result: Tensor) -> str:
    """Hash a result; exact sums as float64, which represents every value of narrower types, so all share one answer."""
    there = result.to("cpu").contiguous()
    if name in bits.ANSWERS:
        there = there.to(torch.float64)
    return bits.digest(ctypes.string_at(there.data_ptr(), there.nbytes))


class Flip:
    """The fault that $TRANSOM_PROBE_FLIP injects; none without it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name, _, repeat = environment.get(FLIP, "").partition(":")
        self._name, self._repeat = name, int(repeat) if repeat.isdigit() else 0

    def maybe(self, kernel: str, repeat: int, result: Tensor) -> None:
        if self._name and kernel.split()[0] == self._name and self._repeat in (0, repeat):
            _bits(result).view(-1)[0] ^= 1
