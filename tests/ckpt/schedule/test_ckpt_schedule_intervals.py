"""The intervals of snapshots and durable checkpoints: bounded, within the overhead, near the least time lost."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.schedule.cadence import LONGEST, ROOM, START, Cadence, Measured, retune
from transom_cli.ckpt.schedule.failure_rate import Failures
from transom_cli.ckpt.schedule.schedule import Auto

QUICK = settings(max_examples=300, deadline=None)
maybe = st.none() | st.floats(0, 1e5)
anything = st.builds(Measured, stall=maybe, step=maybe, slowed=st.none() | st.floats(-1e4, 1e5), write=maybe)
overheads = st.floats(0.001, 0.5)
mtbfs = st.floats(300.0, 365 * 86400.0)
costs = st.floats(1e-3, 100)


def play(cadence: Cadence, *seen: Measured) -> Cadence:
    for one in seen:
        cadence = retune(cadence, one)
    return cadence


def two(overhead: float, mtbf: float, lost: float) -> Cadence:
    return Cadence(overhead, mtbf, lost=lost)


def lost_time(measured: Measured, mtbf: float, lost: float, between: float, durable: float) -> float:
    """The part of the time that goes to stalls, slower steps, and both kinds of failures."""
    assert measured.stall is not None and measured.slowed is not None
    return measured.stall / between + measured.slowed / durable + between / (2 * mtbf) + durable / (2 * lost)


@QUICK
@given(st.lists(anything, max_size=12), overheads, mtbfs, mtbfs)
def test_whatever_is_measured_both_are_numbers_with_a_reason(seen, overhead, mtbf, lost):
    cadence = two(overhead, mtbf, lost)
    for one in seen:
        cadence = retune(cadence, one)
        assert type(cadence.steps) is int and cadence.steps >= 1
        assert type(cadence.persist) is int and cadence.persist >= 1
        assert "nan" not in cadence.words and "inf" not in cadence.words
        assert cadence.why or cadence.persist == 1, "no number without its reason"
    if all(one.write is None for one in seen):
        assert cadence.persist == 1, "all are durable until a write was measured"


@QUICK
@given(costs, st.floats(1e-3, 100), st.floats(0, 100), st.floats(0, 1e4), overheads, mtbfs, mtbfs)
def test_both_together_stay_within_the_overhead(stall, step, slowed, write, overhead, mtbf, lost):
    cadence = play(two(overhead, mtbf, lost), *[Measured(stall, step, slowed, write)] * 3)
    between, durable = cadence.steps * step, cadence.persist * cadence.steps * step
    capped = between >= LONGEST or durable >= LONGEST
    assert capped or stall / between + slowed / durable <= overhead * (1 + 1e-9)
    assert durable >= ROOM * write * (1 - 1e-9), "the next never waits for the last"
    assert between <= 1.1 * LONGEST + step
    assert durable <= 1.1 * (max(LONGEST, ROOM * write) + between)


@QUICK
@given(
    st.floats(1e-3, 0.05), st.floats(0.1, 1), overheads, st.floats(300.0, 1e4), st.floats(100, 300),
    st.floats(0.1, 10), st.floats(0.1, 10),
)  # fmt: skip
def test_no_other_allowed_intervals_lose_less(stall, slowed, overhead, mtbf, rarer, shorter, longer):
    lost = mtbf * rarer
    measured = Measured(stall, 1e-5, slowed, 0.0)  # short steps: an interval is a whole number of them
    cadence = play(two(overhead, mtbf, lost), *[measured] * 3)
    between = cadence.steps * 1e-5
    durable = cadence.persist * between
    assume(cadence.persist >= 10 and durable < LONGEST)
    rival, seldom = between * shorter, durable * longer
    stretch = max(1.0, (stall / rival + slowed / seldom) / overhead)
    found = lost_time(measured, mtbf, lost, between, durable)
    assert found <= 1.2 * lost_time(measured, mtbf, lost, rival * stretch, seldom * stretch), "rounded up twice"


def test_slow_writes_change_persist_and_slow_copies_change_the_interval():
    quick = Measured(0.1, 1.0, 2.0, 5.0)
    cadence = play(two(0.1, 3600.0, 360_000.0), *[quick] * 3)
    assert (cadence.steps, cadence.persist) == (27, 45), "sqrt(2 x 0.1 x 3600), sqrt(2 x 2 x 360,000) / 27"
    slow = play(cadence, *[Measured(0.1, 1.0, 0.1, 5.0)] * 5)
    assert (slow.steps, slow.persist) == (27, 10), "sqrt(2 x 0.1 x 360,000) / 27"
    often = play(replace(cadence, lost=3600.0), quick)
    assert (often.steps, often.persist) == (27, 5), "memory is lost more often"
    assert play(replace(cadence, fixed=True, steps=9), *[quick] * 3).persist == 140, "as far apart in time"


def test_the_reason_in_words():
    cadence = play(two(0.1, 3600.0, 360_000.0), *[Measured(0.1, 1.0, 2.0, 5.0)] * 3)
    assert cadence.words == (
        "every 27 steps: a save stalls 0.1 s, and a failure comes every 60 min: least time lost to both; one of 45 is "
        "made durable: one slows steps by 2 s in all, and a failure that memory does not survive every 4.17 days: "
        "least time lost to both"
    )
    cadence = play(two(0.1, 3600.0, 360_000.0), *[Measured(0.1, 1.0, 2.0, 900.0)] * 3)
    assert cadence.words.endswith(
        "one of 67 is made durable: one takes 15 min to be written, and that is half of the time at most"
    )


@pytest.mark.parametrize("persist", [1, 10, "10m"])
def test_where_it_is_given_which_are_durable_a_save_costs_its_part_of_a_write(persist: int | str):
    cadence = Cadence(0.01, 4500.0, persist=persist if isinstance(persist, int) else None)
    seen = Measured(0.1, 1.0, 1.0 if persist == 1 else 1.25, 5.0)
    cadence = play(cadence, *[seen] * 3)
    cost = 0.1 + (seen.slowed / persist if isinstance(persist, int) else 0.0)
    wanted = max(cost / 0.01, sqrt(2 * cost * 4500.0))
    assert wanted <= cadence.steps <= 1.1 * wanted + 1
    assert cadence.persist == (persist if isinstance(persist, int) else None), "and that stays"


class Rare(Failures):
    def mean(self, since: float) -> float:
        return 3600.0

    def mean_lost(self, since: float) -> float:
        return 360_000.0


def test_fixed_interval_with_automatic_persist():
    said: list[str] = []
    now = 0.0
    auto = Auto(0.1, Rare(1), Ranks(), said.append, lambda: now, every=9, persist="auto")
    writing, began, saved = False, 0.0, []
    for step in range(1, 100):
        now += 1.5 if writing else 1.0
        if writing and now - began >= 6.0:
            auto.wrote(now - began)
            writing = False
        if auto.due(step):
            saved.append(step)
            now += 0.1
            meeting = auto.copied(step, 0.1, writing)
            auto.agree(meeting, Ranks())
            writing, began = True, now
        auto.resume(writing)
    assert saved == list(range(9, 100, 9)) and auto.every == 9
    assert auto.persist > 10 and said[-1].startswith("saves every 9 steps; one of ")
    assert auto.persist * 9 * 1.0 == pytest.approx(sqrt(2 * 2.0 * 360_000.0), rel=0.2)


def test_write_across_several_saves_is_measured_in_full():
    now = 0.0
    auto = Auto(0.1, Rare(1), Ranks(), lambda line: None, lambda: now, every=5, persist="auto")
    seen = []
    for step in range(1, 41):
        writing = 10 < step <= 22
        now += 1.5 if writing else 1.0
        if step == 22:
            auto.wrote(16.0)
        if auto.due(step):
            meeting = auto.copied(step, 0.0, 10 < step < 22)
            seen.append(meeting.report.measured.slowed)
            auto.agree(meeting, Ranks())
        auto.resume(10 <= step < 22)
    assert [value for value in seen if value is not None] == [pytest.approx(12 * 0.5)], "twelve steps, over two saves"
    assert START == 10
