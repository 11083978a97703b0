"""On a real Slurm: a loss that goes wrong and a slow node are told; what is done about them is the policy's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.support import Person, over

from transom_cli.ckpt.restore.rollback import read as setbacks
from transom_cli.layout import RunDir

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
COMMAND = (sys.executable, str(Path(__file__).with_name("slow_trainer.py")))


def told(run: RunDir, view: dict[str, Any]) -> list[dict[str, Any]]:
    journal = run.attempt(view["job_id"], 0).launcher_journal.read_text().splitlines()
    return [record for record in map(json.loads, journal) if record["type"] == "report"]


def test_a_loss_that_stops_being_a_number(person: Person) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "400", "--nan-at", "100")
    view = person.wait(run, lambda view: bool(view["reports"]))
    assert view["reports"][0].startswith("the loss is NaN since step ")
    view = person.wait(run, over)
    (record,) = told(run, view)
    assert (record["what"], record["over"], record["clue"]["category"]) == ("nan_loss", False, "numeric_divergence")
    assert record["words"] in run.job_log(view["job_id"]).read_text()
    assert (view["phase"], view["starts"], view["incidents"], view["excluded"]) == ("done", 0, [], [])


ISOLATE = """
[[policy.rules]]
name = "slow"
reported = ["slow_node", "slow_device"]
lasting = "20s"
action = "isolate"
budget = 1
"""


@pytest.mark.timeout(1000)
def test_slow_node_is_reported_and_left_if_a_rule_says_so(person: Person) -> None:
    """A sample every five seconds: ten to settle, some sixty to know what is usual, and sixteen to be sure."""
    rules = person.cwd / "rules.toml"
    rules.write_text(ISOLATE)
    slow = (*COMMAND, "--steps", "4800", "--slow-at", "3300")
    run = person.start("-f", str(rules), "-N", "2", "--spares", "1", "--", *slow)
    view = person.wait(run, lambda view: bool(view["reports"]), patience=840.0)
    record = told(run, view)[0]
    assert (record["what"], [c["node"] for c in record["clue"]["culprits"]]) == ("slow_node", ["node2"])
    screen = person.transom("status", "--phases", run.run_id).stdout
    assert "▲" in screen and "noticed     a node is slow" in screen
    view = person.wait(run, lambda view: bool(view["incidents"]) and view["incidents"][0]["result"] == "recovered")
    (incident,) = view["incidents"]
    assert (incident["rule"], incident["action"]) == ("slow", "isolate")
    assert "node3 for node2" in " ".join(words for _, what, words in incident["marks"] if what == "swapped")
    view = person.wait(run, lambda view: bool(view["excluded"]))
    assert [(node, how) for node, how, _ in view["excluded"]] == [("node2", "excluded")], "a suspicion drains nobody"
    assert person.transom("stop", run.run_id).returncode == 0


ROLLBACK = """
[[policy.rules]]
name = "diverged"
reported = "nan_loss"
action = "rollback"
budget = 1
then = "stop"
"""


@pytest.mark.timeout(600)
def test_a_loss_that_stops_being_a_number_is_rolled_back_where_a_rule_says_so(person: Person) -> None:
    """The end is that of a training which never saw the batches in question, bit for bit."""
    from e2e.diverging_trainer import weights

    rules = person.cwd / "rules.toml"
    rules.write_text(ROLLBACK)
    trainer = str(Path(__file__).with_name("diverging_trainer.py"))
    command = (sys.executable, trainer, "--steps", "700", "--bad", "300", "301")
    run = person.start("-f", str(rules), "-N", "2", "--", *command)
    view = person.wait(run, over, patience=500.0)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 0, [])
    (incident,) = json.loads(person.transom("explain", "--json", run.run_id).stdout)["incidents"]
    assert (incident["rule"], incident["action"], incident["result"]) == ("diverged", "rollback", "recovered")
    (setback,) = setbacks(run.checkpoints)
    assert setback.skip is not None and setback.to < setback.skip[0] <= 301 < setback.skip[1]
    left = [n for n in range(700 + 400) if not setback.skip[0] <= n + 1 <= setback.skip[1]][:700]
    log = (run.attempt(view["job_id"], 0).logs(1) / "rank-0.log").read_text()
    assert f"weights {weights(left)}" in log
    assert any(path.name.endswith(".undone-1") for path in run.checkpoints.iterdir()), "what was undone is kept"
