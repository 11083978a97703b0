"""slurmctld goes away and comes back, and what it knows of our job then: each case ends in the right state and words.

On a cluster of its own: what is lost, and changed, is its state. `docs/operations.md` has the same cases as a table.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import COMMAND, PATIENCE, Person, at_step, over
from slurm_support import release_home

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.supervise.lease import read_holder

pytestmark = pytest.mark.sandbox

LONG = 4 * PATIENCE  # a busy machine; an operator that looks at its job every half minute


@pytest.fixture(scope="module")
def sandbox(short_dir: Path) -> Iterator[Sandbox]:
    cluster = Sandbox.up(SandboxSpec(short_dir / "sb-away", home=release_home()))
    yield cluster
    cluster.down()


def begun(person: Person, steps: int = 400, *words: str) -> tuple[RunDir, int]:
    run = person.start("-N", "2", *words, "--", *COMMAND, "--steps", str(steps))
    return run, person.wait(run, at_step(12))["job_id"]


def restart(sandbox: Sandbox, *lost: str, conf: tuple[str, str] = ("", "")) -> None:
    """slurmctld dies, is away for a moment, and comes back without these of its state files, and with another conf."""
    faults.kill_controller(sandbox)
    for name in lost:
        for path in (sandbox.dir / "state").glob(f"{name}*"):
            path.unlink()
    if conf[0]:
        path = sandbox.dir / "slurm.conf"
        text = path.read_text()
        assert re.search(conf[0], text), text
        path.write_text(re.sub(conf[0], conf[1], text))
    time.sleep(3.0)
    faults.start_controller(sandbox)


def live_jobs(sandbox: Sandbox) -> list[str]:
    return sandbox.slurm("squeue", "-h", "-o", "%i").split()


def marks(view: dict[str, object]) -> str:
    return json.dumps(view["incidents"])


@pytest.mark.long
def test_run_continues_while_slurmctld_hangs_and_a_cancel_stops_it(person: Person, sandbox: Sandbox) -> None:
    run, job = begun(person, 2000, "--set", "slurm.poll_max=5")  # it would be asked after a minute and a half otherwise
    faults.stop_controller(sandbox)
    try:
        view = person.wait(run, lambda v: bool(v["slurm_lost"]), LONG)
        assert view["phase"] == "training" and view["incidents"] == []
        assert "Slurm has not answered for" in person.transom("status", run.run_id).stdout
        asked = subprocess.Popen(["scancel", str(job)], env={**os.environ, **sandbox.env()}, stderr=subprocess.DEVNULL)
        time.sleep(1.0)
    finally:
        faults.cont_controller(sandbox)
    asked.wait(60)
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["exit_code"], view["starts"]) == ("stopped", 130, 0)
    assert view["verdict"] == "the job was cancelled in Slurm (scancel)"


@pytest.mark.long  # slurmctld may refuse a step on these nodes for two minutes after its return
def test_a_rank_that_dies_meanwhile_is_relaunched_in_the_same_attempt_once_slurmctld_is_back(
    person: Person, sandbox: Sandbox
) -> None:
    run, job = begun(person, 80)
    faults.kill_controller(sandbox)
    try:
        faults.kill_rank(sandbox, job, 1)
        view = person.wait(run, lambda v: "waits for slurmctld" in marks(v), LONG)
        assert view["phase"] == "recovering"
    finally:
        faults.start_controller(sandbox)
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 80, 0, [])
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered" and "rank 1 on node2 killed by SIGKILL" in incident["message"]


@pytest.mark.long
def test_cancelled_and_forgotten_while_no_operator_lived_it_is_not_started_again(
    person: Person, sandbox: Sandbox
) -> None:
    """Nothing but the job's own log tells of the cancel; then slurmctld loses its jobs."""
    run, job = begun(person, 2000)
    holder = read_holder(run)
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    sandbox.slurm("scancel", str(job))
    outcome, deadline = run.attempt(job, 0).outcome, time.monotonic() + PATIENCE
    while not outcome.exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    restart(sandbox, "job_state")
    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["exit_code"], view["starts"]) == ("stopped", 130, 0)
    assert live_jobs(sandbox) == []


