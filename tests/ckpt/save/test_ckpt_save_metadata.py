"""Torch's metadata is planned once: a steady save sends sizes and checksums, and what has moved is noticed at once."""

from __future__ import annotations

import io
import pickle
import random
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import data_name
from transom_cli.ckpt.save import daemon as save_daemon
from transom_cli.ckpt.save.serialize import Serializer, padded
from transom_cli.ckpt.save.shares import Shares


class Group:
    """Ranks as threads of this process. objects: how often objects were sent to rank 0."""

    def __init__(self, size: int) -> None:
        self.size, self.objects = size, 0
        self._box: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._box[rank] = value
        self._barrier.wait(10)
        found = list(self._box)
        self._barrier.wait(10)
        return found


class Member:
    def __init__(self, group: Group, rank: int) -> None:
        self._group, self.rank, self.size, self.first = group, rank, group.size, rank == 0

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self._group.exchange(self.rank, data)

    def to_first(self, value: Any) -> list[Any] | None:
        found = self._group.exchange(self.rank, value)
        self._group.objects += self.first
        return found if self.first else None

    def from_first(self, value: Any) -> Any:
        return self._group.exchange(self.rank, value)[0]


class Ranks3:
    def __init__(self) -> None:
        self.group = Group(3)
        members: list[Any] = [Member(self.group, rank) for rank in range(3)]
        self.shares = [Shares(member) for member in members]
        self.places = [[(MetadataIndex(f"t{rank}"), 0, 8)] for rank in range(3)]

    def save(self) -> list[tuple[str, bytes | None]]:
        """By rank: the trouble, and the metadata that it has in the end."""
        found: list[Any] = [None] * 3

        def one(rank: int) -> None:
            shares = self.shares[rank]
            trouble, entries = shares.exchange("", FileEntry(data_name(rank), rank, "00" * 16), self.places[rank])
            assert [entry.size for entry in entries] == [0, 1, 2]
            manifest = b"manifest"
            if rank == 0 and not trouble:
                shares.metadata_entry(Metadata({}))
            trouble = shares._ranks.from_first(trouble)
            found[rank] = trouble, shares.spread(None if trouble else manifest)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return found


def starts(metadata: bytes | None) -> dict[str, int]:
    assert metadata is not None
    return {index.fqn: info.offset for index, info in pickle.loads(metadata).storage_data.items()}


def test_steady_save_sends_no_places_and_no_metadata() -> None:
    ranks = Ranks3()
    first = ranks.save()
    assert first[0][0] == "" and first[0] == first[1] == first[2]
    assert starts(first[0][1]) == {"t0": 0, "t1": 0, "t2": 0} and ranks.group.objects == 1
    sent: list[Any] = []
    ranks.group.exchange = lambda rank, value, real=ranks.group.exchange: (sent.append(value), real(rank, value))[1]
    assert ranks.save() == first and ranks.save() == first
    assert ranks.group.objects == 1
    assert all(len(value) < 100 for value in sent if isinstance(value, bytes)) and first[0][1] not in sent


def test_moved_part_of_one_rank_is_in_the_metadata_of_that_save() -> None:
    ranks = Ranks3()
    ranks.save()
    ranks.places[1] = [(MetadataIndex("t1"), 64, 8)]
    moved = ranks.save()
    assert {trouble for trouble, _ in moved} == {""} and len({data for _, data in moved}) == 1
    assert starts(moved[2][1]) == {"t0": 0, "t1": 64, "t2": 0}


@pytest.mark.parametrize("lost", ["rank 0 forgot the places", "rank 2 forgot the metadata"])
def test_ranks_out_of_step_fail_the_save_or_are_brought_up_to_date(lost: str) -> None:
    ranks = Ranks3()
    good = ranks.save()
    if lost == "rank 0 forgot the places":
        ranks.shares[0]._sums[2] = 7
        assert [(trouble[:33], data) for trouble, data in ranks.save()] == [
            ("the ranks' plans are out of step;", None)
        ] * 3
    else:
        ranks.shares[2]._metadata, ranks.shares[2]._metadata_sum = b"", 0
    again = ranks.save()
    assert {trouble for trouble, _ in again} == {""} and len({data for _, data in again}) == 1
    assert starts(again[2][1]) == starts(good[2][1])


def test_metadata_stays_as_it_is_while_values_change(tmp_path: Path) -> None:
    state = {"w": torch.zeros(8), "note": {"losses": [0.5]}, "random": [1]}
    ck = Checkpointer(state, tmp_path, every=1, keep=9)
    for step in (1, 2, 3):
        random.seed(step)  # its state is pickled in as many bytes as its numbers need
        state["random"] = list(random.getstate()[1])[: 100 + step]
        state["note"]["losses"].append(step / 7)
        ck.save(step)
        ck.wait(strict=True)
    state["w"] = torch.ones(16)
    ck.save(4)
    ck.close(strict=True)
    found = [(tmp_path / f"step-{step}" / ".metadata").read_bytes() for step in (1, 2, 3, 4)]
    assert found[0] == found[1] == found[2] != found[3]
    fresh = {"w": torch.zeros(16), "note": None, "random": None}
    assert Checkpointer(fresh, tmp_path, every=1).restore() == 4
    assert torch.equal(fresh["w"], state["w"]) and fresh["note"] == state["note"]


def test_padded_archive_is_read_by_torch_and_zip() -> None:
    stream = io.BytesIO()
    torch.save({"a": [1, 2]}, stream)
    data = padded(stream.getvalue(), len(stream.getvalue()) + 1000)
    assert len(data) == len(stream.getvalue()) + 1000
    assert torch.load(io.BytesIO(data), weights_only=True) == {"a": [1, 2]}
    assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None
    assert padded(b"no archive", 100) == b"no archive"


def test_values_that_grow_a_little_keep_their_length() -> None:
    serializer = Serializer()
    sizes = [len(serializer.serialize("note", "x" * length)) for length in (100, 120, 90, 5000, 5100, 200_000, 10)]
    assert sizes[0] == sizes[1] == sizes[2] < sizes[3] == sizes[4] < sizes[5] and sizes[6] < sizes[3]
    assert torch.load(io.BytesIO(serializer.serialize("note", "y" * 4000))) == "y" * 4000


def test_daemon_gets_the_metadata_once_and_again_if_it_has_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"w": torch.zeros(8), "n": 0}
    ck = Checkpointer(state, tmp_path, every=1, persist=1000)
    daemon = ck._snapshots.daemon
    sent: list[tuple[int, int | None]] = []
    fields = save_daemon._commit_fields
    monkeypatch.setattr(
        save_daemon, "_commit_fields",
        lambda step, *rest, **how: (sent.append((step, how.get("same"))), fields(step, *rest, **how))[1],
    )  # fmt: skip
    for step in (1, 2, 3):
        if step == 3:
            daemon.records = {99: daemon.records[2]}  # which the daemon has never had
        state["n"] = step
        ck.save(step)
        ck.wait(strict=True)
    assert sent == [(1, None), (2, 1), (3, 99), (3, None)]
    state["n"] = -1
    assert ck.restore() == 3 and state["n"] == 3
    ck.close()


def test_benchmark_of_the_metadata_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "bench"))
    import ckpt_metadata

    monkeypatch.setattr(ckpt_metadata, "METADATA", 1 << 10)
    monkeypatch.setattr(sys, "argv", ["ckpt_metadata", "--ranks=9", "--tensors=20", "--planned=3", "--rounds=2"])
    ckpt_metadata.main()
    assert "steady  9 ranks x 20 tensors" in capsys.readouterr().out
