"""Criteria learned from the fleet: from 20 nodes of a model on, one-sided, and never a verdict against a node."""

from __future__ import annotations

import random

import pytest

from transom_cli.health.finding import Verdict
from transom_cli.health.history.criteria import NODES, criteria, judge_fleet, learn
from transom_cli.health.history.records import Measured, from_json, to_json


def fleet(nodes: int, noise: float = 0.01, kind: str = "H100", base: float = 1e12, seed: int = 0) -> list[Measured]:
    chance = random.Random(seed)
    return [
        Measured(float(i), f"{kind}-{i}", kind, (("gemm", base * (1 + noise * chance.uniform(-1, 1))),))
        for i in range(nodes)
    ]


def new(rate: float, kind: str = "H100") -> list[Measured]:
    return [Measured(99.0, "new", kind, (("gemm", rate),))]


def test_nothing_is_judged_before_enough_nodes_of_a_model_are_known() -> None:
    assert judge_fleet(new(5e11), fleet(NODES - 1)) == ()
    assert judge_fleet(new(5e11, "A100"), fleet(NODES)) == ()


@pytest.mark.parametrize(("rate", "verdict"), [(0.9, "MONITOR"), (0.97, "PASS"), (1.5, "PASS")])
def test_a_slow_node_is_named_and_a_fast_one_is_not(rate: float, verdict: str) -> None:
    (found,) = judge_fleet(new(rate * 1e12), fleet(NODES))
    assert found.verdict is Verdict[verdict]
    if verdict == "MONITOR":
        assert found.evidence.startswith("gemm 900 G/s; 20 of 20 nodes of this model have about 1")


def test_slow_nodes_in_the_history_do_not_move_the_criterion() -> None:
    slow = [Measured(50.0, f"s{i}", "H100", (("gemm", 7e11),)) for i in range(8)]
    criterion = criteria([*fleet(30), *slow])["H100", "gemm"]
    assert (criterion.nodes, criterion.alike) == (38, 30) and criterion.usual == pytest.approx(1e12, rel=0.01)


def test_each_model_has_its_own_criterion() -> None:
    both = [*fleet(25), *fleet(25, kind="A100", base=3e11)]
    assert criteria(both)["A100", "gemm"].usual == pytest.approx(3e11, rel=0.01)
    assert judge_fleet(new(3e11, "A100"), both)[0].verdict is Verdict.PASS


def test_noisy_machines_get_a_wider_limit_and_two_populations_none() -> None:
    chance = random.Random(3)
    noisy = learn(1e12 * chance.gauss(1.0, 0.05) for _ in range(200))
    assert noisy is not None and noisy.limit < 0.85 * noisy.usual
    assert learn([1e12 + i for i in range(20)] + [1e11 + i for i in range(20)]) is None


def test_the_newest_measurements_of_a_node_count_by_their_median() -> None:
    many = [Measured(float(w), "n0", "H100", (("gemm", 1e12 if w != 3 else 1e10),)) for w in range(6)]
    assert criteria([*many, *fleet(25)])["H100", "gemm"].alike == 26


def test_measurements_survive_the_file() -> None:
    (one,) = new(1e12)
    assert from_json(to_json(one)) == one
