"""Reads a checkpoint's data files as they stand: mapped into memory, and copied to their tensors with several threads.

DCP's own reader unpacks an archive for every tensor. What our writer wrote is known byte for byte: what stands around
a tensor is compared with what we would put there, and the tensor's bytes are taken from between. Anything else (a
checkpoint that another torch wrote, or DCP itself) is left to torch.load.
"""

from __future__ import annotations

import io
import mmap
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from transom_cli.ckpt.envelope import envelope
from transom_cli.ckpt.streaming import Copier, Piece


class MappedReader(FileSystemReader):
    """A storage reader for `dcp.load`. The files' bytes must have been checked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._directory = path
        self._metadata = Metadata({})
        self._copier = Copier()

    def set_up_storage_reader(self, metadata: Metadata, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, *args, **kwargs)
        self._metadata = metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            with (self._directory / name).open("rb") as file:
                data = mmap.mmap(
                    file.fileno(), 0, access=mmap.ACCESS_COPY
                )  # goes with the last tensor that looks at it
            self._read(data, items, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        self._copier.close()

    def _read(self, data: mmap.mmap, items: list[ReadItem], planner: LoadPlanner) -> None:
        pieces: list[Piece] = []
        copied: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []  # whose addresses must stay good until the end
        for item in items:
            where = self.storage_data[item.storage_index]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data[where.offset : where.offset + where.length]))
                continue
            stored = self._stored(item.storage_index, data, where.offset, where.length)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                stored = stored.narrow(dimension, start, length)
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
