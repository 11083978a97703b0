"""Real ranks in network namespaces: links that drop, throttled links and nodes, found and named."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import netns
import pytest

from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.probe.drive import ProbeResult, drive
from transom_cli.health.probe.plan import ProbeLimits

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from local_ranks import LocalRanks

WHY_NOT = netns.why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

NODES = ("n0", "n1", "n2", "n3")
LIMITS = ProbeLimits(probe_hello=60.0, probe_quick=100.0)


@pytest.fixture(scope="module")
def network() -> Iterator[netns.Network]:
    with netns.Network(NODES) as made:
        yield made


@pytest.fixture(scope="module")
def ranks(network: netns.Network) -> Iterator[LocalRanks]:
    with LocalRanks(NODES, prefixes=network.prefixes) as crew:
        yield crew


@pytest.fixture(autouse=True)
def healed(network: netns.Network) -> Iterator[None]:
    network.heal()
    yield
    network.heal()


def probe(ranks: LocalRanks, network: netns.Network, tier: Tier = Tier.QUICK) -> ProbeResult:
    return drive(ranks, About(tier=tier), LIMITS, addresses=network.addresses)


def probe_until(ranks: LocalRanks, network: netns.Network, shown: Callable[[ProbeResult], bool]) -> ProbeResult:
    """Again and again: on a machine that is busy with something else a probe's processes wait, and show nothing."""
    end = time.monotonic() + 150
    while not shown(result := probe(ranks, network)) and time.monotonic() < end:
        pass
    return result


def named(result: ProbeResult) -> set[tuple[str, str]]:
    return {(f.node, f.check) for f in result.findings if f.verdict.bad}


def links(result: ProbeResult) -> list[Finding]:
    return [f for f in result.findings if f.check == "link" and f.verdict is not Verdict.PASS]


@pytest.mark.long
def test_a_healthy_network(ranks: LocalRanks, network: netns.Network) -> None:
    result = probe(ranks, network)
    assert named(result) == set()
    assert {f.verdict for f in result.findings if f.check in ("link_node", "link_all")} == {Verdict.PASS}


@pytest.mark.long
def test_unreachable_node_is_named(ranks: LocalRanks, network: netns.Network) -> None:
    for other in NODES[1:]:
        network.drop("n0", other)
    assert named(probe(ranks, network)) == {("n0", "link_node")}


@pytest.mark.long
def test_a_link_that_drops_is_named_and_its_nodes_stay(ranks: LocalRanks, network: netns.Network) -> None:
    network.drop("n1", "n2")
    result = probe(ranks, network)
    assert named(result) == set()
    assert {f.node for f in links(result) if "failed" in f.evidence} == {"n1", "n2"}
    assert not [f for f in result.findings if f.check == "link_answer" and f.verdict is not Verdict.PASS]


@pytest.mark.long
@pytest.mark.parametrize("sends", [True, False], ids=["sender", "receiver"])
def test_a_throttled_node_is_named_with_its_direction(ranks: LocalRanks, network: netns.Network, sends: bool) -> None:
    for other in ("n0", "n1", "n3"):
        network.throttle(*(("n2", other) if sends else (other, "n2")), "50mbit")
    result = probe_until(ranks, network, lambda result: bool(named(result)))
    assert named(result) == {("n2", "link_speed")}
    evidence = next(f.evidence for f in result.findings if f.verdict.bad)
    assert ("as a sender" if sends else "as a receiver") in evidence


def test_a_throttled_link_is_named_with_its_direction(ranks: LocalRanks, network: netns.Network) -> None:
    network.throttle("n0", "n1", "50mbit")
    result = probe_until(ranks, network, lambda result: bool(links(result)))
    assert named(result) == set()
    shown = {f.node: f.evidence for f in links(result)}
    assert shown["n0"].startswith("n0 to n1, slow in 2 of 2 meetings")
    assert shown["n1"] == shown["n0"]
