"""The simulated causes of `bench/silent_culprits.py`: no healthy node is named, and most faulty ones are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from silent_culprits import NODES, SOFTWARE, Case, run


@pytest.mark.parametrize("cause", SOFTWARE)
def test_software_isolates_no_node(cause: str) -> None:
    for seed in range(12):
        case = Case(cause, cause == "all products" or (cause.startswith("rank") and seed % 3 == 2), seed)
        assert run(case)[0] == set(), case


@pytest.mark.parametrize("cause", NODES)
def test_only_the_faulty_node_is_named(cause: str) -> None:
    cases = [Case(cause, seed % 3 == 2, seed) for seed in range(12)]
    named = [run(case)[0] for case in cases]
    assert all(names <= {case.bad} for case, names in zip(cases, named, strict=True))
    assert sum(map(bool, named)) >= 8, named
