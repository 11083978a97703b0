"""A pseudorandom order of 0 to size - 1 that needs no table: any part of it is computed by itself.

A Feistel network permutes the numbers of 2k bits. Numbers outside the range are permuted again until they fall into it
(cycle walking), on average at most 3 more times. The order depends on the arguments alone, not on a library's version.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
Numbers = NDArray[np.uint64]


def permuted(places: Numbers, size: int, seed: int, epoch: int) -> Numbers:
    """Return the numbers at these places of the order of `size` numbers.

    Args:
        places: uint64 (n,), each below `size`.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.blake2b(f"{seed} {epoch} {size}".encode(), digest_size=8 * ROUNDS).digest(), np.uint64)
    found = _feistel(places, half, keys)
    while (outside := np.flatnonzero(found >= size)).size:
        found[outside] = _feistel(found[outside], half, keys)
    return found


def _feistel(numbers: Numbers, half: int, keys: Numbers) -> Numbers:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << shift) | right


def _mixed(value: Numbers) -> Numbers:
    """The finaliser of splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
