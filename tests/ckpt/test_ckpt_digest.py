"""Digests of tensors and values: the definition, every division of a tensor, and what they tell apart."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict

import numpy as np
import pytest
import torch
from ckpt_made import odd_tensors

from transom_cli.ckpt import digest as module
from transom_cli.ckpt.digest import MASK, WORDS, Part, digest, digests, odd, value_digest

SHAPES = [(), (5,), (3, 7), (130,), (9, 200), (4, 3, 3, 3), (3, 5, 70), (2, 40000), (5, 6, 7, 65)]
TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.float8_e4m3fn, torch.complex128, torch.int8]


def whole(tensor: torch.Tensor) -> Part:
    return Part(tensor, tuple(tensor.shape), (0,) * tensor.ndim)


def made(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 2, shape).to(dtype) if dtype is torch.bool else torch.randn(shape).mul(50).to(dtype)


def defined(part: Part) -> int:
    """The digest element by element, as the module's docstring says."""
    shape, sizes = part.shape or (1,), tuple(part.tensor.shape) or (1,)
    columns = next((d for d in reversed(range(len(shape))) if np.prod(shape[d:]) >= 64), 0)
    width = part.tensor.element_size()
    raw = part.tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    total = 0

    def factor(number: int, salt: int) -> int:
        return int(odd(np.array([number], np.uint64), salt)[0])

    for number, index in enumerate(itertools.product(*map(range, sizes))):
        where = [start + i for start, i in zip(part.offsets or (0,), index, strict=True)]
        row = int(np.ravel_multi_index(where[:columns], shape[:columns])) if columns else 0
        column = int(np.ravel_multi_index(where[columns:], shape[columns:])) * width
        for byte in range(width):
            word, shift = divmod(column + byte, 8)
            bits = raw[number * width + byte] << (8 * shift)
            low, high = factor(word % WORDS, module._LOW), factor(word % WORDS, module._HIGH)
            outer = factor(row, module._ROW) * factor(word // WORDS, module._BLOCK)
            total += outer * (low * bits + high * (bits >> 32))
    return total & MASK


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (130,), (4, 3, 3, 3), (2, 70)])
@pytest.mark.parametrize("dtype", TYPES)
def test_digest_is_the_sum_of_its_definition(shape: tuple[int, ...], dtype: torch.dtype):
    tensor = made(shape, dtype)
    assert digest(whole(tensor)) == defined(whole(tensor))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_digest_does_not_depend_on_how_a_tensor_is_cut(shape: tuple[int, ...], dtype: torch.dtype):
    tensor, draw = made(shape, dtype), random.Random(str(shape))
    expected = digest(whole(tensor))
    for _ in range(4):
        boxes = [(tensor, (0,) * tensor.ndim)]
        for _ in range(4 if shape else 0):
            box, offsets = boxes.pop(draw.randrange(len(boxes)))
            dimension = draw.randrange(box.ndim)
            cut = draw.randint(0, box.shape[dimension])
            after = list(offsets)
            after[dimension] += cut
            boxes.append((box.narrow(dimension, 0, cut), offsets))
            boxes.append((box.narrow(dimension, cut, box.shape[dimension] - cut), tuple(after)))
        assert sum(digests([Part(box, shape, offsets) for box, offsets in boxes])) & MASK == expected


def test_large_tensors_are_cut_for_threads(monkeypatch: pytest.MonkeyPatch):
    tensors = [torch.randn(100_003), torch.randn(300, 301), torch.randn(1, 7, 900)]
    expected = [digest(whole(tensor)) for tensor in tensors]
    monkeypatch.setattr(module, "_PIECE", 5000)
    assert digests([whole(tensor) for tensor in tensors]) == expected


def test_sums_on_a_device_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch):
    tensors = [made(shape, torch.bfloat16) for shape in SHAPES]
    expected = [digest(whole(tensor)) for tensor in tensors]
    monkeypatch.setattr(module, "_arithmetic", lambda data: (data, module._DeviceSums(torch.device("cpu"))))
    assert [digest(whole(tensor)) for tensor in tensors] == expected
    assert digests([whole(tensor) for tensor in (*tensors, *tensors)]) == expected * 2


def test_every_kind_of_tensor_has_a_digest_of_its_bits():
    for name, tensor in odd_tensors().items():
        if not tensor.numel():
            continue
        other = tensor.clone().contiguous()
        other.reshape(-1).view(torch.uint8)[-1] ^= 1  # the last byte, which decides the sign of a float
        assert digest(whole(tensor.clone())) == digest(whole(tensor)) != digest(whole(other)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_elements_that_change_places_or_signs_change_the_digest(dtype: torch.dtype):
    """Among them pairs whose bits differ in the highest one alone, in the upper half of a word."""
    torch.manual_seed(4)
    tensor = torch.randn(96, 96).to(dtype)
    seen = {digest(whole(tensor))}
    changed = [tensor.t().contiguous(), tensor.flip(0), tensor.view(3, 4, 8, 96).transpose(0, 1).reshape(96, 96)]
    ones = torch.ones(96, 96, dtype=dtype)
    for place in range(3, 1200, 4):  # the last elements of words of four
        swapped = ones.clone()
        swapped.view(-1)[[place, (place * 7 + 400) // 4 * 4 + 3]] *= -1
        changed.append(swapped)
    for other in changed:
        assert digest(whole(other)) not in seen
        seen.add(digest(whole(other)))
    zeros = torch.zeros(4, dtype=dtype)
    assert digest(whole(zeros)) != digest(whole(-zeros))


def test_equal_values_have_equal_digests():
    one = {"b": (1, 2.5, None), "a": [True, "x", {3, 4}], "n": np.arange(3), "t": torch.ones(2)}
    two = OrderedDict(t=torch.ones(2), n=np.arange(3), a=[True, "x", {4, 3}], b=[np.int64(1), np.float64(2.5), None])
    assert value_digest(one) == value_digest(two)
    different = [1, 1.0, True, -0.0, 0.0, "1", b"1", None, [], {}, (1,), [[1]], {"1": 1}, {1: 1}, 1 + 0j, {1}, "", b""]
    assert len({value_digest(value) for value in different}) == len(different)
    assert value_digest(object()) is None


def test_small_parts_that_are_summed_together_have_the_digests_of_each_alone() -> None:
    torch.manual_seed(1)
    shapes = [(), (3,), (130,), (5, 70), (2, 3, 65)] * 3
    parts = [Part(torch.randn(shape), shape, (0,) * len(shape)) for shape in shapes]
    parts += [Part(torch.randn(2, 70), (8, 70), (row, 0)) for row in (0, 2, 2)]
    parts += [Part(torch.randn(2, 140)[:, ::2], (8, 70), (2, 0)), Part(torch.ones(0, 2), (0, 2), (0, 0))]
    parts += [Part(torch.randn(3, dtype=torch.complex64).conj(), (3,), (0,)) for _ in range(2)]
    assert digests(parts) == [digest(part) for part in parts]
    assert len(set(digests(parts))) == len(parts)
