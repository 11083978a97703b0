"""The order of nodes: the optimum of small cases, slow links, spares, and when Slurm's order stays."""

from __future__ import annotations

import itertools
import random

import pytest

from transom_cli.core.placement import Costs, Network, length, place, replacement


def tree(leaves: int, each: int) -> dict[str, tuple[str, ...]]:
    return {f"n{i}": ("spine", f"leaf{i % leaves}") for i in range(leaves * each)}  # dealt out, as after other jobs


def crossings(order: tuple[str, ...], switches: dict[str, tuple[str, ...]]) -> int:
    return sum(switches[a] != switches[b] for a, b in zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_a_few_nodes_is_the_best_one(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [f"n{i}" for i in range(7)]
    seconds = {pair: chance.choice((1.0, 1.0, 1.8, 4.0)) for pair in itertools.combinations(nodes, 2)}
    costs = Costs(Network(seconds=seconds))
    best = min(length((nodes[0], *rest), costs) for rest in itertools.permutations(nodes[1:]))
    assert length(place(nodes, 7, Network(seconds=seconds)).order, costs) == pytest.approx(best)


@pytest.mark.parametrize(("leaves", "each"), [(2, 3), (4, 4), (3, 8)])
def test_a_ring_crosses_between_switches_as_rarely_as_possible(leaves: int, each: int) -> None:
    switches = tree(leaves, each)
    placement = place(tuple(switches), len(switches), Network(switches))
    assert sorted(placement.order) == sorted(switches) and placement.spares == ()
    assert crossings(placement.order, switches) == leaves, "the optimum"
    assert crossings(tuple(switches), switches) == leaves * each and "ordered by the network" in placement.words


def test_a_slow_link_is_kept_out_of_the_ring() -> None:
    nodes = tuple(f"n{i}" for i in range(6))
    seconds = dict.fromkeys(itertools.combinations(nodes, 2), 1.0) | {("n2", "n3"): 20.0}
    order = place(nodes, 6, Network(seconds=seconds)).order
    assert abs(order.index("n2") - order.index("n3")) not in (1, 5)


def test_the_spares_are_the_far_nodes() -> None:
    switches = {**tree(1, 6), "far": ("spine", "other")}
    placement = place(("far", *tree(1, 6)), 6, Network(switches))
    assert placement.spares == ("far",)


def test_a_swap_takes_the_nearest_spare() -> None:
    switches = tree(2, 4)
    order = place(tuple(switches), 6, Network(switches)).order
    lost = next(n for n in order if switches[n][1] == "leaf1")
    network = Network({**switches, "near": ("spine", "leaf1"), "away": ("spine", "leaf9")})
    assert replacement(order, lost, ("away", "near"), network) == "near"
    assert replacement(order, lost, ("away", "near"), Network()) == "away", "nothing is known: Slurm's order"


def test_slurms_order_stays_where_nothing_is_known_or_nothing_is_gained() -> None:
    nodes = tuple(f"n{i}" for i in range(8))
    for network in (
        Network(),
        Network(dict.fromkeys(nodes, ("spine", "leaf0"))),
        Network({n: ("spine", f"leaf{i // 4}") for i, n in enumerate(nodes)}),
    ):
        placement = place(nodes, 6, network)
        assert (placement.order, placement.spares, placement.words) == (nodes[:6], nodes[6:], "")


def test_noise_does_not_reorder_nodes() -> None:
    chance = random.Random(1)
    nodes = tuple(f"n{i}" for i in range(16))
    seconds = {pair: 1.0 + chance.random() * 0.4 for pair in itertools.combinations(nodes, 2)}
    assert place(nodes, 16, Network(seconds=seconds)).words == ""


def test_pairs_that_were_not_measured_cost_what_others_at_their_distance_cost() -> None:
    switches = tree(2, 4)
    costs = Costs(Network(switches, {("n0", "n2"): 1.0, ("n0", "n1"): 5.0}))
    assert (costs("n4", "n6"), costs("n2", "n3")) == (1.0, 5.0)
