"""Bad nodes on a real Slurm: found before a rank runs there, or while it trains, swapped or left, drained and listed.

The GPUs are a stub of NVIDIA's library, by node; the kernel's log is a file of each node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nvml_stub
import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.layout import RunDir
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox
NODES = ("node1", "node2", "node3", "node4")
XID = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Hardware:
    """What the nodes' GPUs and kernels tell."""

    def __init__(self, folder: Path) -> None:
        self.states, self.logs = folder / "gpus", folder / "kernel"
        self.logs.mkdir()
        self.env = nvml_stub.environment(nvml_stub.build(folder / "lib"), self.states)
        self.env["TRANSOM_KERNEL_LOG"] = str(self.logs)
        for node in NODES:
            nvml_stub.write(self.states, node, nvml_stub.healthy(2, node))
            (self.logs / node).touch()

    def breaks(self, node: str, fault: str) -> None:
        nvml_stub.write(self.states, node, nvml_stub.with_fault(nvml_stub.healthy(2, node), fault, gpu=1))

    def logs_a_line(self, node: str, line: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        with (self.logs / node).open("a") as log:
            log.write(f"{stamp} {line}\n")


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    return Hardware(tmp_path)


@pytest.fixture
def owner(person: Person, hardware: Hardware) -> Person:
    return replace(person, env={**person.env, **hardware.env})


def records(run: RunDir, job_id: int, restart: int = 0, kind: str = "launch") -> list[dict[str, Any]]:
    lines = run.attempt(job_id, restart).launcher_journal.read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["type"] == kind]


def drained(sandbox: Sandbox, node: str, by: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + 30
    while not by(said := sandbox.slurm("sinfo", "-h", "-n", node, "-o", "%T %E")):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    return said


def test_a_bad_gpu_is_found_before_a_rank_runs_there_and_a_spare_carries_them(
    owner: Person, hardware: Hardware, sandbox: Sandbox
) -> None:
    hardware.breaks("node2", "row_remap_failed")
    run = owner.start("-N", "2", "--spares", "1", "--gpus-per-node", "2", "--tasks-per-node", "1", "--", *COMMAND)
    view = owner.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 0), "no restart"
    (launch,) = records(run, view["job_id"])
    assert (launch["nodes"], launch["idle"]) == (["node1", "node3"], ["node2"])
    kept = json.loads((run.attempt(view["job_id"], 0).health / "preflight.json").read_text())
    assert kept["worst"] == "fail" and kept["nodes"] == ["node1", "node2", "node3"]
    (bad,) = [f for f in kept["findings"] if f["verdict"] == "fail"]
    assert (bad["check"], bad["node"]) == ("gpu_rows", "node2") and bad["device"].startswith("GPU-")
    said = drained(sandbox, "node2", lambda words: "transom: gpu_rows:" in words)
    assert run.run_id in said and "drain" in said
    listed = json.loads(owner.transom("nodes", "--json").stdout)
    (node,) = [n for n in listed["nodes"] if n["node"] == "node2"]
    assert "gpu_rows" in json.dumps(node) and bad["device"] in json.dumps(node)


@pytest.mark.long
def test_without_a_spare_the_next_attempt_uses_no_restart_budget(
    owner: Person, hardware: Hardware, sandbox: Sandbox
) -> None:
    hardware.breaks("node1", "row_remap_failed")
    words = ("-N", "2", "--gpus-per-node", "2", "--tasks-per-node", "1", "--set", "restart.max_without_progress=0")
    run = owner.start(*words, "--", *COMMAND)
    view = owner.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 1), view
    outcome = json.loads(run.attempt(view["job_id"], 0).outcome.read_text())
    assert (outcome["status"], outcome["cause"]) == ("left", "preflight")
    assert records(run, view["job_id"]) == [] and len(records(run, view["job_id"], 1)) == 1
    drained(sandbox, "node1", lambda said: "transom: gpu_rows:" in said)
    story = owner.transom("explain", run.run_id).stdout
    assert "gpu_rows" in story and "node1" in story


def test_what_the_kernel_logs_of_a_gpu_ends_the_launch_at_once_and_the_spare_takes_over(
    owner: Person, hardware: Hardware, sandbox: Sandbox
) -> None:
    words = ("-N", "2", "--spares", "1", "--gpus-per-node", "2", "--tasks-per-node", "1")
    run = owner.start(*words, "--", *COMMAND, "--steps", "200")
    view = owner.wait(run, at_step(10))
    job_id = view["job_id"]
    owner.wait(run, lambda _: bool(records(run, job_id, kind="spare")))
    hardware.logs_a_line("node2", XID)
    view = owner.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 200, 0)
    assert [r["nodes"] for r in records(run, job_id)] == [["node1", "node2"], ["node1", "node3"]]
    heal = records(run, job_id, kind="recovery")
    seen = next(r for r in heal if r["what"] == "seen")
    assert "node2: gpu_xid: " in seen["words"] and "Xid (PCI:0000:18:00): 79" in seen["words"]
    said = drained(sandbox, "node2", lambda words: "transom: gpu_xid:" in words)
    assert run.run_id in said


@pytest.mark.long
def test_other_owners_drain_reason_stays_on_a_bad_node(owner: Person, hardware: Hardware, sandbox: Sandbox) -> None:
    run = owner.start("-N", "2", "--spares", "1", "--gpus-per-node", "2", "--tasks-per-node", "1",
                      "--set", "restart.leave_drained=false", "--", *COMMAND, "--steps", "150")  # fmt: skip
    job_id = owner.wait(run, at_step(10))["job_id"]
    owner.wait(run, lambda _: bool(records(run, job_id, kind="spare")))
    sandbox.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan")
    hardware.logs_a_line("node2", XID)
    view = owner.wait(run, over)
    assert view["phase"] == "done"
    assert "a fan" in drained(sandbox, "node2", lambda said: "drain" in said)


def test_an_allocation_is_examined_by_hand_and_a_drained_node_too(
    owner: Person, hardware: Hardware, sandbox: Sandbox, tmp_path: Path
) -> None:
    nvml_stub.write(hardware.states, "node3", nvml_stub.with_missing(nvml_stub.healthy(2, "node3")))
    line = f"{sys.executable} -m transom_cli check --json --no-probe --record {tmp_path}/record.json"
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{line} > {tmp_path}/said.json\necho $? > {tmp_path}/code\n")
    env = {**os.environ, **owner.env}
    words = ["sbatch", "--wait", "-N4", "--ntasks-per-node=1", "--gres=gpu:2", "--output=/dev/null", str(script)]
    assert subprocess.run(words, env=env, timeout=60, check=False, capture_output=True).returncode == 0
    assert (tmp_path / "code").read_text().strip() == "14"
    said = json.loads((tmp_path / "said.json").read_text())
    assert {f["node"] for f in said["findings"] if f["verdict"] in ("fail", "suspect")} == {"node3"}
    again = owner.transom("check", "--replay", str(tmp_path / "record.json"), "--json")
    assert again.returncode == 14
    assert {f["node"] for f in json.loads(again.stdout)["findings"] if f["verdict"] == "fail"} == {"node3"}
