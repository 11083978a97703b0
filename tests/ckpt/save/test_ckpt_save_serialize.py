"""Plain values that did not change are not pickled again, and no change is missed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.ckpt.save.serialize import Serializer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 2.0]) | st.text(max_size=2),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=2), below, max_size=3),
    max_leaves=6,
)


def loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


@given(st.lists(VALUES, min_size=2, max_size=6))
def test_what_is_stored_is_the_value_of_that_save(values: list[Any]) -> None:
    pickles = Serializer()
    for value in values:
        assert repr(loaded(pickles.serialize("v", value))) == repr(value)  # repr: 1, True, 1.0 and -0.0 are four values


def test_unchanged_values_are_not_pickled_again() -> None:
    pickles = Serializer()
    group = {"lr": 0.1, "params": ["a", "b"]}
    first = pickles.serialize("group", group)
    assert pickles.serialize("group", group) is first
    group["lr"] = 0.2
    assert loaded(pickles.serialize("group", group)) == group


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.array([0], dtype=np.int64), np.array([0.0])),
        ([np.int64(0)], [np.float64(0)]),
        (torch.zeros(1, dtype=torch.int32), torch.zeros(1)),
    ],
)
def test_types_with_the_same_bytes_are_told_apart(before: Any, after: Any) -> None:
    pickles = Serializer()
    pickles.serialize("v", before)
    assert repr(loaded(pickles.serialize("v", after))) == repr(after)


def test_list_that_contains_itself_is_stored() -> None:
    knot: list[Any] = []
    knot.append(knot)
    found = loaded(Serializer().serialize("v", knot))
    assert found[0] is found
