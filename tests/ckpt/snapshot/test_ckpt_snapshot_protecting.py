"""Parity over nodes: which losses and damages are made good, what is said, and what is never given up for it."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from ckpt_memory_job import LAUNCH, Job, buffer, damage

from transom_cli.ckpt.snapshot.rebuild import ShareNotFound

CODES = [("replica", 2, 1), ("replica", 5, 1), ("xor:2", 3, 1), ("rs:2+1", 4, 1), ("rs:2+2", 4, 2), ("rs:4+2", 6, 2)]


def shares(count: int, seed: int = 1, most: int = 40_000) -> list[bytes]:
    luck = random.Random(seed)
    return [luck.randbytes(luck.randrange(most)) for _ in range(count)]


def protected(protect: str, count: int, **more: dict[str, str]) -> tuple[Job, list[bytes]]:
    data = shares(count)
    job = Job(protect, data, **more)
    job.commit(5, data)
    job.protect(5)
    assert job.said == [] and all(h.store.protected == 5 for h in job.trainings.values())
    return job, data


@pytest.mark.parametrize(("protect", "count", "lost"), CODES)
def test_any_so_many_nodes_may_be_lost(protect: str, count: int, lost: int) -> None:
    for gone in combinations(range(count), lost):
        job, data = protected(protect, count)
        job.lose([f"n{n}" for n in gone])
        asker = f"n{next(n for n in range(count) if n not in gone)}"
        for rank in range(count):
            found, where = job.find(asker, rank, 5)
            assert found == data[rank], f"rank {rank} with {gone} lost"
            assert (where == "parity in memory") == (rank in gone)


def test_one_more_is_not_made_good_and_is_told() -> None:
    job, data = protected("rs:2+1", 3)
    job.lose(["n0", "n1"])
    with pytest.raises(
        ShareNotFound, match=r"chunks of a stripe are lost, and 0 of its parity rows are left|no parity"
    ):
        job.find("n2", 0, 5)
    assert job.find("n2", 2, 5) == (data[2], "own memory")


def test_damaged_bytes_count_as_lost_wherever_they_are() -> None:
    data = shares(4, seed=3, most=9_000)
    for at in range(0, min(map(len, data)), 997):
        job = Job("rs:2+2", data)
        job.commit(5, data)
        job.protect(5)
        job.lose(["n0"])
        damage(job, "n1", 5, at)
        for rank in (0, 1):
            assert job.find("n2", rank, 5) == (data[rank], "parity in memory")


def test_damaged_parity_is_not_believed() -> None:
    job, data = protected("rs:2+2", 4)
    for row in job.trainings["n2"].parity.rows(5):
        row.memory[0] ^= 1
    job.lose(["n0"])
    assert job.find("n1", 0, 5) == (data[0], "parity in memory")
    job.lose(["n3"])
    with pytest.raises(ShareNotFound):
        job.find("n1", 0, 5)


def test_a_dead_neighbour_is_left_out_and_said_and_comes_back() -> None:
    job, data = protected("rs:2+1", 4)
    job.dead = {"n3"}
    job.commit(6, data)
    job.protect(6)
    assert job.said == ["step 6 is protected, except for data on n3: no daemon answers there"]
    job.commit(7, data)
    job.protect(7)
    assert len(job.said) == 1, "said once"
    assert job.first.store.protected == 5, "with what n3 held, should it have died"
    job.lose(["n1"])
    assert job.find("n0", 1, 7) == (data[1], "parity in memory"), "the others are protected all the same"
    job.dead = set()
    job.trainings["n1"].store.join(LAUNCH, 1, True)
    for index in range(4):
        job.trainings["n1"].store.lend(LAUNCH, 1, index, buffer(1 << 16), write=False)
    job.commit(8, data)
    job.protect(8)
    assert job.said[1:] == ["step 8 is protected on all nodes again"]
    job.lose(["n3"])
    assert job.find("n0", 3, 8) == (data[3], "parity in memory")


@pytest.mark.parametrize("reads", range(6))
def test_a_neighbour_that_goes_in_the_middle_costs_no_other_its_protection(reads: int) -> None:
    data = shares(4, seed=9)
    job = Job("rs:2+1", data)
    job.commit(5, data)
    job.cut_off = {"n2": reads}
    job.protect(5)
    assert (job.first.store.protected == 5) != bool(job.said), job.said
    job.cut_off = {}
    job.lose(["n1"])
    assert job.find("n0", 1, 5)[0] == data[1]


def test_the_step_before_stays_protected_until_the_next_one_is() -> None:
    job, data = protected("xor:2", 3)
    newer = shares(3, seed=2)
    job.commit(6, newer)
    for rank, name in enumerate(job.names):  # the next save's buffers: neither 5 nor 6 is given out for them
        index, _ = job.trainings[name].store.take(LAUNCH, rank, 0.0)
        assert index is not None and set(job.trainings[name].store.records) == {5, 6}
    job.lose(["n2"])
    with pytest.raises(ShareNotFound):
        job.find("n0", 2, 6)
    job.entries = {f"__{rank}_0.distcp": e for rank, e in enumerate(_entries(5, job))}
    assert job.find("n0", 2, 5) == (data[2], "parity in memory")


def _entries(step: int, job: Job) -> list:
    manifest = job.first.store.records[step].read
    return [entry for entry in manifest.files if entry.name != ".metadata"]


def test_parity_memory_does_not_grow() -> None:
    data = shares(4)
    job = Job("rs:2+2", data)
    sizes = set()
    for step in range(1, 12):
        job.commit(step, data)
        job.protect(step)
        sizes.add(sum(training.parity.size for training in job.trainings.values()))
    assert len(sizes) == 1
    assert all(len(training.parity._spare) <= 2 for training in job.trainings.values()), "of one step, for the next"


def sides(job: Job) -> int:
    """How many times the memory of one step's rows is allocated on a node."""
    parity = job.trainings["n1"].parity
    return len({id(row.memory) for row in parity._rows.values()} | {id(memory) for memory in parity._spare})


