"""An attempt that is left on purpose, or given back to Slurm by its launcher alone: real PyTorch where it must save."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.supervise.lease import read_holder

pytestmark = pytest.mark.sandbox

GPT = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "train.py"
TRAIN = (sys.executable, str(GPT), "--layers", "1", "--width", "32", "--batch", "2", "--every", "1000")


def outcome(run: RunDir, job_id: int, restart: int) -> dict[str, object]:
    return json.loads(run.attempt(job_id, restart).outcome.read_text())  # type: ignore[no-any-return]


def kill_operator(run: RunDir) -> None:
    holder = read_holder(run)
    assert holder is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGKILL)


def test_all_ranks_save_before_the_time_limit_and_the_run_continues(person: Person, sandbox: Sandbox) -> None:
    """The warning is sent by hand here; `make bench-limits` waits for real limits."""
    pytest.importorskip("torch")
    run = person.start("-N", "2", "--", *TRAIN, "--steps", "150", "--step-delay", "0.1")
    view = person.wait(run, at_step(20))
    sandbox.slurm("scancel", "--batch", "--signal=USR2", str(view["job_id"]))
    view = person.wait(run, lambda v: v["starts"] == 1 and v["step"] > 0)
    left = outcome(run, view["job_id"], 0)
    assert (left["status"], left["cause"]) == ("left", "time_limit")
    assert left["why"] == f"the time limit is near; step {left['durable']} is durable"
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["excluded"]) == ("done", 150, [])
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered" and "time limit" in incident["message"]
    log = (run.attempt(view["job_id"], 1).logs(0) / "rank-0.log").read_text()
    assert f"restored step-{left['durable']} " in log


@pytest.mark.long
def test_scancel_leaves_a_durable_state_and_is_a_stop(person: Person, sandbox: Sandbox) -> None:
    pytest.importorskip("torch")
    run = person.start("-N", "2", "--", *TRAIN, "--steps", "1000", "--step-delay", "0.1")
    view = person.wait(run, at_step(20))
    sandbox.slurm("scancel", str(view["job_id"]))
    view = person.wait(run, over)
    assert view["phase"] == "stopped"
    told = outcome(run, view["job_id"], 0)
    assert told["status"] == "stopped"
    assert told["why"] == f"stopped by SIGTERM; step {told['durable']} is durable"
    listed = person.transom("ckpt", "ls", "--json", run.run_id)
    assert f"step-{told['durable']}" in listed.stdout, listed.stderr


@pytest.mark.long
def test_a_requeue_by_somebody_else_loses_no_step(person: Person, sandbox: Sandbox) -> None:
    """As on preemption: TERM to all of the job, and KILL half a minute later."""
    pytest.importorskip("torch")
    run = person.start("-N", "2", "--", *TRAIN, "--steps", "120", "--step-delay", "0.1")
    view = person.wait(run, at_step(20))
    sandbox.slurm("scontrol", "requeue", str(view["job_id"]))
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 120, 1)
    told = outcome(run, view["job_id"], 0)
    assert told["why"] == f"stopped by SIGTERM; step {told['durable']} is durable"
    log = (run.attempt(view["job_id"], 1).logs(0) / "rank-0.log").read_text()
    assert f"restored step-{told['durable']} " in log


@pytest.mark.long
def test_without_an_operator_the_launcher_gives_the_job_back(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--set", "restart.relaunches=0", "--", *COMMAND, "--steps", "60")
    view = person.wait(run, at_step(10))
    job_id = view["job_id"]
    kill_operator(run)
    faults.kill_rank(sandbox, job_id, 1)

    def requeued(_: object) -> bool:
        return "Restarts=1" in sandbox.slurm("scontrol", "show", "job", str(job_id))

    person.wait(run, requeued)
    journal = run.attempt(job_id, 0).launcher_journal.read_text()
    assert '"how": "requeue"' in journal
    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, over, patience=180)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 60, 1), "not requeued twice"
    resumed = (run.attempt(job_id, 1).logs(0) / "rank-0.log").read_text()
    assert "goes on from step" in resumed and "from step 0" not in resumed


@pytest.mark.long
def test_a_time_limit_without_operator_warning_and_flush_is_no_end(person: Person, sandbox: Sandbox) -> None:
    """Slurm ends such a job for good: the launcher, told to end, asks why, and gives the job back."""
    run = person.start("-N", "2", "-t", "1", "--set", "job.signal_before=0", "--", *COMMAND, "--steps", "800")
    view = person.wait(run, at_step(10))
    job_id = view["job_id"]
    kill_operator(run)

    def requeued(_: object) -> bool:
        return "Restarts=1" in sandbox.slurm("scontrol", "show", "job", str(job_id))

    person.wait(run, requeued, patience=180)
    assert outcome(run, job_id, 0)["status"] == "stopped"
    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, over, patience=240)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 800, 1), "not requeued twice"


@pytest.mark.long
def test_without_an_operator_a_job_that_slurm_does_not_requeue_is_submitted_again(
    person: Person, sandbox: Sandbox
) -> None:
    run = person.start("-N", "2", "--set", "restart.relaunches=0", "--", *COMMAND, "--steps", "60")
    view = person.wait(run, at_step(10))
    job_id = view["job_id"]
    sandbox.slurm("scontrol", "update", f"jobid={job_id}", "Requeue=0")
    kill_operator(run)
    faults.kill_rank(sandbox, job_id, 1)

    def jobs() -> list[int]:
        lines = sandbox.slurm("squeue", "--states=all", "--noheader", "--format=%i %k").splitlines()
        return [int(line.split()[0]) for line in lines if line.split()[-1].startswith(f"transom:{run.run_id}")]

    person.wait(run, lambda _: len(jobs()) == 2)
    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, over, patience=180)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 60, 1), view
    assert sorted(jobs()) == [job_id, view["job_id"]], "one new job"
    resumed = (run.attempt(view["job_id"], 0).logs(0) / "rank-0.log").read_text()
    assert "goes on from step" in resumed and "from step 0" not in resumed


@pytest.mark.long
def test_without_an_operator_a_job_that_leads_nowhere_is_held_and_says_why(person: Person, sandbox: Sandbox) -> None:
    checkpoints = person.root / "checkpoints"  # with one in it, beyond which the attempt does not come
    (checkpoints / "step-0").mkdir(parents=True)
    (checkpoints / "step-0" / "manifest.json").write_text("{}")
    limits = ("restart.relaunches=0", "restart.max_without_progress=0", f"checkpoint.directory={checkpoints}")
    fault = ("--steps", "10", "--delay", "2", "--end", "SIGKILL", "--at", "4", "--rank", "1")
    run = person.start("-N", "2", *(word for x in limits for word in ("--set", x)), "--", *COMMAND, *fault)
    job_id = person.wait(run, at_step(1))["job_id"]
    kill_operator(run)
    view = person.wait(run, lambda v: v["phase"] == "held")
    why = outcome(run, job_id, 0)["why"]
    assert view["verdict"] == f"held by its launcher: {why}"
    comment = sandbox.slurm("squeue", "--noheader", f"--jobs={job_id}", "--format=%k")
    assert comment.strip() == f"transom:{run.run_id} held: {why}"
    for words in (("status", run.run_id), ("explain", run.run_id), ("list",)):
        assert str(why) in person.transom(*words).stdout

    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, lambda v: v["operator"] and v["restarts"] == 1)
    view = person.wait(run, lambda v: v["phase"] == "held")
    assert view["verdict"] == f"held by its launcher: {why}"
    assert "requeued the job without transom" not in str(view["incidents"])
    sandbox.slurm("scontrol", "release", str(job_id))
    sandbox.slurm("scontrol", "update", f"jobid={job_id}", "StartTime=now")
    view = person.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 1)
    comment = sandbox.slurm("squeue", "--states=all", "--noheader", f"--jobs={job_id}", "--format=%k")
    assert comment.strip() == f"transom:{run.run_id}", "its words are past"
