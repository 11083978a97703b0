"""The composed hangs of the bench, read from files: who is named is to blame, and nobody where it is nobody's fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import hang_culprits
import hang_made


@pytest.mark.parametrize("fault", [*hang_made.STUCK, *hang_made.CALLS, *hang_made.NOBODY])
def test_no_rank_is_named_wrongly(fault: str) -> None:
    """Of whole dumps, collectives tell nearly always; stacks alone say less, and are rarely wrong."""
    found, _ = hang_culprits.measure(fault, 8, seeds=12, lost=0.0)
    for kind in ("both", "collectives"):
        assert found[kind][hang_culprits.WRONG] == 0 and found[kind][hang_culprits.RIGHT] >= 9, kind
    assert found["stacks"][hang_culprits.WRONG] <= 2
    if fault in hang_made.STUCK[:3]:
        assert found["stacks"][hang_culprits.RIGHT] >= 9


def test_a_seed_is_always_the_same_hang() -> None:
    first, second = (hang_made.hang("user lock", 16, 4) for _ in range(2))
    assert [hang_made.flight(first, n) for n in range(16)] == [hang_made.flight(second, n) for n in range(16)]
    assert first.culprits == second.culprits
