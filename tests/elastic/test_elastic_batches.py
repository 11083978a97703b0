"""Which samples each rank takes: each sample of an epoch once, in one order, whatever the numbers of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.elastic import GlobalBatches, MicroBatch
from transom_cli.elastic.batches import permuted
from transom_cli.errors import UsageError

sizes = st.integers(1, 300)


@given(sizes, st.integers(0, 9), st.integers(0, 3))
def test_an_order_contains_each_number_once(size: int, seed: int, epoch: int) -> None:
    order = permuted(np.arange(size, dtype=np.uint64), size, seed, epoch)
    assert sorted(order.tolist()) == list(range(size))
    some = np.array([size - 1, 0], dtype=np.uint64)
    assert permuted(some, size, seed, epoch).tolist() == [order[size - 1], order[0]], "no matter what else is asked"


def test_orders_differ_by_seed_and_epoch_and_look_random() -> None:
    places = np.arange(10_000, dtype=np.uint64)
    orders = [permuted(places, 10_000, seed, epoch).astype(float) for seed in (0, 1) for epoch in (0, 1)]
    together = np.abs(np.corrcoef([places.astype(float), *orders]) - np.eye(5))
    assert together.max() < 0.05, "five standard deviations of independent orders"
    neighbours = [abs(np.corrcoef(one[:-1], one[1:])[0, 1]) for one in orders]
    assert max(neighbours) < 0.05


def test_an_order_is_the_same_in_every_version() -> None:
    """A release that changed it would repeat and omit samples of running trainings."""
    assert GlobalBatches(10, 10, 1, seed=7).samples(0, 20) == ORDER


ORDER = [5, 8, 1, 3, 6, 0, 4, 9, 7, 2, 0, 6, 2, 8, 5, 7, 4, 3, 1, 9]


@given(
    sizes, st.integers(1, 40), st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=12), st.booleans()
)
def test_ranks_share_the_next_global_batch_however_many_they_are(
    size: int, global_batch: int, micro: int, worlds: list[int], shuffle: bool
) -> None:
    reference = GlobalBatches(size, global_batch, micro, shuffle=shuffle, rank=0, world=1)
    saved = reference.state_dict()
    taken: list[int] = []
    for world in worlds:  # each step with another number of ranks
        ranks = [GlobalBatches(size, global_batch, micro, shuffle=shuffle, rank=r, world=world) for r in range(world)]
        for one in ranks:
            one.load_state_dict(saved)
        passes = [one.step() for one in ranks]
        assert len({len(one) for one in passes}) == 1, "sharded models need the same number on every rank"
        assert all([one.last for one in of_rank] == [False] * (len(of_rank) - 1) + [True] for of_rank in passes)
        assert all(0 < len(one.samples) <= micro for of_rank in passes for one in of_rank)
        used = [one for of_rank in passes for one in of_rank if one.weight]
        assert all(one.weight == pytest.approx(len(one.samples) * world / global_batch) for one in used)
        assert sum(one.weight for one in used) == pytest.approx(world)
        taken += [sample for one in used for sample in one.samples]
        saved = ranks[-1].state_dict()
        assert saved == ranks[0].state_dict()
    assert taken == reference.samples(0, global_batch * len(worlds))
    for first in range(0, len(taken) - size + 1, size):
        assert sorted(taken[first : first + size]) == list(range(size)), "an epoch"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_works_ahead_and_the_position_does_not(workers: int) -> None:
    batches = GlobalBatches(50, 8, 3, rank=1, world=2)
    expected = GlobalBatches(50, 8, 3, rank=1, world=2)
    dataset = [10 * number for number in range(50)]
    steps = batches.loader(dataset, collate=list, workers=workers)
    for done in range(1, 4):
        step: list[MicroBatch] = next(steps)
        assert [one.samples for one in step] == [one.samples for one in expected.step()]
        assert [one.data for one in step] == [[10 * sample for sample in one.samples] for one in step]
        assert batches.position == 8 * done
    later = GlobalBatches(50, 8, 3, rank=1, world=2)
    later.load_state_dict(batches.state_dict())
    assert next(later.loader(dataset, collate=list))[0].data == next(steps)[0].data


@pytest.mark.parametrize("other", [{"dataset_size": 51}, {"seed": 1}, {"shuffle": False}])
def test_a_position_in_another_order_is_refused(other: dict[str, int]) -> None:
    saved = GlobalBatches(50, 8, 3).state_dict()
    with pytest.raises(UsageError, match="saved data position is of"):
        GlobalBatches(**{"dataset_size": 50, "global_batch": 8, "micro_batch": 3, **other}).load_state_dict(saved)


@pytest.mark.parametrize(
    "wrong", [{"dataset_size": 0}, {"global_batch": -1}, {"micro_batch": 2.5}, {"micro_batch": True}]
)
def test_sizes_are_whole_numbers_above_0(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        GlobalBatches(**{"dataset_size": 50, "global_batch": 8, "micro_batch": 3, **wrong})
