"""On a real Slurm: a node computes wrong and nothing crashes. The run goes back, repeats, and names the node."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.support import Person, over

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(600)]
COMMAND = (sys.executable, str(Path(__file__).with_name("guarded_trainer.py")))


def reports(run: RunDir, job: int) -> list[dict[str, Any]]:
    journal = run.attempt(job, 0).launcher_journal.read_text().splitlines()
    return [record for record in map(json.loads, journal) if record["type"] == "report" and not record["over"]]


def undisturbed(folder: Path, *words: str) -> dict[str, str]:
    """The weights of three ranks without a launcher, by step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    env["TRANSOM_CHECKPOINT_DIR"] = str(folder)
    ranks = [
        subprocess.Popen(
            [*COMMAND, *words, "--pause", "0"], env={**env, "RANK": rank}, stdout=subprocess.PIPE, text=True
        )
        for rank in "012"
    ]
    logs = [one.communicate(timeout=300)[0] for one in ranks]
    return weights(logs[0])


def weights(log: str) -> dict[str, str]:
    return {line.split()[1]: line.split()[2] for line in log.splitlines() if line.startswith("step ")}


def test_a_node_that_computes_wrong_once_is_named_by_the_repetition(
    person: Person, healed_sandbox: Sandbox, tmp_path: Path
) -> None:
    """Three replicas and a spare. From the repetition on, the weights are those without the fault, to the bit."""
    fault = {"where": "weight", "name": "0.weight", "bit": 20, "step": 70, "launch": 0}
    faults.corrupt(healed_sandbox, "node2", fault)
    run = person.start("-N", "3", "--spares", "1", "--", *COMMAND, "--steps", "600")
    view = person.wait(run, over, patience=400.0)
    assert [node for node, _, _ in view["excluded"]] == ["node2"]
    doubt, proof = [r for r in reports(run, view["job_id"]) if r["clue"]["source"] == "guard"][:2]
    assert (doubt["what"], proof["what"]) == ("silent_corruption", "corrupting_node")
    assert "weights are doubtful from step" in doubt["words"] and "repeated, all replicas" in proof["words"]
    explained = person.transom("explain", "--verbose", run.run_id).stdout
    assert "weights are doubtful from step" in explained and "node2" in explained
    expected = undisturbed(tmp_path, "--steps", "600")
    assert "600" in expected
    logs = sorted(run.path.glob("attempts/*/logs/*/rank-0.log"), key=lambda log: int(log.parent.name))
    assert len(logs) == 3
    for log in logs[1:]:
        found = weights(log.read_text())
        assert found == {step: value for step, value in expected.items() if step in found}, log
    assert "600" in found


def test_replicas_that_differ_by_software_isolate_nobody_and_end_the_run(person: Person) -> None:
    """The save after the repetition finds them different too, and waits for the verdict."""
    run = person.start("-N", "3", "--", *COMMAND, "--steps", "400", "--software")
    view = person.wait(run, over, patience=300.0)
    assert view["excluded"] == []
    found = [r for r in reports(run, view["job_id"]) if r["clue"]["source"] == "guard"]
    assert [r["what"] for r in found] == ["silent_corruption", "differs_by_software"]
    assert "follows the rank" in found[1]["words"]
    log = (run.attempt(view["job_id"], 0).logs(1) / "rank-0.log").read_text()
    assert "waiting for the launcher" in log and "the ranks do not hold the same" in log
