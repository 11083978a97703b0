"""A run that is only observed, on a real Slurm: the cluster's own records show that transom changed nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.core.operator.state import State
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.supervise.journal import fold

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
OBSERVE = ("--set", "run.mode=observe", "--set", "slurm.poll_held=2", "--set", "slurm.poll_max=3")
# What slurmctld's log says of a request that changes a job or a node.
CHANGES = ("_slurm_rpc_update_job", "_slurm_rpc_requeue", "_slurm_rpc_kill_job", "REQUEST_KILL_JOB", "update_node")


class Records:
    """What slurmctld has logged since `begin`, and the nodes' state."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.log = sandbox, sandbox.dir / "log" / "slurmctld.log"
        self.begin()

    def begin(self) -> None:
        self.start = self.log.stat().st_size

    def require_unchanged(self) -> None:
        """No update, requeue, cancel or signal of a job, and no drain."""
        with self.log.open("rb") as file:
            file.seek(self.start)
            lines = file.read().decode(errors="replace").splitlines()
        assert not [line for line in lines if any(one in line for one in CHANGES)]
        assert not [node for node in self.sandbox.nodes() if "drain" in node.state]


@pytest.fixture
def records(healed_sandbox: Sandbox) -> Records:
    return Records(healed_sandbox)


def sbatch(person: Person, sandbox: Sandbox, body: str, *flags: str) -> int:
    script = person.cwd / "plain.sbatch"
    script.write_text(f"#!/bin/bash\n{body}\n")
    done = sandbox.slurm("sbatch", "--parsable", f"--chdir={person.cwd}", "--job-name=plain", *flags, str(script))
    return int(done.strip())


def observe(person: Person, job_id: int, *words: str) -> RunDir:
    done = person.transom("observe", str(job_id), "--detach", *OBSERVE[2:], *words)
    assert done.returncode == 0, done.stderr
    return RunDir(person.root / done.stdout.strip())


