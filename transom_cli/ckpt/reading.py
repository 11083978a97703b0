"""Reads a checkpoint's data files as they stand, on disk or in memory: mapped, and copied to their tensors with several
threads.

DCP's own reader unpacks an archive for every tensor. What our writer wrote is known byte for byte: what stands around
a tensor is compared with what we would put there, and the tensor's bytes are taken from between. Anything else (a
checkpoint that another torch wrote, or DCP itself) is left to torch.load.
"""

from __future__ import annotations

import io
import mmap
import pickle
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from transom_cli.ckpt.envelope import envelope
from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.names import DCP_METADATA
from transom_cli.ckpt.streaming import Copier, Piece


class Source(Protocol):
    """A checkpoint whose bytes are good, or are checked when they are opened."""

    path: Path  # for DCP's words; a snapshot in memory has none of its own

    def metadata(self) -> Metadata: ...

    def open(self, name: str) -> tuple[mmap.mmap, int]:
        """A data file's bytes, in memory that may be written to, and where in it they begin."""
        ...


class OnDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def metadata(self) -> Metadata:
        return unpickled((self.path / DCP_METADATA).read_bytes())

    def open(self, name: str) -> tuple[mmap.mmap, int]:
        with (self.path / name).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), 0


def unpickled(data: bytes) -> Metadata:
    """torch's own metadata. Raises StateMismatch for what is none of ours."""
    metadata = pickle.loads(data)
    if not isinstance(metadata, Metadata) or not isinstance(metadata.planner_data, dict):
        raise StateMismatch("torch's own metadata is not that of a checkpoint of ours")
    return metadata


class MappedReader(FileSystemReader):
    """A storage reader for `dcp.load`."""

    def __init__(self, source: Source, metadata: Metadata) -> None:
        super().__init__(source.path)
        self._source = source
        self._metadata = metadata
        self._copier = Copier()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            self._read(*self._source.open(name), items, planner)  # the map goes with the last tensor that looks at it
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        self._copier.close()

    def _read(self, data: mmap.mmap, base: int, items: list[ReadItem], planner: LoadPlanner) -> None:
        pieces: list[Piece] = []
        copied: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []  # whose addresses must stay good until the end
        for item in items:
            where = self.storage_data[item.storage_index]
            start = base + where.offset
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data[start : start + where.length]))
                continue
            stored = self._stored(item.storage_index, data, start, where.length)
            for dimension, (first, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                stored = stored.narrow(dimension, first, length)
            target = planner.resolve_tensor(item).detach()
            if target.size() != stored.size():
                raise ValueError(f"{item.storage_index.fqn}: {list(stored.size())} stored, {list(target.size())} here")
            if _plain(target) and _plain(stored) and target.dtype == stored.dtype:
                pieces.append((target.data_ptr(), stored.data_ptr(), target.numel() * target.element_size()))
            else:
                target.copy_(stored)
            copied.append((item, target, stored))
        self._copier.copy(pieces)
        for item, target, _ in copied:
            planner.commit_tensor(item, target)

    def _stored(self, index: MetadataIndex, data: mmap.mmap, start: int, length: int) -> torch.Tensor:
        """The tensor as it was stored; a view of `data` where it may be."""
        about: Any = self._metadata.state_dict_metadata[index.fqn]
        shape = next(chunk.sizes for chunk in about.chunks if chunk.offsets == index.offset)
        around = envelope(shape, about.properties.dtype)
        payload = start + len(around.head)
        tail = payload + around.nbytes
        if (length, data[start:payload], data[tail : start + length]) != (around.length, around.head, around.tail):
            raw = io.BytesIO(data[start : start + length])
            loaded: torch.Tensor = torch.load(raw, map_location="cpu", weights_only=True)
            return loaded
        if not around.nbytes:
            return torch.empty(shape, dtype=about.properties.dtype)
        flat = torch.frombuffer(data, dtype=torch.uint8, count=around.nbytes, offset=payload)
        return flat.view(about.properties.dtype).view(shape)


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.is_cpu and tensor.is_contiguous()
