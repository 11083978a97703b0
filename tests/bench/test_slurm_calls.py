"""bench/slurm_calls.py: ways to Slurm take turns, and each is charged for its own calls alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from slurm_calls import Cost, measure, shown


def test_calls_are_made_in_turn_and_charged_apart() -> None:
    order: list[str] = []
    spent = {"a": 0.0, "b": 0.0}

    def call(name: str) -> None:
        order.append(name)
        spent[name] += 0.002 if name == "a" else 0.004

    both = measure([lambda: call("a"), lambda: call("b")], [lambda: sum(spent.values())] * 2, times=3)
    assert "".join(order) == "ababab"
    assert [round(cost.cpu, 6) for cost in both] == [2.0, 4.0], "milliseconds, though both read the same clock"
    assert all(0 <= cost.median <= cost.slow for cost in both)


def test_unused_call_path_has_no_figures() -> None:
    assert shown(Cost(1.04, 2.0, 0.25)) == "1.0 · 2.0 · 0.2" and shown(None) == "–"
