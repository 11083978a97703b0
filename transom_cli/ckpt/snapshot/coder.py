"""Parity computed in place: one operation, `fold`, by Intel's ISA-L where it is installed, else by numpy.

`fold` adds a multiple of some bytes to others. Parity is folded from data, and lost data from the remaining columns, in
any order and in pieces of any size: `into` starts as zeros, and a piece is folded when it is there. Nothing is copied
on the way, and other threads run meanwhile; the wrappers that exist for Python (pyeclib, zfec) copy, and lose most of
the speed to that. Pieces that fit the processor's caches are best when one is folded into several rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from transom_cli.ckpt.snapshot.galois import ELEMENTS, Recipe, coefficient, multiples, product, solve
from transom_cli.errors import TransomError

__all__ = ["Coder", "NoCoder", "Recipe", "available", "by_isal", "by_numpy", "coefficient", "fold", "solve"]

LIBRARY = "libisal.so.2"  # Debian's and Ubuntu's libisal2, EPEL's isa-l
_MOST = 1 << 30  # bytes in one call of ISA-L, which counts them in a C int
_BLOCK = 256 << 10  # bytes in one step of numpy: in and out stay in the second-level cache

MultiplyAdd = Callable[[memoryview, memoryview, int], None]


class NoCoder(TransomError):
    """Neither ISA-L nor numpy is there."""

    kind = "no_coder"


@dataclass(frozen=True)
class Coder:
    name: str
    multiply_add: MultiplyAdd  # `fold` without its checks, for at least one byte

    def fold(self, into: memoryview, data: memoryview, coefficient: int) -> None:
        """Add coefficient * data to the first bytes of `into`, which is writable, no shorter, and other memory.

        Releases the GIL. Raises ValueError before it has changed anything.
        """
        if into.readonly or not (into.c_contiguous and data.c_contiguous):
            raise ValueError("bytes are folded in one piece, into memory that may be written")
        if data.nbytes > into.nbytes:
            raise ValueError(f"{data.nbytes} bytes do not fold into {into.nbytes}")
        if not 0 <= coefficient < ELEMENTS:
            raise ValueError(f"{coefficient} is not a byte")
        if data.nbytes and coefficient:
            self.multiply_add(into, data, coefficient)


def fold(into: memoryview, data: memoryview, coefficient: int) -> None:
    """into[:len(data)] ^= coefficient * data, in GF(2^8). See Coder.fold; raises NoCoder too."""
    _coder().fold(into, data, coefficient)


def available() -> str:
    """The name of what computes parity here: "isa-l" or "numpy". Raises NoCoder."""
    return _coder().name


@cache
def _coder() -> Coder:
    coder = by_isal() or by_numpy()
    if coder is None:
        raise NoCoder(
            "Nothing here can compute parity",
            f"neither {LIBRARY} nor numpy can be loaded",
            "`apt-get install libisal2`, or `pip install numpy`; or protect snapshots with `none`",
        )
    return coder


@cache
def by_isal() -> Coder | None:
    """None where the library is missing, or computes another thing than we do."""
    try:
        library = ctypes.CDLL(LIBRARY)  # lets the GIL go for each call
        library.ec_init_tables.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        library.ec_init_tables.restype = None
        update = library.ec_encode_data_update
        update.argtypes = (*[ctypes.c_int] * 4, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        update.restype = None
    except (OSError, AttributeError):
        return None

    # Tables have the form that the library's code for this processor reads, so it makes them itself.
    @cache
    def tables(coefficient: int) -> Any:
        made = ctypes.create_string_buffer(32)
        library.ec_init_tables(1, 1, bytes((coefficient,)), made)
        return made

    def multiply_add(into: memoryview, data: memoryview, coefficient: int) -> None:
        made, end = tables(coefficient), data.nbytes
        with _held(into, writable=True) as to, _held(data) as source:
            for start in range(0, end, _MOST):
                row = ctypes.c_void_p(to + start)
                update(min(_MOST, end - start), 1, 1, 0, made, source + start, ctypes.byref(row))  # one row, one column

    return Coder("isa-l", multiply_add) if right(multiply_add) else None


@cache
def by_numpy() -> Coder | None:
    try:
        import numpy
    except ImportError:
        return None

    @lru_cache(maxsize=32)  # 128 KiB each
    def of_two(coefficient: int) -> Any:
        """Multiples of all pairs of bytes: half as many to look up as of single ones, and twice as fast."""
        single = numpy.frombuffer(multiples(coefficient), numpy.uint8)
        pairs = numpy.arange(1 << 16, dtype=numpy.uint16).view(numpy.uint8)
        return single[pairs].view(numpy.uint16)

    def multiply_add(into: memoryview, data: memoryview, coefficient: int) -> None:
        to, source = numpy.frombuffer(into, numpy.uint8), numpy.frombuffer(data, numpy.uint8)
        padded = numpy.zeros(min(_BLOCK, len(source) + 1) // 2, numpy.uint16)  # an odd byte gets company
        multiple = numpy.empty_like(padded)
        for start in range(0, len(source), _BLOCK):
            block = source[start : start + _BLOCK]
            if coefficient != 1:
                padded.view(numpy.uint8)[: len(block)] = block
                numpy.take(of_two(coefficient), padded, out=multiple, mode="clip")  # other modes copy `out`
                block = multiple.view(numpy.uint8)[: len(block)]
            part = to[start : start + len(block)]
            numpy.bitwise_xor(part, block, out=part)

    return Coder("numpy", multiply_add)


def right(multiply_add: MultiplyAdd) -> bool:
    """Whether it computes in our field, at lengths that vector code takes apart differently. Some 0.1 ms.

    Parity that another coder cannot read is found out when it is needed, and that is too late.
    """
    for size, factor in ((1, 3), (31, 2), (64, 1), (167, 0x8E)):
        data, into = bytes((7 * i + 1) % 256 for i in range(size)), bytearray(range(size + 1))
        wanted = bytes(a ^ product(factor, b) for a, b in zip(into, data, strict=False)) + into[size:]
        multiply_add(memoryview(into), memoryview(data), factor)
        if into != wanted:
            return False
    return True


class _Buffer(ctypes.Structure):
    """Python's Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes, _get.restype = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int), ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = (ctypes.c_void_p,), None


@contextmanager
def _held(view: memoryview, writable: bool = False) -> Iterator[int]:
    """Where the bytes lie, for as long as they cannot move. ctypes' own from_buffer refuses what may not be written."""
    buffer = _Buffer()
    _get(view, ctypes.byref(buffer), int(writable))  # PyBUF_SIMPLE or PyBUF_WRITABLE
    try:
        yield int(buffer.buf)
    finally:
        _release(ctypes.byref(buffer))
