"""Faults of an agent and of the launcher hit these processes and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_support import sleepers, submit, wait_sleepers

from transom_cli.errors import UsageError
from transom_cli.sandbox import fault_processes, faults, processes
from transom_cli.sandbox.cluster import Sandbox, wait_until

pytestmark = pytest.mark.sandbox

JOB = """\
TRANSOM_ROLE=agent srun --overlap --no-kill --kill-on-bad-exit=0 --nodes=2 --ntasks=2 bash -c 'sleep 300; true' &
TRANSOM_ROLE=rank srun --overlap --nodes=2 --ntasks=2 sleep 300 &
sleep 301
"""


def states(sb: Sandbox, job: int) -> dict[str, set[str]]:
    """Of the job's agents by node, of its launcher, and of all else."""
    found: dict[str, set[str]] = {}
    launcher = fault_processes.find_launcher(sb, job).pid
    for proc in processes.of_job(sb.cluster, job):
        role = proc.environ.get("TRANSOM_ROLE") if "SLURM_STEP_ID" in proc.environ else ""
        name = f"agent {proc.environ['SLURMD_NODENAME']}" if role == "agent" else "rest"
        found.setdefault("launcher" if proc.pid == launcher else name, set()).add(proc.state)
    return found


def test_an_agent_stops_and_dies_alone(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, JOB, "-N2")
    wait_sleepers(sb, job, 5)
    faults.stop_agent(sb, job, "node2")
    seen = states(sb, job)
    assert seen["agent node2"] == {"T"} and "T" not in seen["agent node1"] | seen["launcher"] | seen["rest"]
    assert [fault.undo for fault in faults.active(sb)] == [f"cont-agent --job {job} node2"]
    faults.cont_agent(sb, job, "node2")
    assert faults.active(sb) == []
    family = fault_processes.find_agent(sb, job, "node2")
    assert [proc.comm for proc in family] == ["bash", "sleep"]
    assert faults.kill_agent(sb, job, "node2") == family[0].pid
    assert not any(processes.alive(proc.ident) for proc in family)
    assert len(sleepers(sb, job)) == 4
    with pytest.raises(UsageError, match="no running agent on 'node2'") as missing:
        faults.kill_agent(sb, job, "node2")
    assert missing.value.why == "nodes with one: node1"


def test_the_launcher_stops_and_dies_alone(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, JOB, "-N2")
    wait_sleepers(sb, job, 5)
    pid = faults.stop_launcher(sb, job)
    seen = states(sb, job)
    assert seen.pop("launcher") == {"T"} and not any("T" in found for found in seen.values())
    assert [fault.undo for fault in faults.active(sb)] == [f"cont-launcher --job {job}"]
    assert faults.cont_launcher(sb, job) == pid
    assert faults.active(sb) == []
    launcher = fault_processes.find_launcher(sb, job)
    sruns = [proc for proc in processes.of_job(sb.cluster, job) if proc.comm == "srun"]
    assert faults.kill_launcher(sb, job) == launcher.pid
    assert wait_until(lambda: not processes.alive(launcher.ident), 10.0) and sruns
    with pytest.raises(UsageError, match="no running batch script"):
        faults.kill_launcher(sb, job)


def test_a_launcher_in_a_users_script_is_hit_and_not_their_shell(healed_sandbox: Sandbox, tmp_path: Path) -> None:
    sb = healed_sandbox
    program = tmp_path / "transom"
    program.write_text("#!/bin/sh\nsleep 300; true\n")
    program.chmod(0o755)
    job = submit(sb, f"( while sleep 60; do true; done ) &\n{program} launch -- python train.py\nsleep 302\n", "-N1")
    wait_sleepers(sb, job, 2)
    launcher = fault_processes.find_launcher(sb, job)
    assert processes.command_of(launcher)[1:] == [str(program), "launch", "--", "python", "train.py"]
    assert faults.kill_launcher(sb, job) == launcher.pid
    next_line = ["sleep", "302"]
    assert wait_until(lambda: next_line in map(processes.command_of, processes.of_job(sb.cluster, job)), 10.0)
