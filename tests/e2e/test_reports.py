"""On a real Slurm: a loss that goes wrong and a slow node are told, and nothing is done about them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.support import Person, over

from transom_cli.layout import RunDir

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
COMMAND = (sys.executable, str(Path(__file__).with_name("slow_trainer.py")))


def told(run: RunDir, view: dict[str, Any]) -> list[dict[str, Any]]:
    journal = run.attempt(view["job_id"], 0).launcher_journal.read_text().splitlines()
    return [record for record in map(json.loads, journal) if record["type"] == "report"]


def test_a_loss_that_stops_being_a_number(person: Person) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "400", "--nan-at", "100")
    view = person.wait(run, lambda view: bool(view["reports"]))
    assert view["reports"][0].startswith("the loss is not a number since step ")
    view = person.wait(run, over)
    (record,) = told(run, view)
    assert (record["what"], record["over"], record["clue"]["category"]) == ("nan_loss", False, "numeric_divergence")
    assert record["words"] in run.job_log(view["job_id"]).read_text()
    assert (view["phase"], view["starts"], view["incidents"], view["excluded"]) == ("done", 0, [], [])


@pytest.mark.timeout(900)
def test_a_node_that_gets_slow(person: Person) -> None:
    """A sample every five seconds: ten to settle, some sixty to know what is usual, and sixteen to be sure."""
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "4500", "--slow-at", "3300")
    view = person.wait(run, lambda view: bool(view["reports"]), patience=840.0)
    (record,) = told(run, view)
    assert (record["what"], [c["node"] for c in record["clue"]["culprits"]]) == ("slow_node", ["node2"])
    screen = person.transom("status", "--phases", run.run_id).stdout
    assert "▲" in screen and "noticed     a node is slow" in screen
    assert person.transom("stop", run.run_id).returncode == 0
