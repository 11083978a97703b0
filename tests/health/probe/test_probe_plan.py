"""Which nodes meet: invariants of the rounds for any number of nodes and any outcomes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.health.probe.plan import ROUNDS, Meeting, Outcome, Pair, disjoint, next_round, together, tournament

SIZES = st.integers(min_value=1, max_value=40)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


def play(nodes: tuple[str, ...], how: Callable[[Pair], Outcome]) -> list[tuple[Pair, ...]]:
    """All rounds, each going as `how` has it; what every round promises is looked at here."""
    met: list[Meeting] = []
    rounds = []
    while pairs := next_round(nodes, met):
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)), "a node is in two pairs of a round"
        assert not {frozenset(pair) for pair in pairs} & {frozenset(one.pair) for one in met}, "a pair met again"
        rounds.append(pairs)
        met += [Meeting(pair, how(pair)) for pair in pairs]
        assert len(rounds) <= 2 * len(nodes), "it never ends"
    return rounds


def partners(rounds: list[tuple[Pair, ...]], node: str) -> set[str]:
    return {other for pairs in rounds for pair in pairs if node in pair for other in pair} - {node}


@given(SIZES)
def test_healthy_nodes_meet_two_others_in_two_rounds_or_in_three(count: int) -> None:
    nodes = names(count)
    rounds = play(nodes, lambda pair: Outcome.WELL)
    assert all(len(partners(rounds, node)) >= min(2, count - 1) for node in nodes)
    assert len(rounds) <= (2 if count % 2 == 0 else 3)


@given(SIZES.filter(lambda n: n > 2), st.integers(0, 39), st.sampled_from([Outcome.SLOW, Outcome.FAILED]))
def test_a_bad_node_meets_two_who_are_well_with_others(count: int, bad: int, how: Outcome) -> None:
    nodes = names(count)
    culprit = nodes[bad % count]
    rounds = play(nodes, lambda pair: how if culprit in pair else Outcome.WELL)
    well = [p for p in partners(rounds, culprit) if partners(rounds, p) - {culprit}]
    assert len(well) >= 2
    assert len(rounds) <= ROUNDS


@given(st.integers(6, 40), st.data())
def test_two_bad_nodes_never_meet_while_others_could_help(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    bad = set(data.draw(st.permutations(nodes))[:2])
    rounds = play(nodes, lambda pair: Outcome.FAILED if bad & set(pair) else Outcome.WELL)
    for pairs in rounds[1:]:  # in the first nobody knows
        assert not any(set(pair) == bad for pair in pairs)


@given(SIZES, st.randoms(use_true_random=False))
def test_probe_plan_ends_for_any_results(count: int, random: object) -> None:
    choice = random.choice  # type: ignore[attr-defined]
    play(names(count), lambda pair: choice(list(Outcome)))


def test_network_that_is_down_everywhere_costs_two_rounds() -> None:
    assert len(play(names(1024), lambda pair: Outcome.FAILED)) == 2


def test_suspect_meets_a_node_that_succeeded() -> None:
    nodes = names(5)
    met = (Meeting(("n0", "n1"), Outcome.FAILED), Meeting(("n2", "n3"), Outcome.WELL))
    found = {frozenset(pair) for pair in next_round(nodes, met)}
    assert not any("n4" in pair for pair in found)
    assert {next(iter(pair & {"n2", "n3"})) for pair in found} == {"n2", "n3"}


@given(st.integers(1, 200), st.integers(3, 32))
def test_groups_include_all_nodes_and_respect_the_limit(count: int, most: int) -> None:
    nodes = names(count)
    rounds = together(nodes, most)
    groups = [group for one in rounds for group in one]
    assert all(len(group) <= most for group in groups)
    assert {node for group in groups for node in group} == set(nodes)
    for one in rounds:
        busy = [node for group in one for node in group]
        assert len(busy) == len(set(busy))


@given(st.integers(2, 24))
def test_a_tournament_is_each_with_each_once(count: int) -> None:
    rounds = tournament(names(count), 99)
    pairs = [frozenset(pair) for one in rounds for pair in one]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert all(len({node for pair in one for node in pair}) == 2 * len(one) for one in rounds)


@pytest.mark.parametrize(("count", "rounds"), [(16, 15), (17, 15), (1024, 15)])
def test_a_tournament_of_many_is_cut_short(count: int, rounds: int) -> None:
    assert len(tournament(names(count), 15)) == rounds


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(10, 19)), unique=True, max_size=30))
def test_disjoint_rounds_hold_each_pair_once(numbers: list[tuple[int, int]]) -> None:
    pairs = [(str(a), str(b)) for a, b in numbers]
    rounds = disjoint(pairs)
    assert sorted(pair for one in rounds for pair in one) == sorted(pairs)
    assert all(len({node for pair in one for node in pair}) == 2 * len(one) for one in rounds)
