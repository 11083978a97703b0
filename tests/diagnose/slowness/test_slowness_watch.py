"""Whole made-up trainings: what is reported, once, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from slow_training import Fault, Training

from transom_cli.diagnose.clue import Slow
from transom_cli.diagnose.slowness import watch
from transom_cli.diagnose.slowness.watch import Began, Over, SlowState
from transom_cli.heartbeat.step_breakdown import NodeSteps

News = list[tuple[int, Began | Over]]


def play(training: Training, steps: int, state: SlowState | None = None) -> tuple[SlowState, News]:
    state, news = state or SlowState(), []
    for step, readings in training.readings(steps):
        state, found = watch.watch(state, readings)
        news += [(step, one) for one in found]
    return state, news


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Slow.STORAGE, 900),
        Fault(Slow.LOADER, 900, (3,)),
        Fault(Slow.DEVICE, 900, (2,)),
        Fault(Slow.NODE, 900, (2, 3)),
        Fault(Slow.LINK, 900),
        Fault(Slow.ALL, 900),
    ],
    ids=lambda fault: fault.kind.value,
)
def test_slowness_is_reported_once_and_correctly(fault: Fault) -> None:
    state, news = play(Training(nodes=2, per_node=2, fault=fault), 1500)
    ((step, result),) = news
    assert isinstance(result, Began)
    assert 900 < step < 1100
    assert (result.slowness.kind, tuple(sorted(result.slowness.ranks))) == (fault.kind, fault.ranks)
    assert state.standing == (result,)


def test_a_healthy_training_is_left_alone() -> None:
    state, news = play(Training(nodes=2, per_node=2, seed=3), 2500)
    assert news == []
    assert state.map is not None and state.map.waits and state.map.marks == frozenset()


def test_a_slow_device_from_the_first_step_on_shows_against_the_others() -> None:
    _, news = play(Training(nodes=2, per_node=2, fault=Fault(Slow.DEVICE, 0, (2,))), 600)
    ((_, result),) = news
    assert isinstance(result, Began) and result.by == "map"
    assert (result.slowness.kind, result.slowness.ranks) == (Slow.DEVICE, (2,))


def test_restart_closes_reports_and_compares_no_breakdowns() -> None:
    training = Training(nodes=2, per_node=2, fault=Fault(Slow.NODE, 900, (2, 3)))
    state, news = play(training, 1200)
    assert len(news) == 1
    again = Training(nodes=2, per_node=2, seed=9)
    ended: News = []
    for step, readings in again.readings(400):
        second = {n: _launched(spent) for n, spent in readings.items()}
        state, found = watch.watch(state, second)
        ended += [(step, one) for one in found]
    assert [type(one) for _, one in ended] == [Over]
    assert state.launch == ("1.0", 1) and state.standing == ()


def _launched(spent: NodeSteps) -> NodeSteps:
    return replace(spent, ranks=tuple(replace(r, launch=1, began=7.0) for r in spent.ranks))


def test_heartbeats_alone_show_slowness_without_a_cause() -> None:
    training = Training(nodes=1, per_node=2, fault=Fault(Slow.DEVICE, 900, (1,)))
    state, news = SlowState(), []
    for _, readings in training.readings(1500):
        bare = {
            n: replace(s, ranks=tuple(replace(r, seconds={"other": r.at}) for r in s.ranks))
            for n, s in readings.items()
        }
        state, found = watch.watch(state, bare)
        news += found
    (result,) = news
    assert isinstance(result, Began)
    assert (result.slowness.kind, result.slowness.ranks) == (Slow.ALL, ())
    assert "the cause is unknown" in result.slowness.clue.evidence[-1]


def test_late_or_missing_nodes_are_not_slow() -> None:
    state = SlowState()
    for i, (_, readings) in enumerate(Training(nodes=3, per_node=1).readings(1500)):
        some = {n: s for k, (n, s) in enumerate(readings.items()) if ((i + k) % 3 and n != "n2") or i < 20}
        state, found = watch.watch(state, some)
        assert found == ()
    assert watch.watch(state, {}) == (state, ())
