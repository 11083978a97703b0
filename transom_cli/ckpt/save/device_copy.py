"""Copies of tensors into a snapshot by torch, and samples that show whether a tensor changed while it was copied.

torch queues a copy from a GPU on the current stream of the device that it copies from, whichever device is current. So
one event for each of these devices marks the end of the copies. Not exercised on hardware.

torch counts writes to a tensor, but not those through `.data` or by kernels of other libraries: weights that are
clipped or averaged that way would be stored half before and half after the write. Such a write changes all of a tensor,
so a few of its bytes tell. They are read when the copy begins, and compared with the same bytes of the copy, and of the
tensor when the copy must be over. A write to a small part of a tensor can be missed; `prove` finds it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from transom_cli.ckpt.save.buffer import Buffer


class Source(NamedTuple):
    """A tensor to copy, and its `local` part: `size` bytes that go to address `to`, at offset `at` of the buffer."""

    name: str
    tensor: torch.Tensor
    local: torch.Tensor
    at: int
    to: int
    size: int


@dataclass(frozen=True)
class Ends:
    """Events behind the copies, by device."""

    events: tuple[tuple[torch.device, Any], ...] = ()

    def hold_devices(self) -> None:
        """Let what is queued on each device from now on wait for its copies. This thread does not wait."""
        for device, event in self.events:
            torch.cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        for _, event in self.events:
            event.synchronize()


def copy(buffer: Buffer, sources: Iterable[Source]) -> Ends:
    """Copy by torch: from GPUs on the current streams of their devices, and from anything else at once."""
    devices: dict[torch.device, None] = {}
    for source in sources:
        local = source.local
        view = buffer.bytes[source.at : source.at + source.size].view(local.dtype).view(local.shape)
        view.copy_(local, non_blocking=local.is_cuda)
        if local.is_cuda:
            devices[local.device] = None
    return Ends(tuple((device, torch.cuda.current_stream(device).record_event()) for device in devices))


class SideStreams:
    """A stream for each device, so that copies run beside training."""

    def __init__(self) -> None:
        self._by_device: dict[torch.device, Any] = {}

    def copy(self, buffer: Buffer, sources: Sequence[Source]) -> Ends:
        """Queue the copies behind all that is queued on their devices' current streams now."""
        events: list[tuple[torch.device, Any]] = []
        for device in dict.fromkeys(source.local.device for source in sources):
            if device not in self._by_device:
                self._by_device[device] = torch.cuda.Stream(device)
            side = self._by_device[device]
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                events += copy(buffer, [source for source in sources if source.local.device == device]).events
        return Ends(tuple(events))


SPOT = 64  # bytes of a sample; two of each tensor: in its middle and at its end


class Samples:
    """Made before the copy begins. For tensors whose bytes are contiguous."""

    def __init__(self, sources: Sequence[Source]) -> None:
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
        by_device: dict[torch.device, list[Source]] = {}
        for source in self._there:
            by_device.setdefault(source.local.device, []).append(source)
        return [_OnDevice(device, sources) for device, sources in by_device.items()]


class _OnDevice:
    """Samples of tensors on one device, as one tensor there, in the order of its current stream."""

    def __init__(self, device: torch.device, sources: list[Source]) -> None:
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
