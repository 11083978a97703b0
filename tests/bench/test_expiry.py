"""How long a node stays excluded: the rule by cost beside fixed times, on the published trace."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from expiry import BY_COST, FIXED, Judged, fitted, returns, rows

from transom_cli.core.node_hazard import DAY, HOUR, PUBLISHED, Hazard, Return, expiry
from transom_cli.simulate.model import Trace
from transom_cli.simulate.traces import read_failures

TRACE = read_failures("stepfun")
assert isinstance(TRACE, Trace)
ROWS = rows(TRACE)


def test_shipped_hazard_is_that_of_the_trace() -> None:
    assert isinstance(TRACE, Trace)
    of_trace = fitted(returns(TRACE))
    assert of_trace.failures == PUBLISHED.failures
    assert of_trace.seconds == pytest.approx(PUBLISHED.seconds, rel=1e-5)
    rates = PUBLISHED.rates()
    assert rates == tuple(sorted(rates, reverse=True)), "the excess fades"
    assert rates[0] / PUBLISHED.base > 100


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_rule_by_cost_is_never_far_from_the_best_fixed_time(case: tuple[str, int]) -> None:
    """Fitted to one half of the trace, judged on the other: the best fixed time is known only afterwards."""
    policies = ROWS[case]
    best = min(policies[name].regret for name in FIXED)
    assert policies[BY_COST].regret <= best * 1.05


@pytest.mark.parametrize("name", FIXED)
def test_every_fixed_time_loses_clearly_at_some_size(name: str) -> None:
    def worse(policies: dict[str, Judged]) -> float:
        return policies[name].regret - policies[BY_COST].regret

    assert max(worse(policies) / policies[BY_COST].regret for policies in ROWS.values()) > 0.1


def test_larger_jobs_wait_longer_and_idle_nodes_make_waiting_cheap() -> None:
    waits = [expiry(PUBLISHED, nodes * 900.0) for nodes in (1, 64, 1024, 16384)]
    assert waits == sorted(waits) and waits[0] == 0.0 and waits[-1] >= 3 * DAY
    assert expiry(PUBLISHED, 64 * 900.0, value=0.05) > expiry(PUBLISHED, 64 * 900.0)


def test_site_whose_returns_fail_less_waits_less() -> None:
    good = PUBLISHED.updated([Return(30 * DAY, False)] * 2000)
    assert expiry(good, 1024 * 900.0) < expiry(PUBLISHED, 1024 * 900.0)


def test_hazard_without_any_use_waits_for_nothing() -> None:
    assert expiry(Hazard((0.0,) * 7, (0.0,) * 7, 1e-9), 1e9) == 0.0


def test_short_use_counts_only_where_it_was() -> None:
    updated = Hazard((0.0,) * 7, (0.0,) * 7, 0.0).updated([Return(2 * HOUR, True)])
    assert updated.failures[:3] == (0, 1, 0) and updated.seconds[:3] == (HOUR, HOUR, 0.0)