def requeue(sandbox: Sandbox, job_id: int) -> None:
    """As its owner would, without Slurm's delay of two minutes."""
    sandbox.slurm("scontrol", "requeue", str(job_id))
    deadline = time.monotonic() + 60
    while "COMPLETING" in sandbox.slurm("squeue", "-h", "-j", str(job_id), "-O", "StateCompact:20,State:20"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(2)
    sandbox.slurm("scontrol", "update", f"jobid={job_id}", "StartTime=now")


def run_state(run: RunDir) -> State:
    return fold(run.journal).state


def with_an_action(view: dict[str, Any]) -> dict[str, Any]:
    """The first incident in which transom would have done something: on a busy machine, nodes may be silent besides."""
    found = [one for one in view["incidents"] if any(mark[1] == "withheld" for mark in one["marks"])]
    return found[-1]  # the newest one comes first


def withheld(*whats: str) -> Callable[[dict[str, object]], bool]:
    return lambda view: {one["what"] for one in view["withheld"]} >= set(whats)  # type: ignore[attr-defined]


def test_a_killed_rank_is_reported_and_its_job_is_left_to_slurm_and_its_owner(
    person: Person, sandbox: Sandbox, records: Records
) -> None:
    run = person.start("-N", "2", *OBSERVE, "--", *COMMAND, "--steps", "400")
    job_id = person.wait(run, at_step(10))["job_id"]
    records.begin()
    faults.kill_rank(sandbox, job_id, 1)
    view = person.wait(run, withheld("relaunch"))
    assert view["observed"] and view["starts"] == 0
    time.sleep(5)
    view = person.status(run)
    assert view["slurm_state"] == "RUNNING" and len(view["withheld"]) == 1, "the other rank waits for its peer"
    told = person.transom("explain", run.run_id).stdout
    assert "would have relaunched the ranks on the same nodes" in told
    assert "only observed" in person.transom("status", run.run_id).stdout
    assert "observed" in person.transom("list").stdout
    records.require_unchanged()
    refused = person.transom("requeue", run.run_id)
    assert refused.returncode == 1 and f"scontrol requeue {job_id}" in refused.stderr
    requeue(sandbox, job_id)
    view = person.wait(run, lambda view: view["starts"] == 1 and view["phase"] == "training", 120)
    assert [one["result"] for one in view["incidents"]] == ["recovered", "requeued by hand"]
    summary = json.loads(person.transom("observe", "--summary", "--json").stdout)
    (one,) = [one for one in summary["withheld"] if one["what"] != "update"]
    assert (one["what"], one["fate"]) == ("relaunch", "requeued by hand") and one["after"] >= 5
    ended = person.transom("stop", run.run_id)
    assert ended.returncode == 0 and "lives on" in ended.stderr
    assert "RUNNING" in sandbox.slurm("squeue", "-h", "-j", str(job_id), "-o", "%T")


def test_a_hang_is_reported_and_the_ranks_step_again(person: Person, sandbox: Sandbox, records: Records) -> None:
    run = person.start("-N", "2", *OBSERVE, "--set", "detect.floor=2", "--", *COMMAND, "--steps", "500")
    job_id = person.wait(run, at_step(15))["job_id"]
    records.begin()
    faults.stop_rank(sandbox, job_id, 1)
    view = person.wait(run, withheld("relaunch"))
    told = [m[2] for m in with_an_action(view)["marks"] if m[1] == "evidence"]
    assert any("rank 1 on node2, state T" in line for line in told), told
    time.sleep(4)
    faults.cont_rank(sandbox, job_id, 1)
    view = person.wait(run, lambda view: with_an_action(view)["result"] == "recovered")
    step = view["step"]
    person.wait(run, at_step(step + 5))
    assert len(person.status(run)["withheld"]) == 1
    records.require_unchanged()


def test_a_runs_dead_node_is_named_and_slurm_restarts_the_job(
    person: Person, sandbox: Sandbox, records: Records
) -> None:
    run = person.start("-N", "2", *OBSERVE, "--", *COMMAND, "--steps", "400")
    view = person.wait(run, at_step(15))
    (victim,) = [node for node in view["nodes"] if node != run_state(run).job.batch_host]
    records.begin()
    faults.kill_node(sandbox, victim)
    view = person.wait(run, withheld("requeue"), 120)
    isolated = [one for one in view["withheld"] if one["what"] in ("drain", "exclude")]
    assert [one["nodes"] for one in isolated] == [[victim]], view["withheld"]
    assert view["excluded"] == [] and view["starts"] == 0
    assert f"would have requeued the job without {victim}" in person.transom("explain", run.run_id).stdout
    records.require_unchanged()
    sandbox.slurm("scontrol", "update", f"nodename={victim}", "state=down", "reason=dead")  # not after SlurmdTimeout
    view = person.wait(run, lambda view: view["starts"] == 1 and view["phase"] == "training", 240)
    assert victim not in view["nodes"] and with_an_action(view)["result"] == "requeued by Slurm"


def test_a_plain_job_whose_node_dies_is_followed(person: Person, sandbox: Sandbox, records: Records) -> None:
    """Slurm requeues it by itself: transom says what it would have done, and the job shows no trace of transom."""
    job_id = sbatch(person, sandbox, "srun sleep 600", "--nodes=2", "--requeue", "--exclude=node4")
    run = observe(person, job_id)
    view = person.wait(run, lambda view: bool(view["nodes"]))
    victim = view["nodes"][-1]
    faults.kill_node(sandbox, victim)
    sandbox.slurm("scontrol", "update", f"nodename={victim}", "state=down", "reason=dead")  # not after SlurmdTimeout
    records.begin()
    view = person.wait(run, withheld("update"))
    assert view["observed"] and view["starts"] == 1 and view["excluded"] == []
    assert f"without {victim}" in view["withheld"][-1]["words"]
    records.require_unchanged()
    assert "transom" not in sandbox.slurm("scontrol", "show", "job", str(job_id)).replace(str(person.cwd), "")


def test_a_plain_job_that_fails_waits_for_its_owner(person: Person, sandbox: Sandbox, records: Records) -> None:
    body = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec sleep 600\nsleep 6; echo "NCCL error: unhandled"; exit 1'
    job_id = sbatch(person, sandbox, body, "--nodes=1", "--requeue")
    run = observe(person, job_id)
    view = person.wait(run, lambda view: view["phase"] == "held", 90)
    assert "the job ended: FAILED; transom would have requeued the job" in view["verdict"]
    records.require_unchanged()
    requeue(sandbox, job_id)
    view = person.wait(run, lambda view: view["starts"] == 1 and view["slurm_state"] == "RUNNING", 180)
    assert any(one["result"] == "requeued by hand" for one in view["incidents"])
    assert "1 requeued by hand" in person.transom("observe", "--summary").stdout
    sandbox.slurm("scancel", str(job_id))
    view = person.wait(run, over, 90)
    assert view["phase"] == "stopped"


def test_what_cannot_be_observed_is_refused(person: Person, sandbox: Sandbox) -> None:
    array = sbatch(person, sandbox, "sleep 300", "--array=0-1")
    assert "part of a job array" in person.transom("observe", str(array)).stderr
    run = person.start("-N", "1", "--", *COMMAND, "--steps", "400")
    own = person.wait(run, lambda view: bool(view["job_id"]))["job_id"]
    done = person.transom("observe", str(own))
    assert done.returncode == 2 and run.run_id in done.stderr
    assert person.transom("observe", "999999").returncode != 0
    assert person.transom("observe").returncode == 2
    sandbox.slurm("scancel", str(array))
