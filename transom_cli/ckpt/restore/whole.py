"""A checkpoint read value by value, each tensor put together from its shards: any number of ranks may have written it.

Nothing is verified here: the caller has. Torch's own metadata and values that are not tensors are read without running
code (`restoring.plain`), unless the caller allows it.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.restore import plain
from transom_cli.ckpt.restore.reading import OnDisk
from transom_cli.ckpt.restore.restore import paths_of
from transom_cli.ckpt.save.engine import describe
from transom_cli.ckpt.tree import Paths


class Whole:
    """`paths` names all values: flat key -> where it stands. Raises StateMismatch when it is none of ours."""

    def __init__(self, checkpoint: Path, *, allow_code: bool = False) -> None:
        self._checkpoint, self._allow_code = checkpoint, allow_code
        try:
            self._metadata = OnDisk(checkpoint).metadata(allow_code=allow_code)
        except StateMismatch:
            raise
        except Exception as error:  # bytes that are as they were written, and not torch's
            raise StateMismatch(f"torch's own metadata of {checkpoint.name} cannot be read", str(error)) from None
        self.paths: Paths = paths_of(self._metadata)
        self._stored: dict[str, Any] = dict(self._metadata.state_dict_metadata)
        self._reader = FileSystemReader(checkpoint)
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)

    def is_tensor(self, key: str) -> bool:
        return isinstance(self._stored[key], TensorStorageMetadata)

    def placeholder(self, key: str) -> torch.Tensor:
        """A CPU tensor of the shape and type of `key`'s. Its memory is not touched, so it costs address space only."""
        stored = self._stored[key]
        return torch.empty(stored.size, dtype=stored.properties.dtype)

    def tensor(self, key: str) -> torch.Tensor:
        """The whole tensor, contiguous, in memory of its own; and one shard more while it is read."""
        stored = self._stored[key]
        held = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
        if held != math.prod(stored.size):
            raise StateMismatch(f"The shards of `{key}` have {held} elements, and it has {math.prod(stored.size)}")
        target = self.placeholder(key)
        self._read({key: target})
        return target

    def value(self, key: str) -> tuple[Any, bool]:
        """A value that is no tensor, and whether torch's `weights_only` loads it. Raises NeedsCode."""
        try:
            data = self._read({key: None})[key]
            try:
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), True
            except pickle.UnpicklingError:
                return plain.value(data, key, map_location="cpu", allow_code=self._allow_code), False
        except (ImportError, AttributeError) as error:
            raise StateMismatch(
                f"`{key}` cannot be loaded here",
                str(error),
                "run this where the training's own code can be imported, or choose other parts with --only",
            ) from None

    def _read(self, targets: dict[str, Any]) -> dict[str, bytes]:
        planner = _Planner()
        planner.set_up_planner(targets, self._metadata, is_coordinator=True)
        try:
            self._reader.read_data(planner.create_local_plan(), planner).wait()
        except OSError as error:
            raise StateMismatch(
                f"{self._checkpoint} cannot be read any more",
                describe(error),
                "a training that is running deletes old checkpoints: export again",
            ) from None
        return planner.data


class _Planner(DefaultLoadPlanner):
    """Fills tensors in place, and keeps the bytes of other values as they are stored."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.data: dict[str, bytes] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.data[read_item.dest_index.fqn] = value.getvalue()


def raw(storage: torch.UntypedStorage) -> memoryview:
    """The bytes of a CPU storage, not copied."""
    data: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memoryview(data)
