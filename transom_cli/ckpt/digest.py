"""Digests of tensors and values that do not depend on how a state is divided among ranks.

The digest of a tensor is a sum modulo 2^64 over its elements. Each element's bits are multiplied by an odd number that
only the element's position in the whole tensor decides. So every rank computes the sum over its own part, whatever its
shape, and the parts add up to the same number under FSDP, TP, HSDP or on one rank. Elements that change places change
the sum, as do a transposition and a QKV matrix that is split in another way.

The sum runs over words of 64 bits. A tensor is seen as rows of columns (`_first_column_dimension`), and each row
begins a new word. Word `w` of row `r` adds

    row(r) * block(w // WORDS) * (low[w % WORDS] * word + high[w % WORDS] * (word >> 32))    modulo 2^64

The second product is there because a multiplication modulo 2^64 loses the upper bits of the upper half: without it, two
elements there could exchange their signs unnoticed. As every operation is linear, a word that two ranks share is the
sum of both ranks' bits, and zero bytes may be added anywhere. Two different tensors of one shape have the same digest
with a probability of 2^-64, or up to 2^-31 if they differ in the signs of two elements alone. It is no protection
against a person who wants a collision.

Products with a table are matrix products of integers, the fastest form in numpy: 3 GB/s a thread for large tensors.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import math
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from transom_cli.ckpt.tree import PLAIN

MASK = (1 << 64) - 1
WORDS = 4096  # entries in a table of factors
_CHUNK = 8 * WORDS  # words summed by one call: with its scratch memory it fits into a second-level cache
_DEVICE_CHUNK = 1 << 24  # the same on a GPU
_COLUMNS = 64  # trailing dimensions are seen as one until they have this many elements
_PIECE = 32 << 20  # bytes that one thread sums at a time
_THREADS = 8
_SMALL = 64 << 10  # bytes; smaller parts are summed together
_BATCH = 4 << 20  # bytes summed together
_ROW, _BLOCK, _LOW, _HIGH = (0x9E3779B97F4A7C15 * k & MASK for k in (1, 3, 5, 7))
Array = Any  # numpy.ndarray or torch.Tensor


@dataclass(frozen=True)
class Part:
    """A contiguous box of a tensor of `shape` that begins at `offsets`; `tensor` is one rank's part."""

    tensor: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def digests(parts: Sequence[Part]) -> list[int]:
    """The digests of parts, computed with several threads. Nothing may write to the tensors meanwhile."""
    tasks: list[tuple[list[int], list[Part]]] = []  # numbers of parts, and parts of one box
    alike: dict[Any, list[int]] = {}
    for number, part in enumerate(parts):
        tensor = part.tensor
        if type(tensor) in PLAIN and 0 < tensor.nbytes <= _SMALL and not (tensor.is_conj() or tensor.is_neg()):
            box = part.shape, part.offsets, tensor.shape, tensor.element_size(), tensor.device
            alike.setdefault(box, []).append(number)
        else:
            tasks += [([number], [piece]) for piece in _pieces(part)]
    for numbers in alike.values():
        most = max(1, _BATCH // parts[numbers[0]].tensor.nbytes)
        some = [numbers[start : start + most] for start in range(0, len(numbers), most)]
        tasks += [(of_batch, [parts[number] for number in of_batch]) for of_batch in some]
    threads = min(_THREADS, len(os.sched_getaffinity(0)), len(tasks))
    if threads <= 1 or sum(part.tensor.nbytes for part in parts) < _PIECE:
        found = [_batch(together) for _, together in tasks]
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="transom-digest") as pool:
            found = list(pool.map(_batch, (together for _, together in tasks)))
    totals = [0] * len(parts)
    for (numbers, _), sums in zip(tasks, found, strict=True):
        for number, one in zip(numbers, sums, strict=True):
            totals[number] = (totals[number] + one) & MASK
    return totals


def digest(part: Part) -> int:
    """The sum over one part."""
    return _batch([part])[0]


@torch.no_grad()
def _batch(parts: list[Part]) -> list[int]:
    """The sums over parts with the same box, shape and element size: each call of numpy is for all of them."""
    part, count = parts[0], len(parts)
    if not part.tensor.numel():
        return [0] * count
    tensors = [one.tensor for one in parts]
    if count == 1:
        tensors = [part.tensor.detach().resolve_conj().resolve_neg()]
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    data: Array = torch.stack(raw) if count > 1 else raw[0]
    shape, offsets, sizes = part.shape or (1,), part.offsets or (0,), tuple(part.tensor.shape) or (1,)
    first = _first_column_dimension(shape)
    cut = max((d for d in range(first, len(shape)) if sizes[d] != shape[d]), default=first)
    inner = math.prod(shape[cut + 1 :]) * part.tensor.element_size()
    rows = _factors(_numbers(shape[:first], offsets[:first], sizes[:first]), _ROW)
    data = data.reshape(count * len(rows), -1, sizes[cut] * inner)
    data, sums = _arithmetic(data)
    columns = _numbers(shape[first:cut], offsets[first:cut], sizes[first:cut])
    total = np.zeros(count, np.uint64)
    for number, column in enumerate(columns.tolist()):
        of_rows = _sums_of_rows(data[:, number], (column * shape[cut] + offsets[cut]) * inner, sums)
        total += of_rows.reshape(count, len(rows)) @ rows
    return [int(one) for one in total]


