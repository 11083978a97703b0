"""A job hands on to a successor of its own: one of them, that starts once the job has ended, whatever is cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_worlds import FakeWorld, restart_request, start, submission

from transom_cli.slurm import tags
from transom_cli.slurm.port import Job, JobState, SlurmRefused, SlurmUnknown
from transom_cli.slurm.requeue import restart_job
from transom_cli.slurm.successor import resubmit_own_job

TAG = tags.successor_tag("transom:r1", "1.0")


@pytest.fixture
def world(tmp_path: Path) -> FakeWorld:
    made = FakeWorld(tmp_path)
    start(made, "--comment=transom:r1", "--no-requeue", "--exclude=n4")
    made.slurm.calls.clear()
    return made


def hand_on(world: FakeWorld) -> Job:
    return resubmit_own_job(world.slurm, submission(world), TAG, 1, 3)


def test_it_starts_once_the_old_job_has_ended_with_the_same_exclusions(world: FakeWorld) -> None:
    successor = hand_on(world)
    assert (successor.job_id, successor.held, successor.comment) == (2, True, TAG)
    world.slurm.release(2)
    world.slurm.tick(30)
    assert world.slurm.job(2).reason == "Dependency"
    world.slurm.cancel(1)
    world.slurm.tick(5)
    assert world.slurm.job(2).state is JobState.RUNNING and world.slurm.job(2).excluded == ("n4",)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", range(4))
def test_cut_off_anywhere_it_leads_to_one_successor(world: FakeWorld, call: int, after: bool) -> None:
    """The calls are jobs, job, submit, jobs."""
    world.slurm.fail_call(call, SlurmUnknown("no answer"), after=after)
    with pytest.raises(SlurmUnknown):
        hand_on(world)
    assert hand_on(world).job_id == 2
    assert len(world.slurm.jobs()) == 2


def test_a_job_that_a_person_cancels_has_no_successor(world: FakeWorld) -> None:
    world.slurm.cancel(1)
    with pytest.raises(SlurmRefused, match="was cancelled"):
        hand_on(world)


@pytest.mark.parametrize("released", [False, True])
def test_an_operator_takes_the_launchers_successor_over(world: FakeWorld, released: bool) -> None:
    hand_on(world)
    if released:
        world.slurm.release(2)
    request = restart_request(world, world.slurm.job(1), tag=TAG)
    result = restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock)
    assert (result.job_id, result.how) == (2, "successor")
    world.slurm.tick(5)
    assert [j.job_id for j in world.slurm.jobs() if not j.state.ended] == [2]
    assert world.slurm.job(2).state is JobState.RUNNING


def test_concurrent_submissions_keep_the_same_successor(world: FakeWorld) -> None:
    """The operator looks for a successor, sees none, and submits just after the launcher has."""
    world.slurm.submit(submission(world, f"--comment={TAG}", "--hold"))
    operators = world.slurm.submit(submission(world, f"--comment={TAG}", "--hold"))
    assert hand_on(world).job_id == 2
    assert world.slurm.job(operators).state is JobState.CANCELLED
    request = restart_request(world, world.slurm.job(1), tag=TAG)
    assert restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock).job_id == 2


def test_the_tags_of_a_run() -> None:
    tag = tags.run_tag("a-1")
    assert tags.of_run(tag, tag) and tags.of_run(f"{tag}:after-7.0 held: x", tag)
    assert not tags.of_run("transom:a-12", tag) and not tags.of_run(f"see {tag}", tag) and not tags.of_run("", tag)
    second = tags.successor_tag(tag, "7.1")
    assert tags.replaces_job(f"{second} held: x", tag, 7) and not tags.replaces_job(second, tag, 71)
    assert not tags.replaces_job(second, tag, 1) and not tags.replaces_job(tag, tag, 7)


def test_hold_reason_is_one_short_line_after_the_tag() -> None:
    tag = tags.run_tag("a-1")
    found = tags.held_comment(f"{tag}:after-7.0 held: before", tag, "rank 1:\n\x1b[31mcode=3\x1f  Comment=x")
    assert found == f"{tag}:after-7.0 held: rank 1: [31mcode:3 Comment:x"
    assert tags.has_hold_reason(found) and not tags.has_hold_reason(tag) and tags.tag_of(found) == f"{tag}:after-7.0"
    assert tags.held_comment("a person's own", tag, "x") == f"{tag} held: x"
    long = tags.held_comment(tag, tag, "y" * 1000)
    assert len(long) < 250 and long.endswith("...")
