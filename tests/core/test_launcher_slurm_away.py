"""A launch that cannot be requested, since slurmctld gives no answer: it waits, and is no fault."""

from __future__ import annotations

import pytest
from core_launcher import NODES, feed, fresh, killed, started, training

from transom_cli.core import launcher
from transom_cli.core.launcher import Action
from transom_cli.core.slurm_messages import slurm_is_away

WHY = "Unable to confirm allocation for job 7: Socket timed out on send/recv operation"


def away(launch: int, first: float, last: float) -> list[launcher.Event]:
    """Meanwhile the launcher reports it once a second."""
    looks = range(int(first), int(last) + 1)
    return [
        received for at in looks for received in (launcher.SlurmAway(float(at), launch, WHY), launcher.Tick(float(at)))
    ]


def test_a_relaunch_waits_ten_minutes_for_slurmctld_and_says_so_once() -> None:
    state, actions = feed(killed(training(), 10.0), *away(1, 15, 615))
    (found,) = actions
    assert found == launcher.Journal("l1", "waiting", f"launch 1 waits for slurmctld, which does not answer ({WHY})")
    state, actions = feed(state, launcher.TasksSeen(620.0, 1), launcher.Stepped(625.0, 1, 5))
    assert actions == [launcher.Journal("l1", "recovered", "step 5 done in launch 1")]
    assert dict(state.budget.relaunches) == {"rank_killed": 1}, "the wait costs nothing of the budget"


def test_once_slurmctld_answers_the_launch_has_three_times_as_long_to_come_up_as_any() -> None:
    """22.05 refuses it its nodes for up to two minutes: the slurmstepds of the last one tell of its end late."""
    state, _ = feed(killed(training(), 10.0), *away(1, 15, 300))
    assert feed(state, launcher.Tick(659.0))[1] == []
    (found, *_) = feed(state, launcher.Tick(660.0))[1]
    assert isinstance(found, launcher.Journal) and "did not start a task within 360 s" in found.words


def test_the_first_launch_waits_too() -> None:
    state, actions = feed(fresh(), launcher.AttemptStarted(0.0), *away(0, 1, 400))
    assert started(actions) == [NODES]
    assert [o.what for o in actions if isinstance(o, launcher.Journal)] == ["waiting"]
    assert feed(state, launcher.Stepped(410.0, 0, 0))[0].progress.step == 0


@pytest.mark.parametrize("launch", [0, 2])
def test_of_another_launch_it_says_nothing(launch: int) -> None:
    state = killed(training(), 10.0)
    assert feed(state, launcher.SlurmAway(15.0, launch, WHY)) == (state, [])


def test_whose_tasks_have_been_seen_does_not_wait() -> None:
    state, _ = feed(training(), launcher.TasksSeen(7.0, 0))
    assert feed(state, launcher.SlurmAway(8.0, 0, WHY)) == (state, [])


def test_stop_request_meanwhile_ends_it() -> None:
    state, _ = feed(killed(training(), 10.0), *away(1, 15, 30))
    actions: list[Action] = feed(
        state,
        launcher.StopRequested(31.0, "SIGTERM"),
        launcher.RanksExited(31.1, 1, (), over=True, srun_code=1),
        launcher.Tick(40.0),
    )[1]
    (left,) = [o for o in actions if isinstance(o, launcher.FinishAttempt)]
    assert left.outcome.status == "stopped" and "SIGTERM" in left.outcome.why


def test_wait_is_reported_again_for_the_next_launch() -> None:
    state, _ = feed(
        killed(training(), 10.0), *away(1, 15, 30), launcher.TasksSeen(31.0, 1), launcher.Stepped(32.0, 1, 9)
    )
    state, _ = feed(state, launcher.CheckpointDurable(33.0, 9))
    state, actions = feed(killed(state, 40.0, (-9, None, None)), *away(2, 45, 50))
    assert [o.incident for o in actions if isinstance(o, launcher.Journal)] == ["l2"]


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        (f"srun: error: {WHY}\n", True),
        (
            "srun: error: Unable to confirm allocation for job 8: Unable to contact slurm controller (connect failure)",
            True,
        ),
        ("srun: error: Unable to create step for job 7: Unable to contact slurm controller (connect failure)", True),
        ("srun: error: Unable to confirm allocation for job 7: Invalid job id specified", False),
        ("srun: error: Unable to create step for job 7: Requested node configuration is not available", False),
        ("srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7", False),
        ("rank 0: Unable to contact slurm controller (connect failure)", False),
        ("srun: error: node2: task 1: Killed", False),
    ],
)
def test_sruns_words_for_it(line: str, waits: bool) -> None:
    assert bool(slurm_is_away(line)) is waits
