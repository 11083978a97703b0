"""Many simulated runs: `transom simulate`, and what it reads about failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from transom_cli.cli.app import app
from transom_cli.errors import UsageError
from transom_cli.health.history.records import Attempt, to_json
from transom_cli.simulate.campaign import Interval
from transom_cli.simulate.model import DAY, Hazard, Trace
from transom_cli.simulate.traces import read_failures

SMALL = ("simulate", "-N", "8", "--days", "10", "--failures", "40", "--runs", "3")


def rows(*args: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, [*SMALL, "--json", *args])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


def test_result_does_not_depend_on_the_number_of_processes() -> None:
    assert rows("-j", "1") == rows("-j", "2")


def test_every_combination_gets_a_row_and_rare_saves_cost_repeated_steps() -> None:
    found = rows("--spares", "0,1", "--save-every", "10,300", "-j", "1")
    assert [(r["spares"], r["save every"]) for r in found] == [("0", "10"), ("0", "300"), ("1", "10"), ("1", "300")]
    assert found[0]["hours"]["redone"] < found[1]["hours"]["redone"]
    assert found[0]["hours"]["checkpoint"] > found[1]["hours"]["checkpoint"]
    assert found[2]["requeues"] < found[0]["requeues"], "a spare takes the place of a requeue"
    assert all(0.5 < r["goodput"]["low"] <= r["goodput"]["mean"] <= r["goodput"]["high"] < 1 for r in found)


def test_two_policies_are_compared_on_the_same_failures(tmp_path: Path) -> None:
    now, never = tmp_path / "now.toml", tmp_path / "never.toml"
    now.write_text("")
    never.write_text("[restart]\nrelaunches = 0\n")
    found = rows("--compare", str(now), str(never), "-j", "1")
    assert [r["policy"] for r in found] == ["now", "never"]
    assert found[0]["relaunches"] > 0 == found[1]["relaunches"]
    words = CliRunner().invoke(app, [*SMALL, "--compare", str(now), str(now), "-j", "1"]).stdout
    assert "now against now, on the same failures: goodput +0.000%" in words


def test_another_setting_and_another_assumption_are_compared_on_the_same_failures() -> None:
    found = rows("--what-if", "restart.relaunches=0", "--what-if", "costs.start=900", "-j", "1")
    assert [r["policy"] for r in found] == ["now", "restart.relaunches=0", "costs.start=900"]
    assert found[0]["relaunches"] > 0 == found[1]["relaunches"]
    assert found[0]["hours"]["restart"] < found[2]["hours"]["restart"]
    assert rows("--what-if", "fault.slow=400", "-j", "1")[1]["hours"]["slower"] > 5 * found[0]["hours"]["slower"]
    for wrong in (
        "costs.start=-1",
        "site.others=nan",
        "fault.none=1",
        "costs.nothing=1",
        "costs.start=soon",
        "restart.relaunches",
    ):
        assert CliRunner().invoke(app, [*SMALL, "--what-if", wrong]).exit_code != 0, wrong


def test_restart_within_living_processes_costs_less() -> None:
    off, on = rows("--in-process", "0,5", "-j", "1")
    assert (off["in-process"], on["in-process"]) == ("0", "5")
    assert on["hours"]["restart"] < off["hours"]["restart"] and on["goodput"]["mean"] > off["goodput"]["mean"]


def test_run_that_may_shrink_trains_more_slowly_and_does_not_requeue() -> None:
    waits, shrinks = rows("--min-nodes", "0,6", "-j", "1")
    assert shrinks["requeues"] < waits["requeues"]
    assert shrinks["hours"]["slower"] > 10 * waits["hours"]["slower"]


def test_page_has_a_curve_over_all_intervals_and_all_assumptions(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    rows("--save-every", "1-4", "--runs", "1", "-j", "1", "--html", str(page))
    text = page.read_text()
    assert "Goodput by save every" in text and text.count('<path d="M') == 2, "the mean and its interval"
    assert "costs.start" in text and "hazard.per_node_day" in text
    assert "<script" not in text and "http:" not in text


def test_first_run_is_kept_for_the_commands_that_read_runs(tmp_path: Path) -> None:
    CliRunner().invoke(app, [*SMALL, "--keep", str(tmp_path / "runs"), "-j", "1"])
    result = CliRunner().invoke(app, ["explain", "--root", str(tmp_path / "runs")])
    assert result.exit_code == 0 and "requeued" in result.output


def test_published_trace_has_the_published_figures_without_its_stress_tests() -> None:
    trace = read_failures("stepfun")
    assert isinstance(trace, Trace)
    assert len(trace.outages) == 584 - 97
    assert (trace.nodes, round(trace.length / DAY)) == (400, 349)
    assert sum(o.fault.hardware for o in trace.outages) == 298


def test_rate_of_a_site_is_read_from_its_node_history(tmp_path: Path) -> None:
    path = tmp_path / "nodes.jsonl"
    attempts = [Attempt((n + 1) * DAY, "r", f"1.{n}", n * DAY, ("a", "b"), ("a",) if n < 2 else ()) for n in range(10)]
    path.write_text("".join(json.dumps(to_json(a)) + "\n" for a in attempts))
    assert read_failures(str(path)) == Hazard(per_node_day=2 / 20)


def test_rate_of_node_failures_is_read_from_accounting(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(f"1|COMPLETED|0|{5 * 86400}|n[1-4]\n2|NODE_FAIL|0|{5 * 86400}|n[1-2]\n3|PENDING|Unknown|Unknown|\n")
    assert read_failures(str(path)) == Hazard(per_node_day=1 / 30)


def test_file_without_any_use_of_nodes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("JobIDRaw|State|Start|End|NodeList\n")
    with pytest.raises(UsageError, match="records no use of nodes"):
        read_failures(str(path))


@pytest.mark.parametrize("text", ["[", '[{"node_id": 1}]', "[1, 2]"])
def test_damaged_trace_is_refused_with_its_format(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a trace in StepFun's format"):
        read_failures(str(path))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--min-nodes", "9"), "the training has 8 nodes"),
        (("--pool", "8", "--spares", "1"), "the job would never start"),
        (("--failures", "stepfun", "--what-if", "hazard.flapping=1"), "changes nothing"),
        (("--bandwidth", "0"), "0.001"),
    ],
)
def test_impossible_request_is_refused_with_the_reason(args: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, [*SMALL, *args])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_interval_holds_nine_of_ten_values() -> None:
    assert Interval.of([float(x) for x in range(101)]) == Interval(50.0, 5.0, 95.0)
    assert Interval.of([1.0]) == Interval(1.0, 1.0, 1.0)
