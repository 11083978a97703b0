"""The driver with simulated nodes: for every fault, exactly the bad node or link is named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_findings import bad

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from probe_sim import IMPORT, SimCrew, World

from transom_cli.core.codec import build, plain
from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Remedy, Verdict
from transom_cli.health.probe.drive import ProbeResult, drive
from transom_cli.health.probe.judge import CHECKS, judge_probe
from transom_cli.health.probe.messages import ProbeReading
from transom_cli.health.probe.plan import ProbeLimits

LIMITS = ProbeLimits()


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


def probe(crew: SimCrew, tier: Tier = Tier.QUICK, limits: ProbeLimits = LIMITS) -> ProbeResult:
    result = drive(crew, About(tier=tier), limits, clock=crew.now)
    found = [(finding.node, finding.check) for finding in result.findings]
    assert sorted(found) == sorted((node, check) for node in crew.nodes for check in CHECKS), "one of each, for each"
    return result


def evidence(result: ProbeResult, node: str, check: str) -> str:
    return next(f.evidence for f in result.findings if (f.node, f.check) == (node, check))


def verdict(result: ProbeResult, node: str, check: str) -> Verdict:
    return next(f.verdict for f in result.findings if (f.node, f.check) == (node, check))


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 999), st.sampled_from([Tier.QUICK, Tier.DEEP]), st.integers(1, 3))
def test_healthy_nodes_pass_all_checks(count: int, seed: int, tier: Tier, devices: int) -> None:
    result = probe(SimCrew(names(count), World(seed=seed, devices=devices)), tier)
    assert bad(result) == {}
    alone = {"link_node", "link_speed", "link", *(("link_all", "link_answer") if devices == 1 else ())}
    assert not [f for f in result.findings if f.verdict is Verdict.UNKNOWN]
    assert {f.check for f in result.findings if not f.applies} == (alone if count == 1 else set())


FAULTS = {
    "link_node": lambda node: World(cut_off=frozenset((node,))),
    "link_speed": lambda node: World(senders={node: 0.2}),
    "link_speed ": lambda node: World(receivers={node: 0.2}),
    "compute_speed": lambda node: World(slow={node: 0.25}),
    "compute_digest": lambda node: World(bits={node: "gemm"}),
    "compute_exact": lambda node: World(bits={node: "exact"}),
    "compute_answer": lambda node: World(silent={node: "compute"}),
    "link_answer": lambda node: World(silent={node: "all"}),
    "link_answer ": lambda node: World(silent={node: "pairs"}),
}


@settings(deadline=None)
@given(
    st.sampled_from(sorted(FAULTS)),
    st.integers(3, 33),
    st.integers(0, 32),
    st.integers(0, 999),
    st.sampled_from([Tier.QUICK, Tier.DEEP]),
)
def test_any_single_bad_node_is_named_and_no_other(check: str, count: int, which: int, seed: int, tier: Tier) -> None:
    nodes = names(count)
    culprit = nodes[which % count]
    result = probe(SimCrew(nodes, replace(FAULTS[check](culprit), seed=seed)), tier)
    assert bad(result) == {culprit: [check.strip()]}


@settings(deadline=None)
@given(st.integers(3, 24), st.data(), st.booleans())
def test_any_single_bad_link_is_named_and_no_node_is_kept_out_for_it(
    count: int, data: st.DataObject, dead: bool
) -> None:
    nodes = names(count)
    first, second = data.draw(st.permutations(nodes))[:2]
    met = {frozenset(pair) for pair in healthy_pairs(nodes)}
    if frozenset((first, second)) not in met:
        first, second = sorted(data.draw(st.sampled_from(sorted(met, key=sorted))))
    two = frozenset((first, second))
    world = World(dead=frozenset((two,))) if dead else World(throttled={(first, second): 0.1})
    result = probe(SimCrew(nodes, world))
    assert bad(result) == {}
    assert {f.node for f in result.findings if f.check == "link" and f.verdict is Verdict.MONITOR} == two
    assert f"{first} to {second}" in evidence(result, first, "link") or dead


def healthy_pairs(nodes: tuple[str, ...]) -> list[tuple[str, ...]]:
    crew = SimCrew(nodes)
    probe(crew)
    return [pair for pair in crew.met if len(pair) == 2]


@pytest.mark.parametrize("count", [6, 9, 16])
def test_two_bad_nodes_at_once(count: int) -> None:
    nodes = names(count)
    for first in nodes[:4]:
        world = World(cut_off=frozenset((first, nodes[-1])))
        assert bad(probe(SimCrew(nodes, world))) == {first: ["link_node"], nodes[-1]: ["link_node"]}


def test_deep_keeps_one_end_of_a_dead_link_out() -> None:
    result = probe(SimCrew(names(6), World(dead=frozenset((frozenset(("n1", "n4")),)))), Tier.DEEP)
    assert bad(result) == {"n4": ["link"]}
    assert "n1 to n4, failed in 2 of 2 meetings" in evidence(result, "n4", "link")
    assert verdict(result, "n1", "link") is Verdict.MONITOR


def test_deep_tier_ignores_a_link_that_was_bad_only_once() -> None:
    """The second look finds no time, so that one meeting is all there is."""
    world = World(dead=frozenset((frozenset(("n1", "n4")),)))
    crew = SimCrew(names(6), world)
    probe(crew, Tier.DEEP)
    result = probe(SimCrew(names(6), world), Tier.DEEP, ProbeLimits(probe_deep=crew.now() - 2.6))
    assert bad(result) == {}
    assert "failed in 1 of 1 meetings" in evidence(result, "n4", "link")


def test_silent_rank_is_waited_for_only_once() -> None:
    crew = SimCrew(names(8), World(silent={"n3": "pairs"}))
    result = probe(crew, Tier.DEEP)
    assert len([pair for pair in crew.met if len(pair) == 2 and "n3" in pair]) <= 1
    assert [(one.node, one.phase) for one in result.reading.silent] == [("n3", "pairs 1")]


def test_with_two_nodes_only_the_link_is_named() -> None:
    result = probe(SimCrew(names(2), World(dead=frozenset((frozenset(("n0", "n1")),)))))
    assert bad(result) == {}
    assert "no third node could show" in evidence(result, "n0", "link")


def test_slower_of_two_nodes_is_monitored() -> None:
    alone = probe(SimCrew(names(2), World(slow={"n1": 0.25})))
    assert (bad(alone), verdict(alone, "n1", "compute_speed")) == ({}, Verdict.MONITOR)


def test_a_slow_node_is_measured_three_times_beside_others() -> None:
    result = probe(SimCrew(names(8), World(slow={"n5": 0.3})))
    assert [len(look) for look in result.reading.looks] == [8, 3, 3]
    assert evidence(result, "n5", "compute_speed").count("again") == 2
    assert verdict(result, "n5", "compute_speed") is Verdict.SUSPECT


@pytest.mark.parametrize(
    "world", [World(torchless=frozenset(names(4))), World(silent=dict.fromkeys(names(4), "hello"))]
)
def test_probe_that_no_node_can_run_accuses_no_node(world: World) -> None:
    result = probe(SimCrew(names(4), world))
    assert {finding.verdict for finding in result.findings} == {Verdict.UNKNOWN}


def test_node_without_torch_is_skipped_and_the_others_are_probed() -> None:
    result = probe(SimCrew(names(4), World(torchless=frozenset(("n2",)))))
    assert bad(result) == {}
    assert "No module named 'torch'" in evidence(result, "n2", "probe_hello")
    assert verdict(result, "n2", "probe_hello") is Verdict.MONITOR, "the job's ranks will not start there either"
    assert verdict(result, "n0", "link_node") is Verdict.PASS
    assert verdict(result, "n2", "link_node") is Verdict.UNKNOWN


def test_process_without_a_hello_is_reported_and_skipped() -> None:
    result = probe(SimCrew(names(4), World(silent={"n2": "hello"})))
    assert bad(result) == {}
    assert (verdict(result, "n2", "probe_hello"), verdict(result, "n1", "link_node")) == (Verdict.MONITOR, Verdict.PASS)


def test_what_most_nodes_suffer_is_not_their_own_fault() -> None:
    result = probe(SimCrew(names(4), World(silent=dict.fromkeys(names(3), "compute"))))
    assert bad(result) == {}
    assert "the same on 3 of 4 nodes" in evidence(result, "n0", "compute_answer")


@pytest.mark.parametrize("tier", [Tier.QUICK, Tier.DEEP])
@pytest.mark.parametrize("check", sorted(FAULTS))
def test_it_is_over_within_its_tiers_time(tier: Tier, check: str) -> None:
    for count in (2, 3, 33):
        crew = SimCrew(names(count), FAULTS[check]("n1"))
        probe(crew, tier)
        assert crew.now() <= (LIMITS.probe_quick if tier is Tier.QUICK else LIMITS.probe_deep)


def test_short_budget_reports_the_remaining_checks_as_not_tried() -> None:
    crew = SimCrew(names(4))
    result = probe(crew, limits=ProbeLimits(probe_quick=IMPORT + 3.0))
    assert crew.now() <= IMPORT + 3.0
    assert verdict(result, "n0", "compute_speed") is Verdict.PASS
    assert "no time was left for" in evidence(result, "n0", "link_node")


def test_the_time_hardly_grows_with_the_nodes() -> None:
    took = {}
    for count in (4, 1024):
        crew = SimCrew(names(count))
        probe(crew)
        took[count] = crew.now()
    assert took[1024] < 2 * took[4]


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(sorted(FAULTS)), st.integers(0, 99))
def test_a_recorded_reading_is_judged_alike_anywhere(check: str, seed: int) -> None:
    result = probe(SimCrew(names(5), replace(FAULTS[check]("n3"), seed=seed)))
    again = build(ProbeReading, json.loads(json.dumps(plain(result.reading))))
    assert again == result.reading
    assert judge_probe(again, About(), LIMITS) == result.findings


def test_suspect_gets_the_remedy_that_its_evidence_allows() -> None:
    faulty = probe(SimCrew(names(4), World(bits={"n1": "exact"}, slow={"n2": 0.2})))
    requested = {f.node: (f.verdict, f.remedy) for f in faulty.findings if f.verdict.bad}
    assert requested == {"n1": (Verdict.FAIL, Remedy.REPAIR), "n2": (Verdict.SUSPECT, Remedy.AVOID)}
