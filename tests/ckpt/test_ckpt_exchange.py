"""What ranks send each other is read without running code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

from transom_cli.ckpt.manifest import FileEntry, Manifest
from transom_cli.ckpt.ranks import decode, encode
from transom_cli.ckpt.save.commit import Share


class Planted:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("name", ["os system", "builtins eval", "transom_cli.ckpt.files digest_file"])
def test_name_that_is_no_data_is_refused(name: str) -> None:
    module, attribute = name.split()
    with pytest.raises(pickle.UnpicklingError):
        decode(f"c{module}\n{attribute}\n(S'true'\ntR.".encode())


def test_object_with_a_function_of_its_own_is_refused_by_name() -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"another rank sent posix\.system, which is no data"):
        decode(encode([1, Planted()]))


def test_attributes_that_a_message_sets_on_a_class_are_put_back() -> None:
    before = dict(vars(FileEntry))
    decode(b"ctransom_cli.ckpt.manifest\nFileEntry\n(N}S'name'\nS'x'\nstb0I1\n.")
    assert dict(vars(FileEntry)) == before


def test_what_the_ranks_exchange_comes_through() -> None:
    plan = create_default_local_save_plan({"a": torch.ones(2, 3), "b": None}, True)
    entry = FileEntry("__0_0.distcp", 3, "ab")
    manifest = Manifest(1, 1, "1.0", "2.6", "2025", (entry,))
    share = Share(frozenset(item.index for item in plan.items))
    for value in (
        plan,
        share,
        manifest,
        [entry, None, 1.5, b"x", {"a": (1,)}],
        torch.Size([2]),
        Path("/x"),
        torch.bfloat16,
    ):
        assert decode(encode(value)) == value and type(decode(encode(value))) is type(value)
