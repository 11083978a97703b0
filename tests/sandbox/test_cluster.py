"""The sandbox itself, on the real daemons."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from transom_cli.sandbox import belonging, faults, procs
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox


def client(sb: Sandbox, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env={**os.environ, **sb.env()}, capture_output=True, text=True, timeout=60)


def submit(sb: Sandbox, body: str, *options: str) -> int:
    done = subprocess.run(
        ["sbatch", "--parsable", "--output=/dev/null", *options],
        input=f"#!/bin/bash\n{body}\n", env={**os.environ, **sb.env()}, cwd="/tmp", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split(";")[0])


def wait_tasks(sb: Sandbox, job: int, count: int, comm: str = "sleep") -> None:
    deadline = time.monotonic() + 30
    while len([p for p in belonging.of_job(sb.cluster, job) if p.comm == comm]) < count:
        assert time.monotonic() < deadline, sb.slurm("squeue")
        time.sleep(0.1)


def test_tasks_run_on_every_node_with_gpus_counted(healed_sandbox: Sandbox) -> None:
    done = client(
        healed_sandbox, "srun", "-N4", "--gres=gpu:2", "bash", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    )
    assert sorted(done.stdout.splitlines()) == [f"node{i} 0,1" for i in range(1, 5)], done.stderr
    refused = client(healed_sandbox, "srun", "-N1", "--gres=gpu:3", "true")
    assert refused.returncode != 0 and "not available" in refused.stderr


def test_up_again_is_the_same_cluster(sandbox: Sandbox) -> None:
    before = sandbox.status().daemons
    again = Sandbox.up(sandbox.spec)
    assert again.status().daemons == before


def test_killed_node_says_nothing_to_slurm_and_comes_back(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun sleep 300", "-N3", "--ntasks-per-node=2", "--no-kill")
    wait_tasks(sb, job, 6)
    assert faults.kill_node(sb, "node2") >= 4  # slurmd, slurmstepd, two tasks
    assert belonging.on_node(sb.cluster, "node2") == []
    assert len([p for p in belonging.of_job(sb.cluster, job) if p.comm == "sleep"]) == 4
    daemon = {row.name: row.state for row in sb.status().daemons}
    assert daemon["node2"] == "dead" and daemon["node1"] == "running"
    assert {row.state for row in sb.nodes() if row.name == "node2"} == {"mixed"}  # Slurm has not noticed yet
    faults.restore_node(sb, "node2")
    assert {row.name: row.state for row in sb.status().daemons}["node2"] == "running"
    assert client(sb, "srun", "-w", "node2", "hostname").returncode == 0


def test_stopped_node_stands_still_until_continued(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun sleep 300", "-N2", "-w", "node1,node3")
    wait_tasks(sb, job, 2)
    assert faults.stop_node(sb, "node3") >= 3
    assert {p.state for p in belonging.on_node(sb.cluster, "node3")} == {"T"}
    assert "T" not in {p.state for p in belonging.on_node(sb.cluster, "node1")}
    faults.cont_node(sb, "node3")
    assert "T" not in {p.state for p in belonging.on_node(sb.cluster, "node3")}


def test_a_recycled_pid_is_not_ours() -> None:
    me = procs.read(os.getpid())
    assert me is not None and procs.alive(me.ident)
    assert not procs.alive(procs.Ident(me.pid, me.ident.start - 1))
    assert not procs.signal_one(procs.Ident(me.pid, me.ident.start - 1), 9)
