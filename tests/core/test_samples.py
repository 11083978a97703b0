"""Proof of the samples that a run used, against the samples that its ranks really took."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from transom_cli.core.samples import Mark, Proof, prove
from transom_cli.elastic import GlobalBatches

# One launch: its ranks, the steps that it makes, and how many of them before its end its newest checkpoint is.
launches = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 12)), min_size=1, max_size=6)


def trained(
    size: int, batch: int, launches: list[tuple[int, int, int]], slip: int = 0, micro: int = 3
) -> tuple[Proof, Counter[int], int]:
    """Run the launches, and return the proof, how often each sample was used, and the last step.

    slip: samples by which each later launch starts at a wrong position.
    """
    marks, at = [], 0  # finished steps
    used: dict[int, list[int]] = {}  # of each kept step
    positions = {0: 0}  # after each step
    for number, (world, steps, back) in enumerate(launches):
        at = max(0, at - back) if number else 0
        ranks = [GlobalBatches(size, batch, micro, rank=rank, world=world) for rank in range(world)]
        for one in ranks:
            one.position = max(0, positions[at] + (slip if number else 0))
        used = {step: taken for step, taken in used.items() if step <= at}
        first = at + 1
        for _ in range(steps):
            at += 1
            used[at] = [n for one in ranks for micro in one.step() if micro.weight for n in micro.samples]
            positions[at] = ranks[0].position
            if at == first:
                marks.append(Mark(f"7.0.{number}", at, ranks[0].position, batch, size, world))
    return prove(marks, at), Counter(one for taken in used.values() for one in taken), at


@settings(max_examples=40, deadline=None)
@given(st.integers(13, 60), st.integers(1, 13), launches, st.integers(1, 9))
@example(13, 10, [(3, 4, 0), (2, 3, 1), (5, 6, 2), (1, 2, 12), (4, 6, 0)], 2)
def test_shrinks_grows_crashes_and_rollbacks_use_each_sample_once(
    size: int, batch: int, launches: list[tuple[int, int, int]], micro: int
) -> None:
    """The example: more ranks than at first, a rollback over launches, unequal shares, epochs that end in a batch."""
    proof, used, steps = trained(size, batch, launches, micro=micro)
    assert proof.exact, proof
    assert used == Counter(GlobalBatches(size, batch, 3).samples(0, steps * batch)) and proof.used == steps * batch
    assert [one.world for one in proof.kept][-1] == launches[-1][0]
    assert proof.kept[0].start == 0 and all(a.end == b.start for a, b in zip(proof.kept, proof.kept[1:], strict=False))


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 60), st.integers(4, 13), launches.filter(lambda some: len(some) > 1), st.sampled_from([-2, 3]))
def test_a_wrong_position_after_a_restart_is_found(
    size: int, batch: int, launches: list[tuple[int, int, int]], slip: int
) -> None:
    launches = [(world, steps + 3, min(back, 2)) for world, steps, back in launches]
    proof, _, _ = trained(size, batch, launches, slip)
    assert not proof.exact
    assert proof.repeated if slip < 0 else proof.omitted


def test_steps_that_were_undone_are_listed_and_not_counted() -> None:
    marks = [Mark("7.0.0", 1, 10, 10, 100, 4), Mark("7.0.1", 6, 60, 10, 100, 3), Mark("7.0.2", 4, 40, 10, 100, 4)]
    proof = prove(marks, 8)
    assert proof.exact and proof.used == 80
    assert [(one.first, one.last, one.world) for one in proof.kept] == [(1, 3, 4), (4, 8, 4)]
    assert [(one.first, one.last) for one in proof.undone] == [(6, 6), (4, 5)]


def test_a_skipped_batch_is_named() -> None:
    marks = [Mark("7.0.0", 1, 10, 10, 100, 4), Mark("7.0.1", 6, 80, 10, 100, 4)]
    assert prove(marks, 9).omitted == ((50, 70),)


def test_other_data_and_missing_records_prove_nothing() -> None:
    first = Mark("7.0.0", 1, 10, 10, 100, 4, "seed 0")
    assert prove([first, Mark("7.0.1", 6, 60, 10, 100, 4, "seed 1")], 9).broken
    assert not prove([], -1).exact
