"""Chaos plans: a seed is one plan for ever, all kinds and moments come, and no plan asks for what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from chaos_plan import (
    CAP,
    CLOCK,
    CONTROLLER,
    DISK,
    KINDS,
    LOSES_NODE,
    NODES,
    STORIES,
    Injection,
    Moment,
    make_plan,
    make_recovery_plan,
)

STEPS = 60
PLANS = [make_plan(f"1/{n}", STEPS) for n in range(2000)]


def test_a_seed_replays_to_the_same_plan() -> None:
    assert [make_plan(f"1/{n}", STEPS) for n in range(50)] == PLANS[:50]
    assert len({plan.injections for plan in PLANS}) == len(PLANS)
    assert make_plan("1/3", STEPS).injections == (
        Injection("rank-stop", 0, Moment("step", 0.07, 13)),
        Injection("launcher-stop", 1, Moment("step", 0.19, 4), 2.7),
    )


def test_every_kind_comes_first_and_later_and_every_moment_comes() -> None:
    assert {plan.injections[0].kind for plan in PLANS} == set(KINDS)
    assert {x.kind for plan in PLANS for x in plan.injections[1:]} == set(KINDS)
    assert {plan.injections[0].moment.after for plan in PLANS} == {"start", "step"}
    assert {x.moment.after for plan in PLANS for x in plan.injections[1:]} == {"recovery", "fault", "step"}


def test_several_faults_a_run_and_steps_well_inside_it() -> None:
    assert {len(plan.injections) for plan in PLANS} == {2, 3, 4}
    steps = {x.moment.step for plan in PLANS for x in plan.injections if x.moment.after == "step"}
    assert min(steps) == 2 and max(steps) == STEPS * 2 // 3 - 1
    assert {x.target for plan in PLANS for x in plan.injections if x.kind == "rank-kill"} == set(range(NODES))


def test_repairable_faults_are_repaired_and_dead_nodes_stay_dead() -> None:
    mended = {x.kind for plan in PLANS for x in plan.injections if x.lasting is not None}
    assert mended >= DISK | CONTROLLER | CLOCK | {"operator-kill", "operator-away"}
    assert not mended & {
        "rank-kill",
        "rank-stop",
        "node-kill",
        "node-stop",
        "agent-kill",
        "agent-hang",
        "launcher-kill",
        "launcher-hang",
        "admin-requeue",
        "limit-warning",
    }
    assert all(0 < x.lasting <= 40 for plan in PLANS for x in plan.injections if x.lasting is not None)


def test_lost_nodes_rarely_exceed_the_cap_and_by_one_at_most() -> None:
    lost = [sum(x.kind in LOSES_NODE for x in plan.injections) for plan in PLANS]
    assert max(lost) == CAP + 1 and 0 < lost.count(CAP + 1) < len(PLANS) / 50


@pytest.mark.parametrize("group", [DISK, CONTROLLER, CLOCK, {"operator-kill", "operator-away"}])
def test_what_there_is_only_one_of_has_one_fault(group: set[str]) -> None:
    assert all(sum(x.kind in group for x in plan.injections) <= 1 for plan in PLANS)


def test_kinds_that_cannot_be_made_here_are_replaced_by_others() -> None:
    available = set(KINDS) - DISK - CLOCK
    plans = [make_plan(f"1/{n}", STEPS, available) for n in range(300)]
    assert {x.kind for plan in plans for x in plan.injections} == available
    assert all(len(plan.injections) >= 2 for plan in plans)


def test_plan_is_described() -> None:
    words = [x.words for x in make_plan("1/2", STEPS).injections]
    assert words == [
        "controller-stop, 0.1 s after step 37, undone after 4.8 s",
        "launcher-stop, 0.6 s after the fault before, undone after 3.7 s",
    ]


def test_recovery_plans_are_repeatable_and_meet_every_story() -> None:
    plans = [make_recovery_plan(f"1/{number}") for number in range(1, 40)]
    assert plans == [make_recovery_plan(f"1/{number}") for number in range(1, 40)]
    kinds = {fault.kind for plan in plans for fault in plan.injections}
    assert kinds == {"rank-kill", "rank-stop", "rank-stuck", "standby-kill", "both-kill", "agent-kill", "operator-kill"}
    assert all(plan.injections[0].moment.after in ("ready", "steady") and plan.options for plan in plans)
    assert all(len({fault.story for fault in plan.injections}) == STORIES for plan in plans)
