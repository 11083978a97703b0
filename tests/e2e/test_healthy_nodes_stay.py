"""A node that only looks dead is not drained: the login node cannot reach it, or Slurm has suspended the job."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox

FAILS_ONCE = """#!/bin/bash
#SBATCH -N {nodes} --ntasks-per-node=1
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 1; exit 3; fi
exit 0
"""


@pytest.fixture
def firewalled(person: Person, sandbox: Sandbox, tmp_path: Path) -> Person:
    """On the login node no slurmd can be reached, by the operator or by its srun. Inside the job all is well.

    As a firewall that refuses, but made of wrong ports: what answers there is the kernel's refusal.
    """
    conf = tmp_path / "slurm.conf"
    text = (sandbox.dir / "slurm.conf").read_text()
    port = text.split("NodeAddr=127.0.0.1 Port=")[1].split()[0]
    conf.write_text(text.replace(f" Port={port} ", " Port=[1-4] "))
    for other in ("gres.conf", "cgroup.conf"):
        shutil.copy(sandbox.dir / other, tmp_path / other)
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    inside = "inside $PPID"
    walk = (
        'inside() { local p=$1; while [ "$p" -gt 1 ]; do [ "$(cat /proc/$p/comm)" = slurmstepd ] && return 0; '
        "p=$(awk '/^PPid/{print $2}' /proc/$p/status); done; return 1; }"
    )
    scontrol, srun = shutil.which("scontrol"), shutil.which("srun")
    (bin_dir / "scontrol").write_text(
        f'#!/bin/bash\n{walk}\nif {inside}; then exec {scontrol} "$@"; fi\n'
        f"set -o pipefail\n{scontrol} \"$@\" | sed -E 's/ Port=[0-9]+/ Port=1/'\n"
    )
    (bin_dir / "srun").write_text(
        f'#!/bin/bash\n{walk}\nif ! {inside}; then export SLURM_CONF={conf}; fi\nexec {srun} "$@"\n'
    )
    for name in ("scontrol", "srun"):
        (bin_dir / name).chmod(0o755)
    person.env["PATH"] = f"{bin_dir}{os.pathsep}{person.env.get('PATH', os.environ['PATH'])}"
    return person


def drained(sandbox: Sandbox) -> list[str]:
    return [node.name for node in sandbox.nodes() if node.state.startswith("drain")]


@pytest.mark.long
@pytest.mark.parametrize("nodes", [pytest.param("2", marks=pytest.mark.long), "3"])
def test_nodes_that_only_the_login_node_cannot_reach_are_not_drained(
    firewalled: Person, sandbox: Sandbox, tmp_path: Path, nodes: str
) -> None:
    script = tmp_path / "fails_once.sbatch"
    script.write_text(FAILS_ONCE.replace("{nodes}", nodes))
    run = firewalled.start(str(script))
    view = firewalled.wait(run, over)
    assert drained(sandbox) == [] and view["excluded"] == [], view["incidents"]
    assert (view["phase"], view["starts"]) == ("done", 1), view["verdict"]


@pytest.mark.long
def test_a_node_that_dies_behind_a_firewall_is_replaced(firewalled: Person, sandbox: Sandbox) -> None:
    run = firewalled.start("-N", "2", "--spares", "1", "--", *COMMAND, "--steps", "80")
    firewalled.wait(run, at_step(12))
    faults.kill_node(sandbox, "node2")
    view = firewalled.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 80, 0), view["verdict"]
    assert drained(sandbox) == [], "nobody but the batch host has seen it dead"


@pytest.mark.long
def test_job_suspended_by_slurm_isolates_no_node(person: Person, sandbox: Sandbox) -> None:
    asked = ("-N", "2", "--set", "detect.node_silent=3")
    run = person.start(*asked, "--", *COMMAND, "--steps", "120")
    job_id = person.wait(run, at_step(10))["job_id"]
    sandbox.slurm("scontrol", "suspend", str(job_id))
    try:
        time.sleep(25.0)
        assert drained(sandbox) == []
        assert "SUSPENDED" in sandbox.slurm("squeue", "-h", "-j", str(job_id), "-o", "%T"), "it is not replaced"
        assert person.status(run)["slurm_state"] == "SUSPENDED"
        assert "Slurm has suspended the job" in person.transom("status", run.run_id).stdout
    finally:
        sandbox.slurm("scontrol", "resume", str(job_id))
    assert drained(sandbox) == []
    view = person.wait(run, over)
    assert drained(sandbox) == [] and view["excluded"] == []
    assert (view["phase"], view["step"], view["starts"], view["job_id"]) == ("done", 120, 0, job_id), view["verdict"]
    attempt = run.attempt(job_id, 0)
    records = [json.loads(line) for line in attempt.launcher_journal.read_text().splitlines()]
    assert [r["launch"] for r in records if r["type"] == "launch"] == [0], "no rank was started again"
    assert not [r for r in records if r["type"] == "agent"], f"nor an agent: {records}"
