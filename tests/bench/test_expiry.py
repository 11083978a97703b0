"""How long a node stays excluded: the rule by cost beside fixed times, on the published trace."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from expiry import A_RUN, BY_COST, BY_NODE, EVIDENCE, FIXED, Judged, fitted, gain, returns, rows, splits

from transom_cli.core.node_hazard import DAY, HOUR, PUBLISHED, Hazard, Use, expiry
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
    for ours, published in zip(of_trace.repeats, PUBLISHED.repeats, strict=True):
        assert ours == pytest.approx(published, rel=1e-2)
    rates = PUBLISHED.rates()
    assert rates == tuple(sorted(rates, reverse=True)), "the excess fades"
    assert rates[0] / PUBLISHED.base > 100


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_rule_by_cost_is_never_far_from_the_best_fixed_time(case: tuple[str, int]) -> None:
    """Fitted to one half of the trace, judged on the other: the best fixed time is known only afterwards."""
    policies = ROWS[case]
    best = min(policies[name].regret for name in FIXED)
    assert policies[BY_COST].regret <= best * 1.05
    assert policies[BY_NODE].regret <= max(best * 1.05, best + 0.5), "half a node-hour does not matter"


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_defaults_of_a_run_beat_one_hour_on_large_jobs_and_cost_little_on_small_ones(case: tuple[str, int]) -> None:
    ours, hour = ROWS[case][A_RUN].regret, ROWS[case]["1 h"].regret
    assert ours < hour * 0.97 if case[1] >= 1024 else ours <= hour + 0.5


@pytest.mark.parametrize("name", EVIDENCE)
def test_only_recent_failures_of_the_node_predict_the_other_half(name: str) -> None:
    """The class of the outage and its length do not: no rule uses them."""
    assert isinstance(TRACE, Trace)
    (a, b), by_time = splits(TRACE)["nodes"], splits(TRACE)["time"]
    gains = [gain(*pair, EVIDENCE[name]) for pair in ((a, b), (b, a), by_time)]
    assert (min(gains) > 0) is ("fail" in name)


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
    good = PUBLISHED.updated([Use(30 * DAY, False)] * 2000)
    assert expiry(good, 1024 * 900.0) < expiry(PUBLISHED, 1024 * 900.0)


def test_node_with_recent_failures_waits_longer() -> None:
    waits = [expiry(PUBLISHED, 1024 * 900.0, recent=recent) for recent in (0, 1, 2, 3)]
    assert waits == sorted(waits) and waits[0] < waits[2] == waits[3]


def test_factors_of_recent_failures_follow_what_the_site_sees() -> None:
    """Published: more after recent failures. A site where they predict nothing forgets that."""
    assert PUBLISHED.rates(2)[0] > PUBLISHED.rates()[0] > PUBLISHED.rates(0)[0]
    site = PUBLISHED.updated(Use(HOUR / 2, n % 130 == 0, recent=n % 3) for n in range(60_000))
    assert [site.rates(recent)[0] / site.rates()[0] for recent in (0, 1, 2)] == pytest.approx([1.0] * 3, abs=0.15)


def test_hazard_without_any_use_waits_for_nothing() -> None:
    assert expiry(Hazard((0.0,) * 7, (0.0,) * 7, 1e-9), 1e9) == 0.0


def test_short_use_counts_only_where_it_was() -> None:
    updated = Hazard((0.0,) * 7, (0.0,) * 7, 0.0).updated([Use(2 * HOUR, True)])
    assert updated.failures[:3] == (0, 1, 0) and updated.seconds[:3] == (HOUR, HOUR, 0.0)
