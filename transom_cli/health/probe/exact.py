"""Sums of whole numbers that every device must get right: inputs by a formula, and the answers' digests. Pure.

All products and sums are whole numbers that the type holds exactly, so that neither the order of additions nor the
kernel matters: a bit that differs from the table is wrong, whoever computed it and however alone it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Exact:
    """A product of two square matrices of odd numbers up to `most`, of either sign.

    With 2048 sums a bfloat16 holds those of ±1 only as long as they are at most 256, which the chosen numbers keep.
    """

    dtype: str
    size: int
    most: int

    @property
    def name(self) -> str:
        return f"exact {self.dtype} {self.size}"


CPU = (Exact("float32", 256, 15), Exact("int8", 256, 15))
CUDA = (
    Exact("bfloat16", 2048, 1),
    Exact("float16", 2048, 1),
    Exact("float32", 2048, 15),
    Exact("int8", 2048, 15),
)
# By `digest` of the product as float64, from 64-bit integer arithmetic (the tests compute the small ones again).
_ANSWERS = {
    (256, 15): "469989d34ef2a0f1",
    (2048, 1): "7598c816889604c2",
    (2048, 15): "7ed85c72bbf98267",
}
ANSWERS = {exact.name: _ANSWERS[exact.size, exact.most] for exact in (*CPU, *CUDA)}


def digest(data: bytes) -> str:
    """Of a result's bytes; the standard library's, since a trainer's container may have torch and nothing of ours."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
