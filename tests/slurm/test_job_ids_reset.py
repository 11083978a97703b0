"""A slurmctld that has lost its state gives the numbers of its jobs again: nothing of another's is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from slurm_worlds import FakeWorld, restart_request, start, submission

from transom_cli.slurm.port import JobState, SlurmRefused
from transom_cli.slurm.requeue import RestartRequest, RestartResult, restart_job
from transom_cli.slurm.tags import is_other_runs

OURS = "transom:test"


@pytest.fixture
def lost(tmp_path: Path) -> tuple[FakeWorld, RestartRequest]:
    """Our job 5 was forgotten, and the next one to be submitted will be number 1."""
    world = FakeWorld(tmp_path)
    request = replace(restart_request(world, start(world)), job_id=5, tag=f"{OURS}:after-5.0")
    world.slurm.cancel(1)
    world.slurm.tick(5)
    world.slurm.forget(1)
    world.slurm._next_id = 1
    return world, request


def run(world: FakeWorld, request: RestartRequest) -> RestartResult:
    return restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock, patience=1.5)


def states(world: FakeWorld) -> list[JobState]:
    world.slurm.tick(300)
    return [job.state for job in world.slurm.jobs() if not job.state.ended]


def test_successor_with_a_lower_id_is_cancelled_with_a_reason(
    lost: tuple[FakeWorld, RestartRequest],
) -> None:
    world, request = lost
    for _ in range(2):  # also after a crash
        with pytest.raises(SlurmRefused, match="Slurm's job ID counter was reset") as found:
            run(world, request)
        assert "was to succeed job 5" in found.value.why
    assert states(world) == []


def test_a_successor_that_gets_the_very_number_is_not_taken_for_the_old_job(
    lost: tuple[FakeWorld, RestartRequest],
) -> None:
    world, request = lost
    world.slurm._next_id = 5
    with pytest.raises(SlurmRefused, match="ID counter was reset"):
        run(world, request)
    assert states(world) == []


def test_successor_left_held_by_a_crash_is_not_mistaken_for_the_old_job(
    lost: tuple[FakeWorld, RestartRequest],
) -> None:
    world, request = lost
    world.slurm._next_id = 5
    start_held = submission(world, f"--comment={request.tag}", "--hold", nodes=3)
    assert world.slurm.submit(start_held) == 5
    with pytest.raises(SlurmRefused, match="ID counter was reset"):
        run(world, request)
    assert states(world) == []


def test_foreign_job_with_our_id_is_left_alone_and_a_successor_continues(
    lost: tuple[FakeWorld, RestartRequest],
) -> None:
    world, request = lost
    world.slurm._next_id = 5
    theirs = start(world, "--comment=transom:another", nodes=1)
    assert theirs.job_id == 5
    result = run(world, request)
    assert (result.how, result.job_id > 5) == ("successor", True)
    world.slurm.tick(300)
    assert world.slurm.job(5).state is JobState.RUNNING and world.slurm.job(5).restarts == 0
    assert world.slurm.job(result.job_id).state is JobState.RUNNING


@pytest.mark.parametrize(
    ("comment", "theirs"),
    [
        ("", False),
        (OURS, False),
        (f"{OURS}:after-4.1", False),
        (f"{OURS} held: x", False),
        ("transom:tester", True),
        ("transom:another held: x", True),
        ("anything else", False),
    ],
)
def test_whose_a_job_is(comment: str, theirs: bool) -> None:
    assert is_other_runs(comment, OURS) is is_other_runs(comment, f"{OURS}:after-5.0") is theirs