def value_digest(value: Any, other: Callable[[Any], bytes | None] = lambda value: None) -> int | None:
    """A digest of a plain value, equal for equal values; None for a type that is not known.

    Tuples and lists are equal, as are all kinds of dicts, whose order does not matter, and numbers of numpy and Python.
    0.0 and -0.0 differ, as do 1, 1.0 and True. A sparse tensor counts by its coordinates and values.

    Args:
        other: returns the bytes that count for an object of another type; None: it is not known either.
    """
    try:
        return int(xxhash.xxh3_64_intdigest(_encoded(value, 32, other)))
    except (_Unknown, RecursionError):
        return None


class _Unknown(Exception):
    pass


def _encoded(value: Any, depth: int, other: Callable[[Any], bytes | None]) -> bytes:
    if depth == 0:
        raise _Unknown

    def inner(one: Any) -> bytes:
        return _encoded(one, depth - 1, other)

    kind = type(value)
    if isinstance(value, np.generic):
        value = value.item()
        kind = type(value)
    if value is None or kind in (bool, int):
        return f"{kind.__name__} {value};".encode()
    if kind is float:
        return b"float" + struct.pack("<d", value)
    if kind is complex:
        return b"complex" + struct.pack("<dd", value.real, value.imag)
    if kind in (str, bytes, bytearray):
        raw = value.encode("utf-8", "surrogatepass") if kind is str else bytes(value)
        return b"%s %d:%s" % (b"str" if kind is str else b"bytes", len(raw), raw)
    if isinstance(value, (list, tuple, deque)):
        return b"[" + b"".join([inner(one) for one in value]) + b"]"
    if isinstance(value, Mapping):
        pairs = sorted(inner(k) + inner(v) for k, v in value.items())
        return b"{" + b"".join(pairs) + b"}"
    if isinstance(value, (set, frozenset)):
        return b"(" + b"".join(sorted(inner(one) for one in value)) + b")"
    if isinstance(value, np.ndarray) and value.dtype == object:
        return f"array {value.shape}:".encode() + b"".join([inner(one) for one in value.flat])
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"array {value.dtype.str} {value.shape}:".encode() + value.tobytes()
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        pair = [inner(one) for one in _of_sparse(value)]
        return f"sparse {value.layout} {tuple(value.shape)}:".encode() + b"".join(pair)
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        total = digest(Part(whole, tuple(whole.shape), (0,) * whole.ndim))
        return f"tensor {whole.dtype} {tuple(whole.shape)}: {total};".encode()
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return f"{value};".encode()
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__};".encode()
    if isinstance(value, enum.Enum):
        return inner(type(value)) + inner(value.name)
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta)):
        return inner(type(value)) + inner(str(value))
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return inner(type(value)) + inner(fields)
    if (found := other(value)) is None:
        raise _Unknown
    return b"other %d:%s" % (len(found), found)


def _of_sparse(value: torch.Tensor) -> list[torch.Tensor]:
    if value.layout is torch.sparse_coo:
        value = value.coalesce()
        return [value.indices(), value.values()]
    by_row = value.layout in (torch.sparse_csr, torch.sparse_bsr)
    if by_row:
        return [value.crow_indices(), value.col_indices(), value.values()]
    return [value.ccol_indices(), value.row_indices(), value.values()]


