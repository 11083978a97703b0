"""Who waits for whom: a chain over groups ends at who waits in nothing, whatever the training."""

from __future__ import annotations

import hang_made
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.hangs.flight_recorder import Count, Group, follow_waits


def group(name: str, **counts: tuple[int, ...]) -> Group:
    """`group("tp", r0=(5, 4), r1=(4, 4))`: enqueued, completed, and the order of the first open call."""
    found = {int(rank[1:]): Count(c[0], c[1], None, *c[2:]) for rank, c in counts.items()}
    return Group(name, tuple(found), found)


def test_who_has_not_called_is_waited_for() -> None:
    found = follow_waits([group("world", r0=(5, 4), r1=(4, 4), r2=(5, 4), r3=(7, 4))])
    assert found.roots == (1,) and found.edges == {0: {1}, 2: {1}, 3: {1}} and found.ring == found.held == ()


def test_running_ahead_is_no_fault() -> None:
    """NCCL: ranks have called more than has ended; only the first open call counts."""
    found = follow_waits([group("world", r0=(9, 4), r1=(5, 4), r2=(7, 4))])
    assert found.roots == () and found.held == (0, 1, 2)


def test_a_chain_over_groups() -> None:
    """0 waits for 1 in a, 1 for 2 in b, 2 for 3 in c; 3 waits for nobody."""
    found = follow_waits(
        [group("a", r0=(2, 1), r1=(1, 1)), group("b", r1=(4, 3), r2=(3, 3)), group("c", r2=(8, 7), r3=(7, 7))]
    )
    assert found.roots == (3,) and found.edges == {0: {1}, 1: {2}, 2: {3}}


def test_who_is_held_by_the_communication_is_not_to_blame() -> None:
    """1 and 2 wait in a call that both have made; 0 waits for 1, which has not come to theirs."""
    found = follow_waits([group("a", r0=(2, 1), r1=(1, 1)), group("b", r1=(4, 3), r2=(4, 3))])
    assert found.roots == () and found.held == (1, 2)


def test_a_call_behind_another_is_not_where_a_rank_waits() -> None:
    """Both have called b; 1 waits in a before it, for 2."""
    found = follow_waits([
        group("a", r1=(2, 1, 10), r2=(1, 1)),
        group("b", r0=(4, 3, 10), r1=(4, 3, 11)),
    ])  # fmt: skip
    assert found.roots == (2,) and found.edges == {0: {1}, 1: {2}} and found.held == ()


def test_groups_in_another_order_are_a_ring() -> None:
    """0 calls a, then b; 1 calls b, then a. 2 waits for 0, and is no part of it."""
    found = follow_waits([
        group("a", r0=(2, 1), r1=(1, 1)),
        group("b", r0=(1, 1), r1=(2, 1)),
        group("c", r0=(1, 1), r2=(2, 1)),
    ])  # fmt: skip
    assert found.ring == (0, 1) and found.roots == found.held == ()


def test_sends_and_receives_count_too() -> None:
    found = follow_waits([group("world", r0=(2, 1), r1=(1, 1), r2=(1, 1))], more={1: {2}})
    assert found.roots == (2,) and found.edges == {0: {1, 2}, 1: {2}}
    assert follow_waits([], more={0: {1}, 1: {0}}).ring == (0, 1)


def test_rank_without_data_is_not_named() -> None:
    known = Group("world", (0, 1, 2), {0: Count(2, 1), 1: Count(2, 1)})
    assert follow_waits([known]).roots == () and follow_waits([]).edges == {}


COUNTS = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9)).map(
    lambda c: Count(max(c[:2]), c[0], None, c[2])
)
GROUPS = st.dictionaries(st.integers(0, 7), COUNTS, max_size=8).map(lambda found: Group("g", tuple(found), found))


@given(st.lists(GROUPS, max_size=5), st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 7)), max_size=4))
def test_any_counts_have_an_answer(groups: list[Group], more: dict[int, set[int]]) -> None:
    found = follow_waits(groups, more)
    waiters = set(found.edges)
    assert not set(found.roots) & waiters, "who is to blame waits in nothing"
    assert set(found.held) <= waiters and set(found.ring) <= waiters and not set(found.ring) & set(found.held)
    assert all(found.edges[rank] for rank in found.ring)
    if waiters:
        assert found.roots or found.held or found.ring, "all waiting ends somewhere"


@given(st.sampled_from(hang_made.STUCK), st.integers(0, 10_000))
def test_the_stuck_of_a_simulated_training_are_who_is_named(fault: str, seed: int) -> None:
    """The simulation knows nothing of waits: it runs the ranks' programs until nothing moves."""
    made = hang_made.hang(fault, 8, seed)
    counts: dict[str, dict[int, list[int]]] = {name: {} for name in made.groups}
    for number, rank in enumerate(made.ranks):
        for at, (name, _) in enumerate(rank.ids):
            counts[name].setdefault(number, []).append(at)
    groups = []
    for name, members in made.groups.items():
        known = {}
        for number in members:
            calls, over = counts[name].get(number, []), made.ranks[number].over
            known[number] = Count(
                len(calls), sum(at < over for at in calls), None, next((at for at in calls if at >= over), 0)
            )
        groups.append(Group(name, members, known))
    assert follow_waits(groups).roots == made.culprits
