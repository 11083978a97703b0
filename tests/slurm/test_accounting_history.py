"""Accounting: the starts of a requeued job and how they ended, from a real slurmdbd and from the fake alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_support import release_home, require_slurm
from slurm_worlds import FakeWorld, RealWorld, World, restart_request, running, start, wait_for

from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.slurm.port import JobState, SlurmUnknown, Start
from transom_cli.slurm.requeue import restart_job


def test_the_fake_keeps_accounts_alike(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    world.slurm.accounting = True
    every_start_is_told(world)


@pytest.mark.long
@pytest.mark.sandbox
def test_a_requeued_job_has_two_starts(short_dir: Path) -> None:
    require_slurm(accounting=True)
    sandbox = Sandbox.up(SandboxSpec(short_dir / "h", accounting=True, home=release_home()))
    try:
        world = RealWorld(sandbox, short_dir, (), short_dir)
        assert every_start_is_told(world).by == os.geteuid()
    finally:
        sandbox.down()


def every_start_is_told(world: World) -> Start:
    """The last one, which was cancelled."""
    with pytest.raises(SlurmUnknown, match=r"Accounting has .* \(yet\)"):
        world.slurm.history(424242)
    job = start(world, f"--exclude={world.nodes[3]}")
    request = restart_request(world, job, exclude=(job.nodes[2],), drop=(world.nodes[3],))
    restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock)
    second = wait_for(world, job.job_id, running)
    first, again = told(world, lambda starts: starts[-1].state is JobState.RUNNING, job.job_id)
    assert (first.state, first.nodes, again.nodes) == (JobState.PENDING, job.nodes, second.nodes)
    assert first.began is not None and first.ended is not None and again.began is not None
    assert first.began <= first.ended <= again.began and again.ended is None
    waits = world.slurm.submit(request.submission)  # for nodes
    world.slurm.cancel(waits)
    (never,) = told(world, lambda starts: starts[-1].ended is not None, waits)
    assert (never.state, never.nodes, never.began) == (JobState.CANCELLED, (), None)
    world.slurm.cancel(job.job_id)
    both = told(world, lambda starts: starts[-1].ended is not None, waits, job.job_id)
    assert [one.state for one in both if one.job_id == waits] == [JobState.CANCELLED]
    *_, last = [one for one in both if one.job_id == job.job_id]
    assert (last.state, last.began) == (JobState.CANCELLED, again.began)
    return last


def told(world: World, ready: Callable[[list[Start]], bool], *job_ids: int) -> list[Start]:
    """The starts, once `ready` holds for those of the last job: accounting learns of a job seconds late, or not yet."""
    starts: list[Start] = []
    for _ in range(150):
        with contextlib.suppress(SlurmUnknown):
            starts = world.slurm.history(*job_ids)
        if {one.job_id for one in starts} == set(job_ids) and ready([x for x in starts if x.job_id == job_ids[-1]]):
            return starts
        world.sleep(0.2)
    raise AssertionError(f"it did not come; last told: {starts}")
