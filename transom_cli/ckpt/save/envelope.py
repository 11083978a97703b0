"""The bytes that torch.save puts around a tensor's own, so that stock torch reads what we write.

A torch.distributed.checkpoint (DCP) data file is a row of `torch.save`d tensors, each an uncompressed zip archive in
which the tensor's bytes stand as they are. What stands around them depends on shape and type alone: it is made once,
by torch itself, and after that a save only has to put the tensor's bytes in between.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import IO, cast

import torch

ALIGNMENT = 64  # bytes: torch.save puts a tensor's bytes on a multiple of it, counted from where the archive begins


@dataclass(frozen=True)
class Envelope:
    """`head`, the tensor's `nbytes` contiguous bytes, `tail`: what torch.load reads."""

    head: bytes
    nbytes: int
    tail: bytes

    @property
    def length(self) -> int:
        return len(self.head) + self.nbytes + len(self.tail)


@functools.lru_cache(maxsize=4096)
def envelope(shape: torch.Size, dtype: torch.dtype) -> Envelope:
    """For a contiguous CPU tensor. Raises RuntimeError if this torch lays out its files in another way."""
    tensor = torch.empty(shape, dtype=dtype)  # its memory is never touched
    size = tensor.numel() * tensor.element_size()
    sparse = _Sparse()
    with torch.serialization.skip_data():
        torch.save(tensor, cast(IO[bytes], sparse))
    head, tail = sparse.around(size)
    if len(head) % ALIGNMENT and size:
        raise RuntimeError(f"torch {torch.__version__} does not align what torch.save writes to {ALIGNMENT} bytes")
    return Envelope(head, size, tail)


class _Sparse:
    """A file that keeps what is written and leaves out what is skipped."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._at = 0

    def write(self, data: bytes) -> int:
        self._pieces[self._at] = bytes(data)
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (self._at if whence == 1 else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing is buffered."""

    def around(self, size: int) -> tuple[bytes, bytes]:
        """What was written before and after the one hole of `size` bytes."""
        parts, end, hole = [bytearray(), bytearray()], 0, 0
        for start, data in sorted(self._pieces.items()):
            if start != end and (start - end != size or hole):
                raise RuntimeError(f"torch {torch.__version__} left a hole of {start - end} bytes, not of {size}")
            hole += start != end
            parts[hole] += data
            end = start + len(data)
        if size and not hole:
            raise RuntimeError(f"torch {torch.__version__} did not skip the tensor's bytes")
        return bytes(parts[0]), bytes(parts[1])
