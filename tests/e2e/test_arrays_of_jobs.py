"""A job array of a user's own script on a real Slurm: a run for each element, and a restart of one of them alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from e2e.support import Person, over

from transom_cli.layout import RunDir
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import Job, JobState, Submission
from transom_cli.slurm.requeue import RestartRequest, restart_job

pytestmark = pytest.mark.sandbox

SCRIPT = """\
#!/bin/bash
#SBATCH --array=1-2
#SBATCH --nodes=1
#SBATCH --mem=100
#SBATCH --output=/dev/null
echo "element $SLURM_ARRAY_TASK_ID start ${{SLURM_RESTART_COUNT:-0}}" >> {told}
sleep {seconds}
"""


@pytest.mark.long
def test_each_element_is_a_run(person: Person, tmp_path: Path) -> None:
    (person.cwd / "sweep.sbatch").write_text(SCRIPT.format(told=tmp_path / "told", seconds=3))
    done = person.transom("run", "sweep.sbatch")
    assert done.returncode == 0, done.stderr
    runs = [RunDir(person.root / name) for name in done.stdout.split()]
    assert [run.run_id.startswith(f"sweep-{i}-") for i, run in enumerate(runs, start=1)] == [True, True]
    views = [person.wait(run, over) for run in runs]
    assert [(view["phase"], view["starts"]) for view in views] == [("done", 0), ("done", 0)]
    assert len({view["job_id"] for view in views}) == 2
    assert sorted((tmp_path / "told").read_text().splitlines()) == ["element 1 start 0", "element 2 start 0"]


@pytest.mark.long
def test_an_element_is_restarted_alone(sandbox: Sandbox, slurm_env: dict[str, str], tmp_path: Path) -> None:
    script, told, slurm = tmp_path / "sweep.sbatch", tmp_path / "told", CliSlurm()
    script.write_text(SCRIPT.format(told=told, seconds=120))
    options = [("--requeue", f"--array={i}", f"--comment=transom:array:{i}") for i in (1, 2)]
    other, job = (running(slurm, slurm.submit(Submission(script, o))) for o in options)
    request = RestartRequest(
        job.job_id, 0, job.nodes, (), 1, f"transom:array:2:after-{job.job_id}.0", Submission(script, options[1])
    )
    result = restart_job(slurm, request, sleep=time.sleep, clock=time.monotonic)
    assert (result.job_id, result.restarts, result.how) == (job.job_id, 1, "requeued")
    again = running(slurm, job.job_id)
    assert again.nodes and not set(again.nodes) & set(job.nodes) and again.excluded == job.nodes
    assert (slurm.job(other.job_id).state, slurm.job(other.job_id).restarts) == (JobState.RUNNING, 0)
    slurm.cancel(job.job_id)
    assert slurm.job(other.job_id).state is JobState.RUNNING
    slurm.cancel(other.job_id)
    wrote = sorted(told.read_text().splitlines())
    assert wrote == ["element 1 start 0", "element 2 start 0", "element 2 start 1"]


def running(slurm: CliSlurm, job_id: int) -> Job:
    deadline = time.monotonic() + 40
    while (job := slurm.job(job_id)).state is not JobState.RUNNING or job.completing:
        assert time.monotonic() < deadline, job
        time.sleep(0.2)
    time.sleep(1.0)  # its script has begun
    return job
