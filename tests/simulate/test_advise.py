"""`transom advise`: each setting alone, on the same failures."""

from __future__ import annotations

import json
from dataclasses import replace

from test_cluster import BUSY
from typer.testing import CliRunner

from transom_cli.cli.app import app
from transom_cli.simulate.advise import Choice, advise
from transom_cli.simulate.model import Scenario


def saving(scenario: Scenario, every: int) -> Scenario:
    return replace(scenario, costs=replace(scenario.costs, save_every=every))


def test_interval_that_is_far_too_long_is_to_be_changed() -> None:
    (found,) = advise(saving(BUSY, 3000), 4, 1, 1, tried=(Choice("save", 3000, (30, 3000), saving),))
    assert (found.best, found.clear) == (30, True)
    assert found.gain.low > 0 and dict(found.values)[30] > dict(found.values)[3000]


def test_setting_without_effect_is_kept() -> None:
    (found,) = advise(BUSY, 2, 1, 1, tried=(Choice("nothing", 1, (1, 2), lambda scenario, _: scenario),))
    assert (found.best, found.clear) == (1, False)


def test_command_reports_every_setting_with_the_values_tried() -> None:
    args = ["advise", "-N", "4", "--days", "3", "--failures", "50", "--runs", "2", "-j", "1", "--json"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["advice"]
    assert {"spares", "steps between saves", "restart.relaunches"} <= {one["name"] for one in found}
    assert all(len(one["values"]) >= 2 for one in found)
