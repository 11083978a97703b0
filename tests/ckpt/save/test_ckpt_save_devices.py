"""Copies from several GPUs are complete before they count. A recorded model of streams: not exercised on hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from transom_cli.ckpt.save.buffer import Buffer
from transom_cli.ckpt.save.staging import Copying, Source, Stager

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

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


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

    def new_stream(self, device: Any = None) -> Stream:
        return Stream(self, self.device_of(device))

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before, device = self.streams[stream.device], self.current
        self.streams[stream.device], self.current = stream, stream.device
        try:
            yield
        finally:
            self.streams[stream.device], self.current = before, device


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
        if func is torch.cat:
            parts = [part.as_subclass(torch.Tensor) for part in args[0]]
            held = torch.zeros(sum(len(part) for part in parts), dtype=parts[0].dtype)
            args[0][0].gpus.streams[args[0][0].index].queue.append(lambda: torch.cat(parts, out=held))
            return held
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, OnGpu) and isinstance(args[0], OnGpu) and hasattr(args[0], "gpus"):
            made.gpus, made.index = args[0].gpus, args[0].index
        return made


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    monkeypatch.setattr(torch.cuda, "current_stream", made.current_stream)
    monkeypatch.setattr(torch.cuda, "Stream", made.new_stream)
    monkeypatch.setattr(torch.cuda, "stream", made.use)
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
        found.append(Source(f"t{n}", tensor, tensor, n * SIZE * 4, buffer.address + n * SIZE * 4, SIZE * 4))
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


def test_overlapped_copy_is_ordered_on_every_source_device(gpus: Gpus, stager: Stager) -> None:
    buffer = Buffer(1 << 20)
    those = sources(gpus, buffer, [0, 1, 0])
    gpus.current = 2
    copying = Copying(those, prove=False)
    stager._begin(buffer, those, copying)
    assert values(buffer, 3) == [0.0, 0.0, 0.0], "it has not waited"
    copying.join()
    for source in those:  # the next optimizer step, queued after join()
        device, plain = source.local.device.index, source.local.as_subclass(torch.Tensor).data
        gpus.streams[device].queue.append(lambda plain=plain: plain.fill_(-1.0))
    for stream in gpus.streams.values():
        stream.synchronize()
    copying.settle()
    assert values(buffer, 3) == [1.0, 2.0, 3.0], "neither the values before the last kernel nor those of the next step"


def test_settle_waits_for_every_source_device(gpus: Gpus, stager: Stager, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background thread, without the optimizer step that would have waited."""
    from transom_cli.ckpt.save import staging

    monkeypatch.setattr(staging, "_AFTER", 0.01)
    buffer = Buffer(1 << 20)
    those = sources(gpus, buffer, [1, 0])
    copying = Copying(those, prove=False)
    stager._begin(buffer, those, copying)
    copying.settle()
    assert values(buffer, 2) == [1.0, 2.0]


def test_failed_copy_is_reported_by_settle() -> None:
    copying, run = Copying([], prove=False), Future[None]()
    run.set_exception(RuntimeError("no copy"))
    copying.begin(run)
    with pytest.raises(RuntimeError, match="no copy"):
        copying.settle()
