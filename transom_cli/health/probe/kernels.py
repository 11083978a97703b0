"""The small computations of the probe: what is computed, from what, and how much work each is.

Their inputs come from whole-number arithmetic alone, made on the device itself: every one, of whatever kind, that
calculates rightly starts from the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from transom_cli.health.probe import exact

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Kernel:
    """work: FLOP or bytes of one run; 0 where its speed tells nothing. hashed: whether its result is looked at."""

    name: str
    run: Callable[[], Tensor]
    work: float = 0.0
    hashed: bool = True


@dataclass(frozen=True)
class Sizes:
    """gemm, sums: rows of a square, numbers. heads, length, width: of the attention. copied: bytes."""

    dtypes: tuple[torch.dtype, ...]
    gemm: int
    heads: int
    length: int
    width: int
    sums: int
    copied: int
    exact: tuple[exact.Exact, ...]


# each run takes about a millisecond of one core, or of a present GPU
CPU = Sizes((torch.float32,), 384, 4, 256, 64, 1 << 22, 1 << 25, exact.CPU)
CUDA = Sizes((torch.bfloat16, torch.float16, torch.float32), 4096, 32, 2048, 128, 1 << 26, 1 << 30, exact.CUDA)


@cache
def kernels(device: torch.device) -> tuple[Kernel, ...]:
    """Made once in a process, with their inputs."""
    sizes = CUDA if device.type == "cuda" else CPU
    made = [_exact(one, device) for one in sizes.exact]
    for dtype in sizes.dtypes:
        made += [_gemm(sizes, dtype, device), _attention(sizes, dtype, device)]
    made += [_reduce(sizes, device), _copy(sizes, device)]
    if device.type == "cuda":
        made += [_from_host(sizes, device), _to_host(sizes, device)]
    return tuple(made)


def scrambled(count: int, seed: int, device: torch.device) -> Tensor:
    """Numbers from 0 to 2**32 - 1 without a pattern, by a hash of 64-bit integers that never overflow."""
    x = (torch.arange(count, dtype=torch.int64, device=device) * 2654435761 + seed * 40503) & _MASK
    x = ((x ^ (x >> 15)) * 739982445) & _MASK
    x = ((x ^ (x >> 12)) * 695872825) & _MASK
    return x ^ (x >> 15)


def odd(count: int, seed: int, most: int, device: torch.device) -> Tensor:
    """Odd numbers from -most to most; 0 is none of them, so that no sum can be a -0.0."""
    return ((scrambled(count, seed, device) >> 7) % (most + 1)) * 2 - most


def fractions(count: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """From -1/2 to 1/2 in steps of 2**-16, rounded once where the type is narrower."""
    return ((scrambled(count, seed, device) & 0xFFFF).to(torch.float32) / 65536 - 0.5).to(dtype)


def _exact(one: exact.Exact, device: torch.device) -> Kernel:
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
