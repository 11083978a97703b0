"""Samples of tensors that are copied while training continues, to find writes that torch does not count.

torch counts writes to a tensor, but not those through `.data` or by kernels of other libraries: weights that are
clipped or averaged that way would be stored half before and half after the write. Such a write changes all of a tensor,
so a few of its bytes tell. They are read when the copy begins, and compared with the same bytes of the copy, and of the
tensor when the copy must be over. A write to a small part of a tensor can be missed; `prove` finds it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

SPOT = 64  # bytes of a sample; two of each tensor: in its middle and at its end


class Sampled(Protocol):
    """A tensor of `size` bytes that is copied to address `to`."""

    @property
    def name(self) -> str: ...
    @property
    def local(self) -> torch.Tensor: ...
    @property
    def to(self) -> int: ...
    @property
    def size(self) -> int: ...


class Samples:
    """Made before the copy begins. For tensors whose bytes are contiguous."""

    def __init__(self, sources: Sequence[Sampled]) -> None:
        self._here = [source for source in sources if source.local.is_cpu]
        self._there = [source for source in sources if not source.local.is_cpu]
        self._before = self._read_here()
        self._before_there = self._read_there()
        self._after_there: torch.Tensor | None = None

    def take_again(self) -> list[str]:
        """Sample the tensors again, in the thread that trains. Return the names of those that were written to."""
        self._after_there = self._read_there()
        return self._differing(self._read_here())

    def differences(self) -> list[str]:
        """The names of tensors whose copies, or whose later samples, differ. The copy must be over."""
        names = self._differing(_read([(source.to, source.size) for source in self._here]))
        if self._before_there is None:
            return names
        before, at = self._before_there.cpu().numpy().tobytes(), 0
        after = before if self._after_there is None else self._after_there.cpu().numpy().tobytes()
        for source in self._there:
            copied = _read([(source.to, source.size)])
            end = at + len(copied)
            if not before[at:end] == after[at:end] == copied:
                names.append(source.name)
            at = end
        return names

    def _differing(self, now: bytes) -> list[str]:
        if now == self._before:
            return []
        names, at = [], 0
        for source in self._here:
            end = at + min(source.size, 2 * SPOT)
            if now[at:end] != self._before[at:end]:
                names.append(source.name)
            at = end
        return names

    def _read_here(self) -> bytes:
        return _read([(source.local.data_ptr(), source.size) for source in self._here])

    def _read_there(self) -> torch.Tensor | None:
        """The same of tensors on devices, as one tensor there. Waits for nothing."""
        parts = []
        for source in self._there:
            data, middle = source.local.detach().view(-1).view(torch.uint8), _middle(source.size)
            parts += [data[middle : middle + SPOT], data[-SPOT:]] if source.size > 2 * SPOT else [data]
        return torch.cat(parts) if parts else None


def _middle(size: int) -> int:
    return size // 2 // SPOT * SPOT


def _read(tensors: Sequence[tuple[int, int]]) -> bytes:
    """The samples of tensors at these addresses, with these bytes."""
    found: list[bytes] = []
    for address, size in tensors:
        if size > 2 * SPOT:
            found.append(ctypes.string_at(address + _middle(size), SPOT))
            found.append(ctypes.string_at(address + size - SPOT, SPOT))
        elif size:
            found.append(ctypes.string_at(address, size))
    return b"".join(found)
