"""A copy that runs while training goes on: through the next forward and backward, up to the optimizer's next step.

Parameters and optimizer state do not change between two steps of the optimizer (the lazy window of DataStates-LLM, HPDC
2024). So save() may return before they are copied, if the next step waits for what is left: a hook on every optimizer
of the process does. Whatever else is in the state (buffers, random numbers, a scheduler's tensors) is copied before.

A program may break that rule: it clips weights, or swaps in averaged ones to evaluate. torch counts the writes to each
tensor, so a copy of which a tensor was written to before it was over is given up, and it is said which. Writes through
`.data` and those of other libraries' kernels are not counted; with `prove` these are found too, by checksums before
and after, which takes longer than a blocking save.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import torch
import xxhash

from transom_cli.ckpt.save.streaming import Piece
from transom_cli.ckpt.tree import local_part

# Seconds after a copy, if no optimizer steps: a write is counted when it is over, and one over all parameters may last.
_AFTER = 5.0


class Torn(RuntimeError):
    """The state changed while it was copied."""


class Source(NamedTuple):
    """A tensor to copy, as the trainer holds it, and its `local` part. Its `size` bytes go to `to`, which is `at` in
    the arena."""

    name: str
    tensor: torch.Tensor
    local: torch.Tensor
    at: int
    to: int
    size: int


@dataclass(frozen=True)
class Later:
    """What may be copied later: tensors in these storages, by address. `prove`: and by checksums that it could."""

    storages: frozenset[int] = frozenset()
    prove: bool = False

    def allows(self, local: torch.Tensor) -> bool:
        return bool(self.storages) and local.untyped_storage().data_ptr() in self.storages


class Copying:
    """One copy under way: `run` copies what is in memory, `event` (CUDA) marks the end of what a GPU copies by itself.

    Made before the copy begins. Whether it is whole is decided once: by `join`, or in its absence by `settle`.
    """

    def __init__(self, sources: Sequence[Source], *, prove: bool) -> None:
        self._sources = list(sources)
        self._versions = [source.tensor._version for source in sources]
        self._before = [_digest_of(source.tensor) for source in sources] if prove else []
        self._run: Future[None] | None = None
        self._event: torch.cuda.Event | None = None
        self._decision = threading.Lock()
        self._decided = threading.Event()
        self._changed: list[str] = []

    def begin(self, run: Future[None], event: torch.cuda.Event | None = None) -> None:
        self._run, self._event = run, event

    @property
    def over(self) -> bool:
        return self._decided.is_set()

    def join(self) -> None:
        """In the training's thread, where nothing writes meanwhile: after it, everything may change."""
        if self._run is not None:
            self._run.exception()
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)  # the GPU waits, this thread need not
        self._decide()

    def settle(self) -> None:
        """Wait until the copy is known to be whole. Raises Torn, or what went wrong in it."""
        if self._run is not None:
            self._run.result()
        if self._event is not None:
            self._event.synchronize()
        if not self._decided.wait(_AFTER):
            self._decide()
        for source, before in zip(self._sources, self._before, strict=False):
            if source.name not in self._changed and _digest(source.to, source.size) != before:
                self._changed.append(source.name)
        self._sources = []
        if self._changed:
            more = f" and {len(self._changed) - 1} more" if len(self._changed) > 1 else ""
            raise Torn(f'{self._changed[0]}{more} changed outside an optimizer\'s step; use copy="blocking"')

    def _decide(self) -> None:
        with self._decision:
            if not self._decided.is_set():
                seen = zip(self._sources, self._versions, strict=True)
                self._changed = [source.name for source, version in seen if source.tensor._version != version]
                self._decided.set()


def pieces(sources: Sequence[Source]) -> list[Piece]:
    """For tensors in this process's memory, contiguous."""
    return [(source.to, source.local.data_ptr(), source.size) for source in sources]


def _digest_of(tensor: torch.Tensor) -> int:
    local = local_part(tensor).detach().cpu().contiguous()
    return _digest(local.data_ptr(), local.numel() * local.element_size())


def _digest(address: int, size: int) -> int:
    return xxhash.xxh3_64_intdigest((ctypes.c_char * size).from_address(address)) if size else 0
