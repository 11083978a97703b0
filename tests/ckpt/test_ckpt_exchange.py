"""What ranks send each other is read without running code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.planner import WriteItemType

from transom_cli.ckpt.manifest import FileEntry, Manifest
from transom_cli.ckpt.ranks import Ranks, decode, encode
from transom_cli.ckpt.save.commit import Committer, Share


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


def _by_getattr(module: str, kind: str, name: str) -> bytes:
    return f"cbuiltins\ngetattr\n(c{module}\n{kind}\nS'{name}'\ntR.".encode()


def test_enum_members_are_read_as_every_python_writes_them() -> None:
    """Python 3.11.0 to 3.11.3 write `getattr(class, name)`; Debian 12 has 3.11.2."""
    assert decode(_by_getattr(WriteItemType.__module__, "WriteItemType", "SHARD")) is WriteItemType.SHARD


@pytest.mark.parametrize("name", ["SHARD.__class__", "__members__", "mro"])
def test_getattr_reads_nothing_but_enum_members(name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.getattr"):
        decode(_by_getattr(WriteItemType.__module__, "WriteItemType", name))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.getattr"):
        decode(_by_getattr(FileEntry.__module__, "FileEntry", name))


def test_message_that_rank_0_cannot_read_fails_on_every_rank() -> None:
    """Rank 0 answers with the reason, because the others wait for its answer."""

    class Unreadable(Ranks):
        def to_first(self, value: object) -> list[object]:
            raise pickle.UnpicklingError("another rank sent x.y, which is no data")

    committer = Committer.__new__(Committer)
    committer._ranks, committer._shares, committer.ledger = Unreadable(), Mock(), Mock()
    committer._metadata = None
    assert committer.plan(Mock()).trouble == "UnpicklingError: another rank sent x.y, which is no data"


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
