"""On a real Slurm: a node computes wrong and nothing crashes. The run goes back, repeats, and names the node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.support import Person

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(600)]
COMMAND = (sys.executable, str(Path(__file__).with_name("guarded_trainer.py")))


def reports(run: RunDir, job: int) -> list[dict[str, Any]]:
    journal = run.attempt(job, 0).launcher_journal.read_text().splitlines()
    return [record for record in map(json.loads, journal) if record["type"] == "report" and not record["over"]]


def test_a_node_that_computes_wrong_once_is_named_by_the_repetition(person: Person, healed_sandbox: Sandbox) -> None:
    """Three replicas and a spare."""
    fault = {"where": "weight", "name": "0.weight", "bit": 20, "step": 70, "launch": 0}
    faults.corrupt(healed_sandbox, "node2", fault)
    run = person.start("-N", "3", "--spares", "1", "--", *COMMAND, "--steps", "600")
    view = person.wait(run, lambda view: bool(view["excluded"]), patience=300.0)
    assert [node for node, _, _ in view["excluded"]] == ["node2"]
    doubt, proof = [r for r in reports(run, view["job_id"]) if r["clue"]["source"] == "guard"][:2]
    assert (doubt["what"], proof["what"]) == ("silent_corruption", "corrupting_node")
    assert "weights are doubtful from step" in doubt["words"] and "repeated, all replicas" in proof["words"]
    explained = person.transom("explain", "--verbose", run.run_id).stdout
    assert "silent-corruption" in explained and "node2" in explained
    assert person.transom("stop", run.run_id).returncode == 0


def test_replicas_that_differ_by_software_isolate_nobody(person: Person) -> None:
    run = person.start("-N", "3", "--", *COMMAND, "--steps", "400", "--software")
    view = person.wait(run, lambda view: any("follows the rank" in r for r in view["reports"]), patience=300.0)
    assert view["excluded"] == []
    assert [r["what"] for r in reports(run, view["job_id"])] == ["silent_corruption", "differs_by_software"]
    assert person.transom("stop", run.run_id).returncode == 0
