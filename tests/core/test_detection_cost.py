"""What limits of a detector cost."""

from __future__ import annotations

import pytest

from transom_cli.core.detection_cost import Stakes, cheapest, curve

PAUSES = (1.0,) * 990 + (20.0,) * 10  # one evaluation in a hundred steps


def test_limit_clears_the_pauses_of_the_training_if_a_false_restart_is_dear() -> None:
    points = curve(PAUSES, Stakes(healthy=8640, faulty=0.01, false=300.0, delay=10.0))
    assert [point.limit for point in points] == [1.5, 30.0]
    assert cheapest(points).limit == 30.0
    assert points[0].false == pytest.approx(10.5 / 1001) and points[1].false == pytest.approx(0.5 / 1001)


def test_limit_is_short_where_hangs_are_common_and_a_restart_is_cheap() -> None:
    assert cheapest(curve(PAUSES, Stakes(healthy=100, faulty=50, false=1.0, delay=10.0))).limit == 1.5


def test_fault_below_the_limit_is_missed() -> None:
    points = curve((0.01, 0.02), Stakes(10, 1, 100.0, missed=5000.0), faulty=(0.05, 0.2, 0.4), limits=(0.1, 0.03))
    assert [(point.limit, round(point.found, 3)) for point in points] == [(0.03, 1.0), (0.1, 0.667)]
    assert points[1].cost - points[0].cost == pytest.approx(5000.0 / 3)
