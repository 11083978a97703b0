"""The ranks that checkpoint together, and their own process group.

Its collectives run in the background thread of a save while training uses the default group from the main thread: one
group used by two threads would mix up messages. Everything is exchanged over gloo, on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from transom_cli.errors import UsageError

FAILURES = (Exception, CheckpointException)  # DCP raises CheckpointException, a bare BaseException


def _close(held: list[Any]) -> None:
    """Close the process group in `held`, the last reference to it outside torch."""
    with contextlib.suppress(ValueError, AssertionError):  # the trainer destroyed all groups itself
        dist.destroy_process_group(held[0])
    held.clear()


class _Group:
    """The ranks' process group; closed when the process exits, or when nothing refers to it any more.

    One of gloo's threads may still hold the tensors of the last collective after it has returned. If it releases them
    while the interpreter shuts down, the process aborts (`terminate called without an active exception`, SIGABRT) and
    its exit code is lost. Closing the group first joins those threads.
    """

    def __init__(self) -> None:
        self.held: list[Any] = [dist.new_group(backend="gloo")]
        weakref.finalize(self, _close, self.held)


class Ranks:
    """Made once, by all ranks together (it makes a process group). Not thread-safe: one thread at a time."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.size: int = dist.get_world_size() if together else 1
        self.rank: int = dist.get_rank() if together else 0
        self._own = _Group() if together else None
        world = os.environ.get("WORLD_SIZE", "1")
        if not together and world.isdecimal() and int(world) > 1:
            raise UsageError(
                f"The Checkpointer was made before the {world} ranks found each other",
                "WORLD_SIZE is " + world + ", and torch.distributed is not initialized: each would write alone",
                "call torch.distributed.init_process_group() first",
            )

    @property
    def group(self) -> Any:
        """The process group; None with one rank.

        Raises:
            RuntimeError: the process is exiting, and its group is closed.
        """
        if self._own is None:
            return None
        if not self._own.held:
            raise RuntimeError("the process is exiting: the ranks can no longer exchange anything")
        return self._own.held[0]

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, on every rank: equally many of each. Cheaper than objects for thousands of ranks."""
        if self.group is None:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everyones = torch.empty(self.size * len(data), dtype=torch.uint8)
        dist.all_gather(list(everyones.split(len(data))), mine, group=self.group)
        joined = everyones.numpy().tobytes()
        return [joined[at : at + len(data)] for at in range(0, len(joined), len(data))]

    def to_first(self, value: Any) -> list[Any] | None:
        """The values of all ranks, on rank 0; None elsewhere."""
        if self.group is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.first else None
        dist.gather_object(value, values, dst=0, group=self.group)
        return values

    def each_from_first(self, values: list[Any] | None) -> Any:
        """Scatter: each rank gets its value from rank 0. `values` is None on the others."""
        if self.group is None:
            return values[0] if values else None
        box: list[Any] = [None]
        dist.scatter_object_list(box, values, src=0, group=self.group)
        return box[0]

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.group is None:
            return value
        box = [value if self.first else None]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]
