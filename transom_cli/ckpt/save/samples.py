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
        self._after_there: list[_OnDevice] | None = None

    def take_again(self) -> list[str]:
        """Sample the tensors again, in the thread that trains. Return the names of those that were written to."""
        self._after_there = self._read_there()
        return self._differing(self._read_here())

    def differences(self) -> list[str]:
        """The names of tensors whose copies, or whose later samples, differ. The copy must be over."""
        names = self._differing(_read([(source.to, source.size) for source in self._here]))
        for before, after in zip(self._before_there, self._after_there or self._before_there, strict=True):
            first, second, at = before.read(), after.read(), 0
            for source in before.sources:
                copied = _read([(source.to, source.size)])
                end = at + len(copied)
                if not first[at:end] == second[at:end] == copied:
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

    def _read_there(self) -> list[_OnDevice]:
        """The same of tensors on other devices. Waits for nothing."""
        by_device: dict[torch.device, list[Sampled]] = {}
        for source in self._there:
            by_device.setdefault(source.local.device, []).append(source)
        return [_OnDevice(device, sources) for device, sources in by_device.items()]


class _OnDevice:
    """Samples of tensors on one device, as one tensor there, in the order of its current stream."""

    def __init__(self, device: torch.device, sources: list[Sampled]) -> None:
        self.sources = sources
        parts = []
        for source in sources:
            data, middle = source.local.detach().view(-1).view(torch.uint8), _middle(source.size)
            parts += [data[middle : middle + SPOT], data[-SPOT:]] if source.size > 2 * SPOT else [data]
        self._held = torch.cat(parts)
        self._ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def read(self) -> bytes:
        """Wait until they are read, and return them. In any thread."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._held.cpu().numpy().tobytes()


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
