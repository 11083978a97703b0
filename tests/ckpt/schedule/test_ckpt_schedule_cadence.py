"""The interval between saves: bounded, within the overhead, near the least time lost, and stable."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.ckpt.schedule.cadence import LONGEST, ROOM, START, Cadence, Measured, retune, slowest

seconds = st.floats(1e-4, 1e4)
maybe = st.none() | st.floats(0, 1e5)
anything = st.builds(Measured, stall=maybe, step=maybe, slowed=st.none() | st.floats(-1e4, 1e5), write=maybe)
overheads = st.floats(0.001, 0.5)
mtbfs = st.floats(300.0, 365 * 86400.0)
QUICK = settings(max_examples=300, deadline=None)


def play(cadence: Cadence, *seen: Measured) -> Cadence:
    for one in seen:
        cadence = retune(cadence, one)
    return cadence


def lost(measured: Measured, mtbf: float, interval: float) -> float:
    """The part of the time lost to saves and failures together."""
    assert measured.stall is not None and measured.slowed is not None
    return (measured.stall + measured.slowed) / interval + interval / (2 * mtbf)


@QUICK
@given(st.lists(anything, max_size=12), overheads, mtbfs)
def test_whatever_is_measured_the_interval_is_a_number_of_steps_with_a_reason(seen, overhead, mtbf):
    cadence = Cadence(overhead, mtbf)
    for one in seen:
        cadence = retune(cadence, one)
        assert type(cadence.steps) is int and cadence.steps >= 1
        assert cadence.reason and "nan" not in cadence.words and "inf" not in cadence.words
        assert max(map(len, (cadence.stalls, cadence.slowed, cadence.writes))) <= 5
    if all(one.step is None for one in seen) or all(one.stall is None for one in seen):
        assert cadence.steps == START


@QUICK
@given(seconds, seconds, st.floats(0, 100), st.floats(0, 1e4), overheads, mtbfs)
def test_saves_stay_within_the_overhead_and_a_failure_costs_an_hour_at_most(stall, step, slowed, write, overhead, mtbf):
    measured = Measured(stall, step, slowed, write)
    cadence = play(Cadence(overhead, mtbf), *[measured] * 3)
    between = cadence.steps * step
    assert between >= ROOM * write * (1 - 1e-9), "the next save never waits for the last"
    assert between >= min((stall + slowed) / overhead, LONGEST) * (1 - 1e-9)
    assert between <= 1.1 * max(LONGEST, ROOM * write) + step, "1.1: rounded up to two digits"


@QUICK
@given(st.floats(1e-3, 100), st.floats(0, 100), overheads, mtbfs, st.floats(0, 1))
def test_no_other_allowed_interval_loses_less_time(stall, slowed, overhead, mtbf, at):
    measured = Measured(stall, 1e-5, slowed, 0.0)  # short steps: an interval is a whole number of them
    between = play(Cadence(overhead, mtbf), *[measured] * 3).steps * 1e-5
    least = min((stall + slowed) / overhead, LONGEST)
    rival = least * (LONGEST / least) ** at
    assert lost(measured, mtbf, between) <= 1.1 * lost(measured, mtbf, rival), "rounded up to two digits"


@QUICK
@given(seconds, seconds, st.lists(st.floats(1.0, 1.1), min_size=3, max_size=40), overheads, mtbfs)
def test_noise_of_a_tenth_changes_nothing_after_the_first_saves(stall, step, noise, overhead, mtbf):
    cadence = play(Cadence(overhead, mtbf), *[Measured(stall, step, 0.0, 0.0)] * 2)
    changes = 0
    for factor in noise:
        after = retune(cadence, Measured(stall * factor, step, 0.0, 0.0))
        changes += after.steps != cadence.steps
        cadence = after
    assert changes <= 1


@QUICK
@given(st.lists(st.booleans(), min_size=1, max_size=25))
def test_occasional_slow_save_changes_nothing(slow_ones):
    """Two of five in a row at most."""
    stalls = [0.1] * 5
    for slow in slow_ones:
        stalls.append(30.0 if slow and stalls[-4:].count(30.0) < 2 else 0.1)
    cadence = play(Cadence(0.01, 1e5), *[Measured(s, 1.0, 0.0, 0.0) for s in stalls[:5]])
    assert play(cadence, *[Measured(s, 1.0, 0.0, 0.0) for s in stalls[5:]]).steps == cadence.steps


def test_it_follows_what_really_changes():
    quick, slow = Measured(0.1, 1.0, 0.0, 1.0), Measured(0.9, 1.0, 0.0, 1.0)
    cadence = play(Cadence(0.01, 3600.0), *[quick] * 3)
    assert cadence.steps == 27  # Young: sqrt(2 x 0.1 x 3600)
    cadence = play(cadence, *[slow] * 3)
    assert cadence.steps == 90  # the bound: 0.9 / 0.01; Young says 81
    cadence = play(cadence, *[quick] * 3)
    assert cadence.steps == 27
    assert play(replace(cadence, mtbf=360_000.0), quick).steps == 270  # failures turn out to be rare


def test_the_first_save_pays_for_fresh_memory_and_is_forgotten():
    cadence = retune(Cadence(0.01, 3.6e6), Measured(10.0, 1.0))
    assert cadence.steps == 1000, "the bound alone: Young's 8,500 steps would rest on that one stall"
    cadence = retune(cadence, Measured(0.5, 1.0, 0.5, 20.0))
    assert cadence.stalls == (0.5,)
    assert cadence.steps == 2700  # sqrt(2 x 1 x 3.6e6)


@pytest.mark.parametrize(
    ("measured", "mtbf", "words"),
    [
        (Measured(0.12, 0.9, 0.24, 4.0), 3600.0, "every 57 steps: a save costs 0.36 s (stalls 0.12 s, slows steps by "
         "0.24 s in all), and a failure comes every 60 min: least time lost to both"),
        (Measured(3.0, 1.0, -0.5, 4.0), 3600.0, "every 300 steps: a save costs 3 s (stalls 3 s, slows steps by 0 s in "
         "all): 1 % of the time"),
        (Measured(0.1, 1.0, 0.0, 400.0), 3600.0, "every 800 steps: a save takes 6.67 min to be written, and that is "
         "half of the time at most"),
        (Measured(60.0, 10.0, 0.0, 0.0), 3600.0, "every 360 steps: a save costs 60 s (stalls 60 s, slows steps by 0 s "
         "in all), more than 1 % of the time, but no failure may cost more than 60 min of work"),
        (Measured(10.0, 10.0, 0.0, 0.0), 3.6e7, "every 360 steps: a save costs 10 s (stalls 10 s, slows steps by 0 s "
         "in all), and no failure may cost more than 60 min of work"),
        (Measured(0.01, 9.0, 0.0, 1.0), 3600.0, "every step: a save costs 0.01 s (stalls 0.01 s, slows steps by 0 s in "
         "all), and a failure comes every 60 min: least time lost to both"),
    ],
)  # fmt: skip
def test_the_reason_in_words(measured, mtbf, words):
    assert play(Cadence(0.01, mtbf), *[measured] * 2).words == words


@QUICK
@given(st.lists(anything, min_size=1, max_size=6))
def test_the_slowest_rank_counts(ranks):
    seen = slowest(ranks)
    for name in ("stall", "slowed", "write"):
        known = [getattr(rank, name) for rank in ranks if getattr(rank, name) is not None]
        assert getattr(seen, name) == (max(known) if known else None)
        assert all(value <= getattr(seen, name) < inf for value in known)
    steps = [rank.step for rank in ranks if rank.step is not None]
    assert (seen.step is None) if not steps else min(steps) <= seen.step <= max(steps)