def _pieces(part: Part) -> Iterator[Part]:
    """Cut a large part along its first dimensions, at words."""
    tensor = part.tensor
    if tensor.nbytes <= _PIECE or tensor.ndim == 0:
        yield part
        return
    long = next(d for d, size in enumerate(tensor.shape) if size > 1)
    each = max(1, tensor.shape[long] * _PIECE // tensor.nbytes)
    each = -(-each // 64) * 64 if each >= 64 else each
    for start in range(0, tensor.shape[long], each):
        offsets = list(part.offsets)
        offsets[long] += start
        length = min(each, tensor.shape[long] - start)
        yield Part(tensor.narrow(long, start, length), part.shape, tuple(offsets))


def _first_column_dimension(shape: tuple[int, ...]) -> int:
    """The dimensions from here on are columns. Depends on the whole tensor's shape only."""
    columns = 1
    for dimension in reversed(range(len(shape))):
        columns *= shape[dimension]
        if columns >= _COLUMNS:
            return dimension
    return 0


def _numbers(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """The numbers, in the whole, of a box's cells."""
    found = np.zeros(1, np.uint64)
    for whole, start, size in zip(shape, offsets, sizes, strict=True):
        found = (found[:, None] * np.uint64(whole) + np.arange(start, start + size, dtype=np.uint64)).reshape(-1)
    return found


def _sums_of_rows(data: Array, at: int, sums: _Sums) -> Array:
    """The sum of each row, without the row's own factor.

    data: two dimensions of bytes. at: the byte of the whole row at which each row of `data` begins.
    """
    last = -(-(at + data.shape[1]) // 8)
    start, total = at // 8, np.zeros(len(data), np.uint64)
    while start < last:
        end = min(last, (start // WORDS + 1) * WORDS)
        whole = min(sums.chunk, last - start) // WORDS if len(data) == 1 and start % WORDS == 0 else 0
        if whole > 1:  # a long row: its blocks take the place of rows
            end = start + whole * WORDS
            words = sums.words(data, at, start, end).reshape(whole, WORDS)
            blocks = np.arange(start // WORDS, end // WORDS, dtype=np.uint64)
            total += sums.add(words, 0) @ _factors(blocks, _BLOCK)
        else:
            block = _factors(np.array([start // WORDS], np.uint64), _BLOCK)
            step = max(1, sums.chunk // (end - start))
            for row in range(0, len(data), step):
                words = sums.words(data[row : row + step], at, start, end)
                total[row : row + step] += sums.add(words, start % WORDS) * block
        start = end
    return total


def _factors(numbers: Array, salt: int) -> Array:
    """The same as `odd`, for numbers in ascending order."""
    first, last = int(numbers[0]), int(numbers[-1])
    if last < WORDS and last - first + 1 == len(numbers):
        return _table(salt)[first : last + 1]
    return odd(numbers, salt)


def odd(numbers: Array, salt: int) -> Array:
    """Odd pseudo-random numbers: the output function of SplitMix64."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


@functools.cache
def _table(salt: int) -> Array:
    return odd(np.arange(WORDS, dtype=np.uint64), salt)


class _Sums:
    """The arithmetic, where the data is. words: words `start` to `end` of whole rows. add: the sum of each row."""

    chunk = _CHUNK

    def words(self, data: Array, at: int, start: int, end: int) -> Array:
        raise NotImplementedError

    def add(self, words: Array, first: int) -> Array:
        raise NotImplementedError


def _arithmetic(data: torch.Tensor) -> tuple[Array, _Sums]:
    """The data as the arithmetic of its device takes it."""
    return (data.numpy(), _HostSums()) if data.device.type == "cpu" else (data, _DeviceSums(data.device))


_scratch = threading.local()


class _HostSums(_Sums):
    def words(self, data: Array, at: int, start: int, end: int) -> Array:
        first, last = start * 8 - at, end * 8 - at  # in `data`; may lie outside at both ends
        inside = data[:, max(0, first) : last]
        if inside.shape[1] == last - first and not (inside.ctypes.data | inside.strides[0]) % 8:
            return inside.view(np.uint64)
        padded = np.zeros((len(data), last - first), np.uint8)
        padded[:, max(0, -first) : max(0, -first) + inside.shape[1]] = inside
        return padded.view(np.uint64)

    def add(self, words: Array, first: int) -> Array:
        if getattr(_scratch, "words", None) is None:
            _scratch.words = np.empty(_CHUNK, np.uint64)
        upper = _scratch.words[: words.size].reshape(words.shape)
        np.right_shift(words, np.uint64(32), out=upper)
        last = first + words.shape[1]
        return words @ _table(_LOW)[first:last] + upper @ _table(_HIGH)[first:last]


class _DeviceSums(_Sums):
    """torch has no matrix product of integers on GPUs, and no unsigned ones; signed ones wrap around just so."""

    chunk = _DEVICE_CHUNK

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def words(self, data: Array, at: int, start: int, end: int) -> Array:
        first, last = start * 8 - at, end * 8 - at
        inside = data[:, max(0, first) : last]
        if inside.shape[1] == last - first and not (inside.data_ptr() | inside.stride(0)) % 8:
            return inside.view(torch.int64)
        padded = torch.zeros((len(data), last - first), dtype=torch.uint8, device=self._device)
        padded[:, max(0, -first) : max(0, -first) + inside.shape[1]] = inside
        return padded.view(torch.int64)

    def add(self, words: Array, first: int) -> Array:
        last = first + words.shape[1]
        low, high = (self._here(_table(salt)[first:last]) for salt in (_LOW, _HIGH))
        sums = (words * low).sum(1) + (((words >> 32) & 0xFFFFFFFF) * high).sum(1)
        return sums.cpu().numpy().view(np.uint64)

    def _here(self, numbers: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers).view(np.int64)).to(self._device)
