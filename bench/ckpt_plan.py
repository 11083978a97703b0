"""The state that bench/ckpt.py saves: a GPT training with AdamW, as names, types and shapes. Pure, and without torch.

fp32 parameters, exp_avg, exp_avg_sq, a bf16 copy, AdamW's step counts (one small tensor per parameter) and random
numbers: always 741 tensors; the width determines the size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness import BenchError

LAYERS = 12
CONTEXT = 64
RNG_BYTES = 5056  # torch's own generator state
BYTES = {"float32": 4, "bfloat16": 2, "uint8": 1}
_COPIES = (("model", "float32"), ("exp_avg", "float32"), ("exp_avg_sq", "float32"), ("bf16", "bfloat16"))
_PER_PARAMETER = sum(BYTES[dtype] for _, dtype in _COPIES)


@dataclass(frozen=True)
class Case:
    """`size`: bytes of the whole state. Sharded: each rank holds its rows of it; replicated: all of it."""

    size: int
    ranks: int = 1
    sharded: bool = True

    @property
    def words(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks, {'sharded' if self.sharded else 'replicated'}"
        return f"{self.size / 2**30:.3g} GiB, {ranks}"

    @property
    def held(self) -> int:
        """Bytes in all ranks' own tensors."""
        return self.size if self.sharded else self.size * self.ranks


@dataclass(frozen=True)
class Item:
    """A tensor, in whole. Those that FSDP2 would not shard have `rows` False."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]

    def local(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The shape of this rank's part, as `torch.chunk` along the first dimension cuts it."""
        if not self.rows:
            return self.shape
        each = math.ceil(self.shape[0] / ranks)
        start = min(rank * each, self.shape[0])
        return (min(each, self.shape[0] - start), *self.shape[1:])


def plan(size: int) -> list[Item]:
    """The tensors of about `size` bytes, never more. Raises BenchError below 192 KiB."""
    wanted = (size - RNG_BYTES - 4 * (12 * LAYERS + 4)) // _PER_PARAMETER
    width = 8
    while _parameters(width + 8, 4 * (width + 8)) <= wanted:
        width += 8
    vocabulary = 4 * width + (wanted - _parameters(width, 4 * width)) // width
    if vocabulary < 4 * width:
        raise BenchError(f"A state of {size} bytes is too small to be a GPT's", hint="ask for 192 KiB or more")
    shapes = _shapes(width, vocabulary)
    items = [Item(f"{copy}.{name}", dtype, shape) for copy, dtype in _COPIES for name, shape in shapes.items()]
    items += [Item(f"step.{name}", "float32", (), rows=False) for name in shapes]
    return [*items, Item("random", "uint8", (RNG_BYTES,), rows=False)]


def total(items: Sequence[Item]) -> int:
    return sum(item.size for item in items)


def _parameters(width: int, vocabulary: int) -> int:
    return sum(math.prod(shape) for shape in _shapes(width, vocabulary).values())


def _shapes(d: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token.weight": (vocabulary, d), "position.weight": (CONTEXT, d)}
    for layer in range(LAYERS):
        for name, shape in {
            "norm_1.weight": (d,), "norm_1.bias": (d,), "qkv.weight": (3 * d, d), "qkv.bias": (3 * d,),
            "out.weight": (d, d), "out.bias": (d,), "norm_2.weight": (d,), "norm_2.bias": (d,),
            "up.weight": (4 * d, d), "up.bias": (4 * d,), "down.weight": (d, 4 * d), "down.bias": (d,),
        }.items():  # fmt: skip
            shapes[f"blocks.{layer}.{name}"] = shape
    return {**shapes, "norm.weight": (d,), "norm.bias": (d,)}
