"""A simulated run: the real deciders on a discrete-event cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from transom_cli.cli.app import app
from transom_cli.config.load import default_rules
from transom_cli.config.model import Settings
from transom_cli.config.policy import RuleTable
from transom_cli.core.codec import event_to_json
from transom_cli.core.goodput import Kind
from transom_cli.core.launcher import Policy as LauncherPolicy
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.simulate.attempt import Attempt
from transom_cli.simulate.cluster import BEGIN, Cluster
from transom_cli.simulate.export import write_run
from transom_cli.simulate.model import (
    CORRUPT,
    DAY,
    FAULTS,
    HANG,
    HOUR,
    LOST,
    Costs,
    Fault,
    Hazard,
    Outage,
    Scenario,
    Site,
    Trace,
)
from transom_cli.supervise.journal import fold
from transom_cli.supervise.record_reader import read_run_record

RULES = tuple(RuleTable.model_validate(rule).rule() for rule in default_rules())
QUIET = Scenario(
    4,
    days=0.5,
    spares=1,
    pool=8,
    hazard=Hazard(per_node_day=0.0),
    operator=Policy(rules=RULES),
    launcher=LauncherPolicy(preflight=True, deep=True, rules=RULES),
)
BUSY = replace(QUIET, nodes=16, days=10.0, spares=2, pool=0, hazard=Hazard(per_node_day=0.05, notice=DAY))


def failing(fault: Fault, node: str = "node00003", at: float = 6 * HOUR) -> Callable[[Cluster], None]:
    def plan(cluster: Cluster) -> None:
        cluster.timeline.at(BEGIN + at, cluster.fleet.hit, cluster.fleet.nodes[node], fault)

    return plan


def lines(cluster: Cluster) -> list[str]:
    return [json.dumps(event_to_json(event)) for event in cluster.journal]


def simulated(scenario: Scenario, seed: int = 1, script: Callable[[Cluster], None] | None = None) -> Cluster:
    cluster = Cluster(scenario, seed, script)
    cluster.run()
    return cluster


EVERYTHING = replace(
    BUSY,
    days=40.0,
    limit=3 * DAY,
    hazard=replace(
        BUSY.hazard,
        flapping=True,
        switch_per_day=0.2,
        switch_nodes=4,
        power_per_day=0.1,
        power_nodes=8,
        faults=tuple(replace(f, share=f.share or 50) for f in FAULTS),
    ),
    site=Site(others=0.7, others_hours=3.0, maintenance_days=14.0),
)


@pytest.mark.parametrize("scenario", [BUSY, EVERYTHING], ids=["busy", "everything"])
def test_same_seed_gives_the_same_journal_and_another_seed_another(scenario: Scenario) -> None:
    first, again, other = simulated(scenario), simulated(scenario), simulated(scenario, 2)
    assert len(first.journal) > 50
    assert lines(first) == lines(again) != lines(other)


def test_run_without_faults_loses_only_start_and_saves() -> None:
    outcome = Cluster(QUIET, 1).run()
    assert (outcome.phase, outcome.incidents, outcome.launches) == ("training", 0, 1)
    lost = outcome.horizon - outcome.seconds(Kind.PRODUCTIVE)
    saves = outcome.seconds(Kind.PRODUCTIVE) / QUIET.costs.pace / QUIET.costs.save_every
    assert lost == pytest.approx(outcome.seconds(Kind.RESTART) + outcome.seconds(Kind.PREFLIGHT) + saves, rel=0.1)


def test_lost_node_is_replaced_by_the_spare_and_drained() -> None:
    cluster = simulated(QUIET, 1, failing(Fault("dead", 1, LOST)))
    assert [one.name for one in cluster.attempts] == ["1.0"]
    assert cluster.attempts[0].state.nodes.training == ("node00001", "node00002", "node00005", "node00004")
    (exclusion,) = cluster.state.isolation.exclusions
    assert (exclusion.node, exclusion.how, exclusion.until) == ("node00003", "drained", None)


def test_lost_batch_host_is_left_to_the_operator() -> None:
    cluster = simulated(QUIET, 1, failing(Fault("dead", 1, LOST), "node00001"))
    assert [one.name for one in cluster.attempts] == ["1.0", "2.0"]
    assert "node00001" not in cluster.attempts[1].nodes
    assert cluster.state.incidents[0].diagnosis is not None
    assert cluster.state.incidents[0].diagnosis.cause == "node_lost"


def test_hang_is_ended_at_the_limit_of_the_stall_detector() -> None:
    cluster = simulated(QUIET, 1, failing(Fault("hang", 1, HANG)))
    (seen,) = [m for i in cluster.state.incidents for m in i.marks if m.what == "seen"]
    assert seen.at == pytest.approx(BEGIN + 6 * HOUR + QUIET.patient, abs=2.0)
    assert cluster.attempts[0].state.launch.number == 1


def test_broken_node_fails_again_until_it_is_excluded() -> None:
    """The checks do not find this fault: only the second failure in a row is evidence against the node."""
    cluster = simulated(QUIET, 1, failing(Fault("flaky", 1, stays=1.0, again=60.0, line="NCCL error")))
    causes = [i.diagnosis.nodes for i in cluster.state.incidents if i.diagnosis is not None]
    assert causes[:2] == [("node00003",), ("node00003",)]
    assert "node00003" not in cluster.attempts[-1].state.nodes.training


def test_time_limit_loses_only_the_steps_during_the_final_write() -> None:
    cluster = Cluster(replace(QUIET, limit=3 * HOUR, warn=300.0, costs=Costs(persist=30.0)), 1)
    outcome = cluster.run()
    assert [one.outcome.cause for one in cluster.attempts[:3] if one.outcome] == ["time_limit"] * 3
    assert outcome.seconds(Kind.REDONE) < 3 * 60


def test_training_of_given_length_is_done() -> None:
    outcome = Cluster(replace(QUIET, steps=1000), 1).run()
    assert outcome.phase == "done"
    assert outcome.seconds(Kind.PRODUCTIVE) == pytest.approx(1000 * QUIET.costs.step, rel=0.02)


def test_recorded_outage_takes_its_node_for_its_time() -> None:
    trace = Trace((Outage("a", 10 * DAY, 11 * DAY, Fault("dead", 1, LOST)),), nodes=8, length=20 * DAY)
    cluster = Cluster(replace(QUIET, days=20.0, trace=trace, pool=8), 1)
    outcome = cluster.run()
    assert outcome.phase == "training"
    down = [n.name for n in cluster.fleet.nodes.values() if n.returned is not None or not n.up]
    assert len(down) == 1


def test_drained_node_returns_after_repair_and_its_exclusion_is_lifted() -> None:
    cluster = simulated(replace(QUIET, days=10.0), 1, failing(Fault("dead", 1, LOST, repair=HOUR)))
    (exclusion,) = cluster.state.isolation.exclusions
    assert exclusion.until is not None, "lifted: the next restart uses the node again"
    assert [r.what for r in cluster.state.requests if r.what == "lift"] == ["lift"]


def training_within(cluster: Cluster, begin: float, end: float) -> bool:
    """Whether a step was made between these times after the begin."""
    return any(begin < line["wall"] - BEGIN < end for one in cluster.attempts for line in one.progress)


def begins(attempts: list[Attempt]) -> list[float]:
    return [one.records[0]["wall"] - BEGIN for one in attempts]


@pytest.mark.parametrize("limit", [0.0, DAY, 30 * HOUR])
def test_nothing_trains_during_maintenance(limit: float) -> None:
    site = Site(maintenance_days=2.0, maintenance_hours=8.0)
    cluster = simulated(replace(QUIET, days=5.0, limit=limit, warn=300.0, site=site))
    assert not training_within(cluster, 2 * DAY + 1, 2 * DAY + 8 * HOUR)
    assert training_within(cluster, 2 * DAY + 8 * HOUR, 4 * DAY)
    assert not training_within(cluster, 4 * DAY + 1, 4 * DAY + 8 * HOUR)
    for begin in begins(cluster.attempts) if limit else ():
        assert begin < 2 * DAY - limit + HOUR or begin > 2 * DAY + 8 * HOUR, "it would not fit"


def test_requeued_job_waits_for_a_node_that_another_job_holds() -> None:
    dead = failing(Fault("dead", 1, LOST, repair=1000 * HOUR))
    alone = replace(QUIET, spares=0, pool=5, days=2.0, hazard=replace(QUIET.hazard, repair_spread=0.0))
    shared = replace(alone, site=Site(others=1.0, others_hours=2.0))
    waits = {}
    for name, scenario in (("alone", alone), ("shared", shared)):
        cluster = simulated(scenario, 1, dead)
        waits[name] = begins(cluster.attempts)[1] - 6 * HOUR
        assert cluster.attempts[1].nodes == ("node00001", "node00002", "node00004", "node00005")
    assert waits["alone"] < 0.5 * HOUR < waits["shared"]


@pytest.mark.parametrize("name", ["switch", "power"])
def test_switch_and_power_take_neighbouring_nodes_at_once(name: str) -> None:
    hazard = replace(QUIET.hazard, **{f"{name}_per_day": 4.0, f"{name}_nodes": 4})  # type: ignore[arg-type]
    cluster = Cluster(replace(QUIET, hazard=hazard, days=1.0), 3)
    down: list[set[str]] = []
    cluster.fleet._failed = lambda node, fault: down.append({n.name for n in cluster.fleet.nodes.values() if not n.up})
    cluster.run()
    assert down[3] in ({f"node0000{n}" for n in range(1, 5)}, {f"node0000{n}" for n in range(5, 9)})


def test_flapping_nodes_fail_more_often_after_they_returned() -> None:
    once = replace(BUSY, nodes=64, days=90.0, hazard=replace(BUSY.hazard, per_node_day=4e-3, repair_spread=0.0))
    flapping = replace(once, hazard=replace(once.hazard, flapping=True))
    more, usual = (sum(Cluster(one, seed).run().faults for seed in range(4)) for one in (flapping, once))
    assert more > 1.2 * usual


CORRUPTING = Fault("corrupt", 1, CORRUPT, stays=0.0, found=1.0)


def test_silent_corruption_sets_the_training_back_to_the_last_clean_step() -> None:
    cluster = simulated(QUIET, 1, failing(CORRUPTING))
    (incident,) = cluster.state.incidents
    assert incident.diagnosis is not None and "corrupt" in incident.diagnosis.cause
    assert cluster.attempts[0].state.launch.number == 1
    assert not cluster.state.isolation.exclusions, "one doubt is no verdict"


def test_node_that_corrupts_again_is_excluded() -> None:
    cluster = simulated(QUIET, 1, failing(replace(CORRUPTING, stays=1.0, again=60.0)))
    assert "node00003" in [x.node for x in cluster.state.isolation.exclusions]


def test_corruption_that_no_guard_finds_is_counted_and_costs_no_time() -> None:
    outcome = Cluster(QUIET, 1, failing(replace(CORRUPTING, found=0.0))).run()
    assert (outcome.unseen, outcome.incidents, outcome.launches) == (1, 0, 1)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Cluster, Path]:
    cluster = simulated(BUSY)
    write_run(cluster, tmp_path / "runs", Settings(name="simulated"))
    return cluster, tmp_path / "runs"


def test_journal_of_a_simulated_run_is_a_normal_one(written: tuple[Cluster, Path]) -> None:
    cluster, root = written
    run = RunDir(next(root.iterdir()))
    assert fold(run.journal).state == cluster.state
    assert read_run_record(run).account.whole == Cluster(BUSY, 1).run().sums


@pytest.mark.parametrize("command", ["explain", "goodput", "report", "attempts", "status"])
def test_commands_that_read_a_run_read_a_simulated_one(
    written: tuple[Cluster, Path], command: str, tmp_path: Path
) -> None:
    cluster, root = written
    page = tmp_path / "page.html"
    args = ["-o", str(page)] if command == "report" else []
    result = CliRunner().invoke(app, [command, "--root", str(root), *args])
    assert result.exit_code == 0, result.output
    text = page.read_text() if command == "report" else result.output
    shown = {"attempts": cluster.attempts[-1].name, "goodput": "productive", "status": "STOPPED"}
    assert shown.get(command, "gpu_hardware") in text
