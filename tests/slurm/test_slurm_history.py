"""Accounting, on a real slurmdbd: the starts of a requeued job."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_support import release_home, require_slurm
from slurm_worlds import RealWorld, restart_request, running, start, wait_for

from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.slurm.port import JobState, SlurmUnknown
from transom_cli.slurm.restart import restart_job


@pytest.mark.sandbox
def test_a_requeued_job_has_two_starts(short_dir: Path) -> None:
    require_slurm(accounting=True)
    sandbox = Sandbox.up(SandboxSpec(short_dir / "h", accounting=True, home=release_home()))
    try:
        world = RealWorld(sandbox, short_dir, (), short_dir)
        with pytest.raises(SlurmUnknown, match="no job 424242"):
            world.slurm.history(424242)
        job = start(world, f"--exclude={world.nodes[3]}")
        request = restart_request(world, job, exclude=(job.nodes[2],), drop=(world.nodes[3],))
        restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock)
        second = wait_for(world, job.job_id, running)
        states: list[JobState] = []
        for _ in range(150):  # accounting hears of it within seconds
            starts = world.slurm.history(job.job_id)
            states = [told.state for told in starts]
            if states == [JobState.PENDING, JobState.RUNNING]:
                break
            world.sleep(0.2)
        assert states == [JobState.PENDING, JobState.RUNNING]
        assert [told.nodes for told in starts] == [job.nodes, second.nodes]
    finally:
        sandbox.down()
