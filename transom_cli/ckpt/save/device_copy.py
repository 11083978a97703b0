"""Copies from GPUs into a snapshot, ordered by events on every device that holds a part of the state.

torch queues a copy on the current stream of the device that it copies from, whichever device is current. So one event
for each of these devices marks the end of the copies. Not exercised on hardware.
"""

from __future__ import annotations

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
