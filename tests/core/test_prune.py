"""Which runs and checkpoints `transom prune` chooses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.prune import Limits, Removal, StoredRun, choose

OLD = StoredRun("old", 100.0, 1000, ((5, 300), (10, 400)))
MID = StoredRun("mid", 200.0, 500)
NEW = StoredRun("new", 300.0, 700, ((7, 600),))
RUNS = (NEW, OLD, MID)


def names(*removals: Removal) -> list[tuple[str, bool, tuple[int, ...], int]]:
    return [(one.run_id, one.whole, one.steps, one.freed) for one in removals]


def test_old_run_keeps_its_last_checkpoint() -> None:
    assert names(*choose(RUNS, Limits(ended_before=250.0))) == [("old", False, (5,), 300), ("mid", True, (), 500)]


def test_last_checkpoint_goes_only_when_requested() -> None:
    chosen = choose(RUNS, Limits(ended_before=150.0, last_checkpoints=True))
    assert names(*chosen) == [("old", True, (), 1000)] and chosen[0].last == 10


def test_newest_runs_are_kept_whatever_their_age() -> None:
    assert names(*choose(RUNS, Limits(ended_before=999.0, newest=2))) == [("old", False, (5,), 300)]


def test_oldest_runs_go_until_the_rest_fits() -> None:
    limits = Limits(size=1500, last_checkpoints=True)
    assert names(*choose(RUNS, limits)) == [("old", True, (), 1000)]
    assert names(*choose(RUNS, limits, other_bytes=400)) == [("old", True, (), 1000), ("mid", True, (), 500)]
    assert choose(RUNS, Limits(size=2200)) == ()


runs = st.lists(
    st.builds(
        StoredRun,
        st.sampled_from("abcdefgh"),
        st.floats(0, 100),
        st.integers(100, 1000),
        st.sampled_from([(), ((1, 10),), ((1, 10), (2, 20))]),
        st.booleans(),
    ),
    unique_by=lambda run: run.run_id,
)
limits = st.builds(
    Limits,
    st.none() | st.floats(0, 100),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 4000),
    st.just(False),
)


@given(runs, limits)
def test_no_last_checkpoint_and_no_kept_run_is_ever_chosen(found: list[StoredRun], limit: Limits) -> None:
    known = {run.run_id: run for run in found}
    newest = sorted(found, key=lambda run: (run.ended, run.run_id), reverse=True)[: limit.newest or 0]
    for one in choose(found, limit):
        run = known[one.run_id]
        assert run.removable and run not in newest
        assert limit.ended_before is None or run.ended < limit.ended_before
        assert not run.checkpoints if one.whole else set(one.steps) == {s for s, _ in run.checkpoints[:-1]}
