"""How often Slurm is asked about a job, as a function of what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.actions import Release
from transom_cli.core.operator.cadence import AGE, FAST, LONGEST, Cadence, changes, new_enough
from transom_cli.core.operator.state import Exclusion, Isolation, Job, Phase, Request, State

CADENCE = Cadence()
WAITS = State(phase=Phase.PENDING, job=Job(7, state="PENDING"))
HELD = State(phase=Phase.HELD, job=Job(7, state="PENDING"))
TRAINS = State(phase=Phase.TRAINING, job=Job(7, state="RUNNING"))


def pauses(state: State, *, since: float = 3600.0, lives: bool = False, took: float = 0.01) -> tuple[float, float]:
    """The shortest and the longest."""
    found = [
        CADENCE.pause(state, since=since, launcher_lives=lives, took=took, spread=spread) for spread in (0.0, 0.999)
    ]
    return round(found[0].seconds), round(found[1].seconds)


def asked_in_a_minute(state: State, *, silent: bool = False) -> int:
    """Questions in the minute after a change."""
    since = CADENCE.delay(state, silent=silent, spread=0.5, rest=0.0)
    asked = 0
    while since < FAST:
        asked += 1
        pause = CADENCE.pause(state, since=since, launcher_lives=False, took=0.01, spread=0.5, silent=silent)
        since += pause.seconds
    return asked


EXAMINED = replace(TRAINS, incident=Incident("i1", 7, 0, 10.0, 3))
STARTS = replace(WAITS, incident=Incident("i1", 7, 0, 10.0, 3, Stage.STARTING))
SUSPECTED = Isolation(exclusions=(Exclusion("n1", 0.0, 3600.0, "excluded", "i1", "silent"),))


@pytest.mark.parametrize(
    ("state", "silent"),
    [
        (EXAMINED, False),
        (replace(TRAINS, phase=Phase.FINISHING), False),
        (replace(TRAINS, phase=Phase.STOPPING), False),
        (TRAINS, True),
        (replace(WAITS, isolation=SUSPECTED), False),
        (replace(STARTS, request=Request(4, spares=1)), False),
    ],
    ids=["examined", "finishing", "stopping", "silent launcher", "suspected nodes", "a restart with spares"],
)
def test_a_decision_that_waits_for_slurm_asks_at_once_and_a_dozen_times_in_a_minute(state: State, silent: bool) -> None:
    assert CADENCE.delay(state, silent=silent, spread=0.5, rest=20.0) == 0.0
    assert 8 <= asked_in_a_minute(state, silent=silent) <= 12


@pytest.mark.parametrize("state", [WAITS, STARTS], ids=["submitted", "requeued"])
def test_a_job_that_waits_costs_two_questions_in_its_first_minute(state: State) -> None:
    assert asked_in_a_minute(state) == 2
    assert CADENCE.delay(state, silent=False, spread=0.5, rest=0.0) == 1.5


def test_what_is_not_urgent_waits_for_the_next_shared_list() -> None:
    assert CADENCE.delay(WAITS, silent=False, spread=0.5, rest=12.0) == 12.0
    pause = CADENCE.pause(WAITS, since=2.0, launcher_lives=False, took=0.01, spread=0.5, rest=18.0)
    assert (pause.seconds, pause.age) == (18.0, 18.0), "and the answer is newer than that"


@pytest.mark.parametrize(
    ("state", "lives", "expected"),
    [
        (WAITS, False, (60, 120)),
        (HELD, False, (300, 400)),
        (TRAINS, True, (60, 120)),
        (TRAINS, False, (30, 40)),
        (replace(TRAINS, job=Job(7, state="SUSPENDED")), False, (30, 40)),
    ],
    ids=["waits", "held", "trains", "without a launcher", "suspended"],
)
def test_calm_pauses_are_long_and_spread(state: State, lives: bool, expected: tuple[int, int]) -> None:
    assert pauses(state, lives=lives) == expected


def test_a_slow_slurm_is_asked_less() -> None:
    assert pauses(WAITS, took=3.0) == (300, 300)
    assert pauses(EXAMINED, since=5.0, took=3.0) == (30, 30)
    assert pauses(WAITS, since=2.0, took=3.0) == (30, 30)
    assert pauses(HELD, took=30.0) == (LONGEST, LONGEST)


def test_while_the_job_is_given_back_nobody_needs_to_look() -> None:
    busy = replace(TRAINS, incident=Incident("i1", 7, 0, 10.0, 3, Stage.RESTARTING))
    assert pauses(busy, since=1.0)[0] >= 30


def test_an_answer_to_another_run_will_do_unless_something_happened() -> None:
    assert new_enough(0.0, 5.0) == 0.0
    assert new_enough(0.5, 0.01) == 0.5
    assert new_enough(AGE, 0.01) == AGE
    assert new_enough(AGE, 3.0) == 300.0
    assert CADENCE.pause(TRAINS, since=3600.0, launcher_lives=False, took=0.0, spread=0.0).age == AGE


@pytest.mark.parametrize(
    "other",
    [
        replace(WAITS, job=Job(7, restarts=1, state="PENDING")),
        replace(WAITS, job=Job(8, state="PENDING")),
        replace(WAITS, incident=Incident("i1", 7, 0, 10.0, 3)),
        replace(WAITS, phase=Phase.STOPPING),
        replace(WAITS, pending=(Release("release/7.0", 7),)),
    ],
    ids=["restarted", "another job", "incident", "stopped", "order"],
)
def test_what_makes_slurm_worth_asking_again(other: State) -> None:
    assert changes(other) != changes(WAITS)


def test_what_slurm_knows_nothing_about() -> None:
    relaunch = Incident("i1", 7, 0, 10.0, 3, Stage.RELAUNCHING)
    assert changes(replace(TRAINS, incident=relaunch)) == changes(TRAINS)
    assert changes(TRAINS) == changes(WAITS)