@pytest.mark.long
def test_forgotten_job_continues_in_a_successor(person: Person, sandbox: Sandbox) -> None:
    """As administrators are told to: numbers go on above those that were given."""
    run, job = begun(person, 150)
    restart(sandbox, "job_state", conf=(r"FirstJobId=\d+", f"FirstJobId={job + 1000}"))
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 150, 1, [])
    assert view["job_id"] >= job + 1000
    assert "Slurm no longer knows the job: slurmctld has lost it" in marks(view)


@pytest.mark.long
def test_reset_job_ids_end_the_run_with_instructions(person: Person, sandbox: Sandbox) -> None:
    restart(sandbox, conf=(r"FirstJobId=\d+", "FirstJobId=5000000"))
    run, job = begun(person, 2000)
    restart(sandbox, "job_state", conf=(r"FirstJobId=\d+", f"FirstJobId={max(1, job - 100)}"))
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["exit_code"]) == ("failed", 1)
    assert "Slurm's job ID counter was reset" in view["verdict"]
    assert "transom run --set checkpoint.directory=" in person.transom("status", run.run_id).stdout
    assert live_jobs(sandbox) == [], "what was submitted in its place was taken back"


@pytest.mark.long
def test_requeued_by_hand_after_it_the_run_follows(person: Person, sandbox: Sandbox) -> None:
    run, job = begun(person, 150)
    restart(sandbox)
    sandbox.slurm("scontrol", "requeue", str(job))
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 150, 1, [])
    assert "requeued the job without transom" in marks(view)


@pytest.mark.long
def test_held_by_an_administrator_after_it_the_run_waits_and_says_for_whom(person: Person, sandbox: Sandbox) -> None:
    run, job = begun(person, 150)
    restart(sandbox)
    sandbox.slurm("scontrol", "hold", str(job))
    sandbox.slurm("scontrol", "requeue", str(job))
    view = person.wait(run, lambda v: v["phase"] == "held", LONG)
    assert view["verdict"] == "an administrator holds the job in Slurm (JobHeldAdmin)"
    for look in ("status", "explain"):
        told = person.transom(look, run.run_id).stdout
        assert view["verdict"] in told and f"scontrol release {job}   # by an administrator" in told, told
    assert person.transom("status", "--exit-code", run.run_id).returncode == 21
    sandbox.slurm("scontrol", "release", str(job))
    sandbox.slurm("scontrol", "update", f"jobid={job}", "StartTime=now")
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 1, [])


@pytest.mark.long
def test_all_nodes_down_blames_none_and_the_run_continues_later(person: Person, sandbox: Sandbox) -> None:
    run, _ = begun(person, 150)
    restart(sandbox, "node_state")
    sandbox.slurm("scontrol", "update", "nodename=node[1-4]", "state=down", "reason=power")
    view = person.wait(run, lambda v: v["slurm_state"] == "PENDING", LONG)
    assert view["phase"] == "recovering" and view["excluded"] == []
    assert "node1, node2 not excluded: all of the job's nodes are down at once" in marks(view)
    sandbox.slurm("scontrol", "update", "nodename=node[1-4]", "state=resume")
    view = person.wait(run, over, LONG)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 150, 1, [])


@pytest.mark.long
def test_deleted_node_costs_one_restart(person: Person, sandbox: Sandbox) -> None:
    run, _ = begun(person, 150)
    kept = {path: path.read_text() for path in (sandbox.dir / "slurm.conf", sandbox.dir / "gres.conf")}
    first = re.search(r"Port=\[(\d+)-(\d+)\]", kept[sandbox.dir / "slurm.conf"])
    assert first is not None
    low, high = int(first[1]), int(first[2])
    gres = sandbox.dir / "gres.conf"
    try:
        faults.kill_controller(sandbox)
        faults.kill_node(sandbox, "node2")
        gres.write_text(kept[gres].replace("node[1-4]", "node[1,3-4]"))
        path = sandbox.dir / "slurm.conf"
        text = kept[path].replace("NodeName=node[1-4]", "NodeName=node[1,3-4]")
        path.write_text(text.replace(first[0], f"Port=[{low},{low + 2}-{high}]"))
        faults.start_controller(sandbox)
        view = person.wait(run, over, LONG)
    finally:
        for path, text in kept.items():
            path.write_text(text)
        faults.kill_controller(sandbox)
        faults.start_controller(sandbox)
    assert (view["phase"], view["step"]) == ("done", 150) and view["starts"] >= 1
    assert "node2" not in view["nodes"]
