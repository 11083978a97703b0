"""A site whose job_submit plugin rewrites every job's comment, which carries a run's tag, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over
from slurm_support import release_home, require_slurm

from transom_cli.sandbox.cluster import Sandbox, SandboxSpec, wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
PLUGIN = """
function slurm_job_submit(job, partitions, uid)
   job.comment = "project:physics"
   return slurm.SUCCESS
end
function slurm_job_modify(job, known, partitions, uid)
   return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def sandbox(short_dir: Path) -> Iterator[Sandbox]:
    require_slurm()
    cluster = Sandbox.up(SandboxSpec(short_dir / "lua", 4, 0, home=release_home()))
    try:
        (cluster.dir / "job_submit.lua").write_text(PLUGIN)
        conf = cluster.dir / "slurm.conf"
        conf.write_text(f"{conf.read_text()}JobSubmitPlugins=lua\n")
        cluster.slurm("scontrol", "reconfigure")
        (cluster.dir / "true.sh").write_text("#!/bin/sh\n")
        job = cluster.slurm("sbatch", "--parsable", "--output=/dev/null", str(cluster.dir / "true.sh")).strip()
        if "project:physics" not in cluster.slurm("scontrol", "show", "job", job):
            pytest.skip("this Slurm has no job_submit/lua")
        yield cluster
    finally:
        cluster.down()


def jobs_of(sandbox: Sandbox, name: str) -> list[str]:
    """Number and state of all jobs that Slurm still knows by this name."""
    told = sandbox.slurm("squeue", "--states=all", "--noheader", f"--name={name}", "--Format=JobID:20,State:20")
    return [" ".join(line.split()) for line in told.splitlines()]


def states_of(sandbox: Sandbox, name: str) -> list[str]:
    return [line.split()[1] for line in jobs_of(sandbox, name)]


def test_run_is_submitted_once_and_trains_to_its_end(person: Person, sandbox: Sandbox) -> None:
    run = person.start("--name", "once", "-N", "2", "--", *COMMAND, "--steps", "20")
    try:
        assert person.wait(run, over, 40.0)["phase"] == "done"
    finally:
        print(jobs_of(sandbox, "once"))
        sandbox.slurm("scancel", "--name=once")
    assert len(jobs_of(sandbox, "once")) == 1


def test_new_job_takes_the_place_of_a_failed_one_and_stop_leaves_none(person: Person, sandbox: Sandbox) -> None:
    again = ("--set", "restart.how=resubmit", "--set", "restart.relaunches=0", "--set", "restart.backoff=1")
    asked = ("--name", "again", "-N", "2", *again, "--", *COMMAND, "--steps", "3000", "--at", "20", "--end", "SIGKILL")
    run = person.start(*asked)
    try:
        person.wait(run, at_step(5), 40.0)
        first = person.status(run)["job_id"]
        person.wait(run, lambda view: view["job_id"] > first and view["phase"] == "training")
        stopped = person.transom("stop", run.run_id)
        assert stopped.returncode == 0, stopped.stderr
        assert wait_until(lambda: not {"PENDING", "RUNNING"} & set(states_of(sandbox, "again")), 40.0)
        assert len(jobs_of(sandbox, "again")) == person.status(run)["starts"] + 1
    finally:
        sandbox.slurm("scancel", "--name=again")


def test_stop_ends_a_run_that_somebody_holds(person: Person, sandbox: Sandbox) -> None:
    run = person.start("--name", "held", "-N", "2", "--set", 'job.sbatch=["--begin=now+1hour"]', "--", *COMMAND)
    try:
        job = person.wait(run, lambda view: bool(view["job_id"]), 20.0)["job_id"]
        sandbox.slurm("scontrol", "hold", str(job))
        person.wait(run, lambda view: view["phase"] == "held")
        stopped = person.transom("stop", run.run_id)
        assert stopped.returncode == 0, stopped.stderr
        assert states_of(sandbox, "held") == ["CANCELLED"]
    finally:
        sandbox.slurm("scancel", "--name=held")
