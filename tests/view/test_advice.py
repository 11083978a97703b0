"""What a run's own record says about its settings. The runs are simulated: their journals are normal ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from transom_cli.cli.app import app
from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.policy import Rule
from transom_cli.simulate.cluster import Cluster
from transom_cli.simulate.export import write_run
from transom_cli.simulate.model import SLOW, Costs, Fault, Hazard, Scenario
from transom_cli.simulate.setup import with_settings
from transom_cli.supervise.record_reader import read_run_record
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.advice import _silences, advice, faults_of, pace

SETTINGS = load(site=None, user=Path("/nonexistent"))
BUSY = with_settings(Scenario(16, days=6.0, hazard=Hazard(per_node_day=0.1)), SETTINGS)


def written(scenario: Scenario, folder: Path) -> RunRecord:
    cluster = Cluster(scenario, 1)
    cluster.run()
    return read_run_record(write_run(cluster, folder, Settings(name="simulated")))


@pytest.mark.parametrize(("every", "words"), [(5, "as rarely"), (3000, "as often")])
def test_interval_far_from_the_optimum_is_named_with_its_gain(tmp_path: Path, every: int, words: str) -> None:
    costs = Costs(save_every=every, memory=False, persist_every=1, persist=10.0)
    found = advice(written(replace(BUSY, costs=costs), tmp_path))
    (saves,) = (one for one in found if one.startswith("Save"))
    assert words in saves and "Gain" in saves


def test_run_without_incidents_is_not_judged(tmp_path: Path) -> None:
    record = written(replace(BUSY, days=1.0, hazard=Hazard(per_node_day=0.0)), tmp_path)
    assert advice(record) == ("0 incidents so far: too few to judge the settings by.",)
    assert faults_of(record) is None


def test_spare_is_advised_where_the_queue_is_long(tmp_path: Path) -> None:
    record = written(replace(BUSY, costs=Costs(queue=4 * 3600.0)), tmp_path)
    assert any(one.startswith("Add a spare node") for one in advice(record))


def test_record_gives_the_step_time_and_the_rate_of_faults(tmp_path: Path) -> None:
    record = written(BUSY, tmp_path)
    assert pace(record) == pytest.approx(BUSY.costs.pace, rel=0.05)
    found = faults_of(record)
    assert found is not None and 0.05 < found.per_node_day < 0.3


@pytest.mark.parametrize(("factor", "useless"), [(1.0, True), (1.5, False)])
def test_relaunches_for_slow_nodes_are_judged_by_the_steps_after_them(
    tmp_path: Path, factor: float, useless: bool
) -> None:
    rule = Rule("slow", "swap", reported=("slow_node",))
    slow = Fault("slow", 1, SLOW, stays=1.0, factor=factor)
    launcher = replace(BUSY.launcher, rules=(rule, *BUSY.launcher.rules))
    hazard = Hazard(per_node_day=0.2, faults=(slow,), notice=0.0)
    found = advice(written(replace(BUSY, days=3.0, spares=8, launcher=launcher, hazard=hazard), tmp_path))
    assert any("Do not relaunch for slow nodes" in one for one in found) is useless, found


def test_silences_that_end_by_themselves_are_named() -> None:
    def incident(number: int, result: str, cause: str = "") -> Incident:
        diagnosis = Diagnosis(cause, "", ("n1",), True, "drain", True) if cause else None
        return Incident(f"i{number}", 1, 0, 0.0, 1, result=result, diagnosis=diagnosis)

    over = [incident(n, "ignored") for n in range(4)]
    assert "4 silences of nodes ended by themselves, beside 1 lost node." in _silences(
        [*over, incident(5, "recovered", "node_lost")]
    )
    assert _silences([*over[:3], *(incident(n, "recovered", "node_lost") for n in range(3))]) == ""


def test_advise_and_doctor_and_report_say_the_same(tmp_path: Path) -> None:
    record = written(replace(BUSY, costs=Costs(save_every=3000)), tmp_path / "runs")
    said = advice(record)[0]
    page = tmp_path / "page.html"
    CliRunner().invoke(app, ["report", "--root", str(tmp_path / "runs"), "-o", str(page)])
    assert said in page.read_text()
    args = ["advise", "--run", record.run_id, "--root", str(tmp_path / "runs"), "--days", "1", "--runs", "2", "-j", "1"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0 and said in result.output, result.output
