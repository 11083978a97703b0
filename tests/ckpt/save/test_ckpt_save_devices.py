"""Copies from several GPUs are complete before they count. A recorded model of streams: not exercised on hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from transom_cli.ckpt.save.buffer import Buffer
from transom_cli.ckpt.save.staging import Source, Stager

SIZE = 256  # elements of each tensor


class Stream:
    """Work that is queued runs when an event behind it is awaited, as on a GPU that is slow."""

    def __init__(self, gpu: Gpus, device: int) -> None:
        self.gpu, self.device = gpu, device
        self.queue: list[Callable[[], object]] = []

    def run(self, until: int) -> None:
        work, self.queue = self.queue[:until], self.queue[until:]
        for one in work:
            one()

    def synchronize(self) -> None:
        self.run(len(self.queue))

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        self.queue.append(event.synchronize)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.done = False
        stream.queue.append(self.mark)
        self.stream = stream

    def mark(self) -> None:
        self.done = True

    def synchronize(self) -> None:
        while not self.done:
            self.stream.run(1)


class Gpus:
    """The trainer's stream of each device; `current` is the device that set_device chose."""

    def __init__(self) -> None:
        self.current = 0
        self.streams = {device: Stream(self, device) for device in range(3)}

    def device_of(self, device: Any) -> int:
        return self.current if device is None else int(getattr(device, "index", device))

    def current_stream(self, device: Any = None) -> Stream:
        return self.streams[self.device_of(device)]


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU. Copies from it are queued on the current stream of its device."""

    gpus: Gpus
    index: int

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.index)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            to, source = args[0], args[1]
            plain = source.as_subclass(torch.Tensor)
            source.gpus.streams[source.index].queue.append(lambda: to.copy_(plain))
            return to
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, OnGpu) and isinstance(args[0], OnGpu) and hasattr(args[0], "gpus"):
            made.gpus, made.index = args[0].gpus, args[0].index
        return made


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    monkeypatch.setattr(torch.cuda, "current_stream", made.current_stream)
    return made


@pytest.fixture
def stager() -> Iterator[Stager]:
    made = Stager(lambda need, size: Buffer(size), first=True)
    yield made
    made.close()


def sources(gpus: Gpus, buffer: Buffer, devices: list[int]) -> list[Source]:
    """One tensor for each device, whose value a kernel in the trainer's stream has yet to write."""
    found = []
    for n, device in enumerate(devices):
        tensor = torch.zeros(SIZE).as_subclass(OnGpu)
        tensor.gpus, tensor.index = gpus, device
        plain = tensor.as_subclass(torch.Tensor).data  # a kernel counts its write when it is queued
        gpus.streams[device].queue.append(lambda plain=plain, n=n: plain.fill_(n + 1.0))
        found.append(Source(tensor, n * SIZE * 4, SIZE * 4))
    return found


def values(buffer: Buffer, count: int) -> list[float]:
    return [float(buffer.bytes[n * SIZE * 4 : (n + 1) * SIZE * 4].view(torch.float32).max()) for n in range(count)]


@pytest.mark.parametrize("current", [0, 2])
def test_copy_waits_for_every_source_device(gpus: Gpus, stager: Stager, current: int) -> None:
    """Also where the current device is one that holds nothing: a trainer without set_device."""
    buffer = Buffer(1 << 20)
    gpus.current = current
    stager._copy(buffer, sources(gpus, buffer, [0, 1, 0]))
    assert values(buffer, 3) == [1.0, 2.0, 3.0]
