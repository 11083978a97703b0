"""Starts of accounting beside the attempts that a run knows: each to its own, whatever either side lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.slurm.accounting import CLOCK_SKEW, OLDER, Attempt, last_end, match_attempts, own_starts
from transom_cli.slurm.port import JobState, Start

NODES = ("n1", "n2", "n3")
TAG = "transom:demo"


@dataclass(frozen=True)
class Truth:
    """What happened: each start with the attempt that came of it."""

    attempts: tuple[Attempt, ...]
    starts: tuple[Start, ...]


@st.composite
def truths(draw: st.DrawFn, least: float = 1.0) -> Truth:
    """Two jobs, the second after the first. least: seconds of each life, and between two."""
    now, attempts, starts = 1e9, [], []
    for job in (7, 8):
        for restarts in range(draw(st.integers(0, 6))):
            late, life, pause = (draw(st.floats(low, low + 400)) for low in (0.0, least, least))
            nodes = tuple(draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True)))
            late = min(late, CLOCK_SKEW / 4)
            attempts.append(Attempt(job, restarts, now + late, nodes))
            starts.append(Start(job, JobState.FAILED, 1, 0, nodes, now, now + late + life))
            now += late + life + pause
    return Truth(tuple(attempts), tuple(starts))


def pairs(attempts: tuple[Attempt, ...], starts: tuple[Start, ...]) -> list[tuple[Attempt, Start]]:
    found = match_attempts(attempts, starts)
    assert len(found.starts) == len(attempts)
    result = [start for start in found.starts if start is not None]
    assert len({id(one) for one in result}) == len(result), "no start is two attempts'"
    assert sorted(map(repr, (*result, *found.alone))) == sorted(map(repr, starts)), "each start is reported once"
    return [(a, s) for a, s in zip(attempts, found.starts, strict=True) if s is not None]


@given(truths(), st.floats(-CLOCK_SKEW / 2, CLOCK_SKEW / 2))
def test_complete_records_match_one_to_one_despite_clocks(truth: Truth, ahead: float) -> None:
    moved = tuple(replace(one, began=(one.began or 0.0) + ahead) for one in truth.attempts)
    assert pairs(moved, truth.starts) == list(zip(moved, truth.starts, strict=True))


@given(truths(least=3 * CLOCK_SKEW), st.data())
def test_where_either_lacks_some_the_others_are_not_mixed_up(truth: Truth, data: st.DataObject) -> None:
    right = dict(zip(truth.attempts, truth.starts, strict=True))
    attempts = tuple(one for one in truth.attempts if data.draw(st.booleans()))
    starts = tuple(one for one in truth.starts if data.draw(st.booleans()))
    expected = [(one, right[one]) for one in attempts if right[one] in starts]
    assert pairs(attempts, starts) == expected


@given(truths(), truths())
def test_pairs_are_of_one_job_and_in_order(one: Truth, other: Truth) -> None:
    found = pairs(one.attempts, other.starts)
    assert all(a.job_id == s.job_id for a, s in found)
    for job in (7, 8):
        result = [(a.restarts, s.began) for a, s in found if a.job_id == job]
        assert result == sorted(result)


def test_starts_that_slurm_wrote_over_each_other_are_known_apart() -> None:
    """22.05: the record that a shrink opened becomes that of the next start; its nodes and its begin stay as they were.

    RESIZING 100 to 150 on n1-3, COMPLETED 150 to 300 on n1,n3: requeued at 152, started at 160, shrunk at 200,
    requeued and started again at 210.
    """
    start = Start(7, JobState.COMPLETED, 0, 0, NODES, 100.0, 300.0, resized=(150.0, 200.0))
    attempts = (Attempt(7, 0, 101.0, NODES), Attempt(7, 1, 160.0, ("n1", "n4")), Attempt(7, 2, 210.0, ("n5",)))
    found = match_attempts(attempts, (start,))
    assert found.alone == ()
    result = [(one.state.value, one.began, one.ended, one.nodes) for one in found.starts if one is not None]
    assert result == [
        ("UNKNOWN", 100.0, 150.0, NODES),
        ("UNKNOWN", 150.0, 200.0, ()),
        ("COMPLETED", 200.0, 300.0, ()),
    ]
    assert match_attempts(attempts[:1], (start,)).starts == (start,), "one attempt that gave nodes up twice"


@pytest.mark.parametrize("ended", [300.0, None])
def test_what_overlaps_the_next_start_has_its_end(ended: float | None) -> None:
    """22.05 again: RESIZING 100 to 150, COMPLETED 150 to 300 on the nodes that were left, COMPLETED from 160 on."""
    state = JobState.COMPLETED if ended else JobState.RUNNING
    code = 0 if ended else None
    over = Start(7, state, code, code, NODES, 100.0, ended, resized=(150.0,))
    following = Start(7, state, code, code, ("n1", "n4"), 160.0)
    first, second = own_starts((over, following), 90.0, TAG)
    assert (first.state, first.began, first.ended, first.nodes) == (JobState.UNKNOWN, 100.0, 150.0, NODES)
    assert second == replace(following, ended=ended)
    attempts = (Attempt(7, 0, 101.0, NODES), Attempt(7, 1, 162.0, ("n1", "n4")))
    assert match_attempts(attempts, (first, second)).starts == (first, second)
    assert last_end((first, second)) == (second if ended else None)
    assert own_starts((replace(over, ended=155.0), following), 90.0, TAG)[0].ended == 155.0, "they do not overlap"


def test_a_start_that_still_runs_may_be_written_over_another() -> None:
    start = Start(7, JobState.RUNNING, None, None, NODES, 100.0, None, resized=(150.0,))
    first, second = match_attempts((Attempt(7, 0, 101.0, NODES), Attempt(7, 1, 160.0, ("n4",))), (start,)).starts
    assert first is not None and second is not None
    assert (first.ended, second.state, second.ended) == (150.0, JobState.RUNNING, None)


def test_attempt_without_a_time_gets_the_remaining_start() -> None:
    starts = (
        Start(7, JobState.NODE_FAIL, 0, 0, ("n1",), 100.0, 200.0),
        Start(7, JobState.RUNNING, 0, 0, ("n2",), 300.0),
    )
    attempts = (Attempt(7, 0, None, ()), Attempt(7, 1, 301.0, ("n2",)))
    assert match_attempts(attempts, starts).starts == starts


def test_other_nodes_are_another_start() -> None:
    start = Start(7, JobState.NODE_FAIL, 0, 0, ("n1",), 100.0, 200.0)
    found = match_attempts((Attempt(7, 0, 101.0, ("n2",)),), (start,))
    assert (found.starts, found.alone) == ((None,), (start,))


def test_waiting_job_is_no_start_but_a_cancelled_one_is_shown() -> None:
    waits, never = Start(7, JobState.PENDING, None, None, ()), Start(8, JobState.CANCELLED, 0, 0, (), None, 50.0, 0)
    assert match_attempts((Attempt(7, 0, 40.0, ()), Attempt(8, 0, 45.0, ())), (waits, never)).starts == (None, None)
    assert match_attempts((), (waits, never)).alone == (never,)


def test_only_the_newest_record_counts_as_an_end() -> None:
    ended = Start(7, JobState.CANCELLED, 0, 15, ("n1",), 100.0, 200.0, 1000)
    assert last_end(()) is None and last_end((ended,)) == ended
    assert last_end((ended, Start(7, JobState.PENDING, None, None, ()))) is None, "somebody requeued it"
    assert last_end((ended, Start(7, JobState.RUNNING, None, None, ("n1",), 300.0))) is None


def test_a_job_id_that_came_round_again() -> None:
    older = Start(7, JobState.CANCELLED, 0, 15, ("n1",), 100.0, 200.0, 1000)
    runaway = Start(7, JobState.RUNNING, None, None, ("n1",), 100.0)
    ours, waits = replace(older, began=9e5, ended=None), Start(7, JobState.PENDING, None, None, ())
    assert own_starts((older, runaway, ours, waits), 200.0 + OLDER + 1, TAG) == [ours, waits]
    assert own_starts((older, runaway), 150.0, TAG) == [older, runaway]


def test_a_job_id_that_was_given_again_while_the_run_lasts() -> None:
    """A slurmctld that has lost its state reuses job IDs; a site may take comments away."""
    ours = Start(7, JobState.NODE_FAIL, 0, 0, ("n1",), 100.0, 200.0, comment="transom:demo:after-6.0")
    theirs = Start(7, JobState.CANCELLED, 0, 15, ("n1",), 300.0, 400.0, 1000, comment="transom:demo2")
    anybodys = replace(theirs, comment="")
    assert own_starts((ours, theirs), 90.0, TAG) == [ours]
    assert own_starts((ours, theirs), 90.0, f"{TAG}:after-7.0") == [ours], "also by the tag of a successor"
    assert own_starts((ours, anybodys), 90.0, TAG) == [ours, anybodys]
