"""`--operator job`: the operator as a Slurm job, which hands the run to another one before its time limit."""

from __future__ import annotations

import time

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.sandbox.cluster import Sandbox
from transom_cli.submit.render import operator_tag
from transom_cli.supervise.lease import read_holder

pytestmark = pytest.mark.sandbox


def operators(sandbox: Sandbox, tag: str) -> dict[str, str]:
    """State of each of the run's operator jobs."""
    rows = (row.split("|") for row in sandbox.slurm("squeue", "-h", "--states=all", "-o", "%A|%T|%k").splitlines())
    return {job: state for job, state, comment in rows if comment == tag}


@pytest.mark.long
def test_the_operator_is_a_job_that_another_one_follows(person: Person, sandbox: Sandbox) -> None:
    run = person.start("--operator", "job", "-N", "2", "--", *COMMAND, "--steps", "80")
    tag = operator_tag(run.run_id)
    view = person.wait(run, at_step(5))
    (first,) = operators(sandbox, tag)
    assert view["operator"] and str(view["job_id"]) != first
    before = read_holder(run)
    assert person.transom("attach", "--detach", run.run_id).returncode == 0
    assert list(operators(sandbox, tag)) == [first], "one lives"
    sandbox.slurm("scancel", "--batch", "--signal=USR1", first)
    deadline = time.monotonic() + 60
    while (holder := read_holder(run)) is None or before is None or holder.epoch <= before.epoch:
        assert time.monotonic() < deadline, run.operator_log.read_text()
        time.sleep(0.3)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"], view["incidents"]) == ("done", 80, 0, [])
    deadline = time.monotonic() + 30
    while set(operators(sandbox, tag).values()) != {"COMPLETED"}:
        assert time.monotonic() < deadline, operators(sandbox, tag)
        time.sleep(0.3)
    assert len(operators(sandbox, tag)) == 2


def test_operator_job_without_a_free_core_waits_and_is_cancelled_with_the_run(person: Person, sandbox: Sandbox) -> None:
    """While its job is pending nobody says that the operator is gone; stopping the run takes it out of the queue."""
    sandbox.slurm("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    run = person.start("--operator", "job", "-N", "1", "--", *COMMAND, "--steps", "5")
    told = person.transom("status", run.run_id)
    job = run.operator_job.read_text().strip()
    assert f"job {job} PENDING" in told.stdout and "will become the operator" in told.stdout, told
    assert f"--start -j {job}" in told.stdout and "transom attach" not in told.stdout
    stopped = person.transom("stop", run.run_id)
    assert stopped.returncode == 0 and f"job {job}, was still pending" in stopped.stderr, stopped
    assert operators(sandbox, operator_tag(run.run_id)) == {job: "CANCELLED"}


def test_refused_operator_job_fails_the_new_run(person: Person, sandbox: Sandbox) -> None:
    refused = person.transom("run", "--operator", "job", "--set", "operator.partition=nope", "-N", "1", "--", *COMMAND)
    assert refused.returncode == 1 and "operator.partition" in refused.stderr, refused
    view = person.status(person.newest())
    assert view["phase"] == "failed" and "Invalid partition" in view["verdict"]