def test_rows_of_a_durable_step_become_those_of_the_next() -> None:
    job, data = protected("replica", 2)
    job.commit(6, data)
    job.protect(6)
    assert sides(job) == 2, "step 5 was kept until 6 was protected"
    for step in (7, 8):
        for training in job.trainings.values():
            training.persister.hear(step - 1, "done", "")
        job.commit(step, data)
        job.protect(step)
        assert job.said == [] and sides(job) == 1
    job.lose(["n1"])
    assert job.find("n0", 1, 8) == (data[1], "parity in memory")


def test_a_failed_write_gives_up_no_protected_step() -> None:
    job, data = protected("replica", 2)
    for training in job.trainings.values():
        training.persister.hear(5, "failed", "the disk is full")
    job.commit(6, shares(2, seed=2))
    job.cut_off = {"n1": 0}  # n0 has begun with its row then
    job.protect(6)
    job.lose(["n1"])
    job.entries = {f"__{rank}_0.distcp": e for rank, e in enumerate(_entries(5, job))}
    assert job.find("n0", 1, 5) == (data[1], "parity in memory")


def test_memory_of_a_protected_step_is_given_out_once_that_step_is_durable() -> None:
    job, data = protected("replica", 2)
    store = job.first.store
    for index in (3, 2):  # two buffers, as a rank has at first
        store._ranks[0].buffers.pop(index).close()
    job.commit(6, data)
    index, busy = store.take(LAUNCH, 0, 0.0)
    assert index is None and "step 5 is the newest that is protected" in busy
    store.persisted(5)
    assert store.take(LAUNCH, 0, 0.0)[0] is not None
    store.rewind(LAUNCH, 4)
    assert store.on_disk is None, "the step will be made again"


def test_groups_span_failure_domains() -> None:
    data = shares(4)
    domains = {"n0": "left", "n1": "left", "n2": "right", "n3": "right"}
    job = Job("replica", data, domains)
    job.commit(5, data)
    job.protect(5)
    job.lose(["n0", "n1"])  # a whole switch
    for rank in range(4):
        assert job.find("n3", rank, 5)[0] == data[rank]


def test_a_node_that_dies_while_a_step_is_protected_is_made_good_at_the_step_before() -> None:
    job, data = protected("rs:2+1", 4)
    newer = shares(4, seed=2)
    job.commit(6, newer)
    job.dead = {"n3"}
    job.protect(6)
    job.lose(["n3"])
    job.dead = set()
    job.entries = {f"__{rank}_0.distcp": e for rank, e in enumerate(_entries(5, job))}
    assert job.find("n0", 3, 5) == (data[3], "parity in memory")
