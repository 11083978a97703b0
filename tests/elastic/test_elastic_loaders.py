"""GlobalBatches with loaders and datasets of others, whose position survives another number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from transom_cli.elastic import GlobalBatches
from transom_cli.errors import UsageError


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(10))


def values(micro_batches: list[Any], pick: Any = lambda data: data) -> list[int]:
    return [int(one) for micro in micro_batches if micro.weight for one in pick(micro.data)]


def steps_with(
    make: Any, dataset: Any, worlds: list[int], pick: Any = lambda data: data, workers: int = 0
) -> list[int]:
    """Make two steps with each number of ranks, with a new loader each time."""
    position, taken = {"position": 0, "size": 50, "seed": 0, "shuffle": True}, []
    for world in worlds:
        ranks = [GlobalBatches(50, 8, 2, rank=rank, world=world) for rank in range(world)]
        of_step: list[list[int]] = [[], []]
        for one in ranks:
            one.load_state_dict(position)  # type: ignore[arg-type]
            loader = one.loader(dataset, make=make, workers=workers)
            for step in of_step:
                step += values(next(loader), pick)
        position = ranks[0].state_dict()  # type: ignore[assignment]
        taken += [*of_step[0], *of_step[1]]
    return taken


EXPECTED = GlobalBatches(50, 8, 2, rank=0, world=1).samples(0, 48)


def test_a_stateful_loader_continues_with_another_number_of_ranks() -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    assert steps_with(loaders.StatefulDataLoader, torch.arange(50), [4, 3, 1], workers=1) == EXPECTED


def test_a_dataset_of_hugging_face_is_read_by_position() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"x": list(range(50))})
    assert steps_with(DataLoader, dataset, [3, 4, 2], lambda data: data["x"]) == EXPECTED
    with pytest.raises(UsageError, match="no positions"):
        next(GlobalBatches(50, 8, 2).loader(dataset.to_iterable_dataset()))


def test_a_dataset_without_positions_is_refused() -> None:
    with pytest.raises(UsageError, match="Stream has no positions"):
        next(GlobalBatches(10, 4, 2).loader(Stream()))


def test_nothing_can_be_dropped_at_the_end_of_an_epoch() -> None:
    with pytest.raises(ValueError, match="drop_last"):
        next(GlobalBatches(10, 4, 2).loader(list(range(10)), drop_last=True))


def test_a_loader_of_ones_own_takes_the_sampler() -> None:
    batches = GlobalBatches(20, 6, 2, rank=1, world=2)
    batches.position = 6
    loader = iter(DataLoader(torch.arange(20), batch_sampler=batches.sampler(), num_workers=0))
    for _ in range(4):
        for micro in batches.step():
            assert next(loader).tolist() == list(micro.samples)
    assert batches.position == 30
