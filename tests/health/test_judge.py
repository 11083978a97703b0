"""Findings of several nodes compared: shared trouble is no node's fault, and nodes that differ are named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import codec
from transom_cli.health.check import About, NoLimits
from transom_cli.health.checks.facts import FactsReading, judge_alike, judge_facts, read_facts
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.judge import demote_shared_trouble

S, M, P, U, F = Verdict.SUSPECT, Verdict.MONITOR, Verdict.PASS, Verdict.UNKNOWN, Verdict.FAIL


def demoted(check: str, **verdicts: Verdict) -> dict[str, tuple[Verdict, str]]:
    findings = {node: (Finding(check, verdict, node, "words"),) for node, verdict in verdicts.items()}
    return {node: (found.verdict, found.evidence) for node, (found,) in demote_shared_trouble(findings).items()}


def test_trouble_of_a_file_server_is_no_nodes_fault() -> None:
    found = demoted("mount:/shared", a=S, b=S, c=S, d=P)
    said = "words (on 3 of 4 nodes, so the file system is at fault, not the node)"
    assert found == {"a": (M, said), "b": (M, said), "c": (M, said), "d": (P, "words")}
    assert demoted("run_dir", a=S, b=S)["a"][0] is M


def test_node_with_a_unique_problem_is_suspected() -> None:
    assert demoted("write:/shared", a=S, b=P)["a"] == (S, "words")
    assert demoted("write:/shared", a=S, b=S, c=P, d=P)["a"] == (S, "words"), "half is not most"
    assert demoted("write:/shared", a=S)["a"] == (S, "words")
    assert demoted("write:/shared", a=S, b=U, c=U)["a"] == (S, "words"), "those that were not asked count for nobody"


def test_node_that_waits_longest_for_a_slow_server_is_not_blamed() -> None:
    """When a thousand nodes write at once, most finish within seconds and a few do not."""
    assert demoted("mount:/shared", a=S, b=S, c=M, d=M, e=P, f=P, g=P)["a"] == (
        M,
        "words (2 other nodes waited for it too, so the file system is slow, not the node)",
    )
    assert demoted("mount:/shared", a=S, b=M, c=P, d=P)["a"] == (S, "words"), "one that was slow is chance"
    assert demoted("mount:/tmp", a=S, b=M, c=M, d=P)["a"] == (S, "words"), "each has its own"
    assert demoted("run_dir", a=S, b=M, c=M, d=P)["a"][0] is M
    one = {
        "a": (Finding("mount:/x", P, "a", "answers"), Finding("write:/x", S, "a", "`fsync` hangs", Remedy.AVOID)),
        **{n: (Finding("mount:/x", M, n, "it took 7 s"),) for n in "bc"},
        "d": (Finding("mount:/x", P, "d", "answers"),),
    }
    assert [f.verdict for f in demote_shared_trouble(one)["a"]] == [P, M]


def test_gpu_state_that_most_nodes_share_is_no_nodes_fault() -> None:
    for check in ("gpu_count", "gpu_clocks", "gpu_fabric", "gpu_lost", "gpu_leftover"):
        assert demoted(check, a=S, b=S, c=P)["a"][0] is M, check
    several = {
        n: (Finding("gpu_clocks", S, n, "slow", device="GPU-1"), Finding("gpu_clocks", M, n, "warm", device="GPU-2"))
        for n in "ab"
    }
    assert [f.verdict for f in demote_shared_trouble(several)["a"]] == [M, M], "a node's worst device counts"


def test_findings_about_local_hardware_stay() -> None:
    assert demoted("ecc", a=S, b=S, c=S)["a"] == (S, "words")
    assert demoted("mount:/shared", a=F, b=F, c=S)["a"] == (F, "words"), "proof stays"


def test_shared_cause_of_local_trouble_is_named() -> None:
    assert demoted("room:/tmp", a=S, b=S)["a"] == (M, "words (on 2 of 2 nodes, so the cause is shared, not the node)")
    assert "the cause is shared" in demoted("ib_state", a=S, b=S)["a"][1]


CHECKS = st.sampled_from(["mount:/x", "write:/x", "room:/x", "run_dir", "ib_state", "ecc", "host"])
NODES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.lists(st.tuples(CHECKS, st.sampled_from(Verdict)), unique_by=lambda x: x[0]),
    min_size=1,
)


@given(NODES)
def test_only_suspects_change_and_only_to_monitor(nodes: dict[str, list[tuple[str, Verdict]]]) -> None:
    before = {n: tuple(Finding(c, v, n, "words", Remedy.AVOID) for c, v in found) for n, found in nodes.items()}
    after = demote_shared_trouble(before)
    assert list(after) == list(before)
    for node, found in after.items():
        assert [f.check for f in found] == [f.check for f in before[node]]
        for was, now in zip(before[node], found, strict=True):
            assert was == now or (was.verdict, now.verdict) == (S, M)
            alike = [f for of in before.values() for f in of if f.check == was.check and f.verdict.bad]
            slow = [n for n, of in after.items() if n != node for f in of if f.check == "mount:/x" and f.verdict is M]
            assert (
                was == now
                or len(alike) >= 2
                or (was.check in ("mount:/x", "write:/x") and len(slow) >= 2)
                or (was.check == "run_dir")
            )
    assert demote_shared_trouble(after) == after or any(f.verdict is F for of in before.values() for f in of)


def test_node_that_differs_from_the_others_is_named() -> None:
    facts = {node: {"driver": "570.86", "kernel": "6.1"} for node in "abcd"}
    facts["c"] = {"driver": "570.90", "kernel": "6.1"}
    found = {f.node: f for f in judge_alike(facts)}
    assert (found["c"].verdict, found["c"].remedy) == (M, Remedy.SETUP)
    assert found["c"].evidence == "driver is 570.90; 3 of 4 nodes have 570.86"
    assert found["a"].verdict is P and found["a"].evidence == "2 facts are the same as on the other nodes (4 in all)"


def test_without_a_majority_every_node_gets_the_finding() -> None:
    found = judge_alike({"a": {"cpu": "x", "driver": "1"}, "b": {"cpu": "y", "driver": "1"}})
    assert [f.evidence for f in found] == ["cpu differs between the nodes: x (1), y (1)"] * 2
    assert {f.verdict for f in found} == {M}


def test_missing_fact_is_not_a_difference() -> None:
    facts = {"a": {"gpu": "H100"}, "b": {"gpu": "H100"}, "c": {}}
    assert {f.verdict for f in judge_alike(facts)} == {P}
    assert judge_alike({}) == ()
    assert [f.verdict for f in judge_alike({"a": {"gpu": "H100"}})] == [P]


def test_facts_of_this_machine_are_read() -> None:
    about = About(folders=("/dev/shm/x", "/"))
    reading = read_facts(about)
    assert codec.build(FactsReading, codec.plain(reading)) == reading
    facts = dict(reading.facts)
    assert {"kernel", "cpus", "memory", "python", "machine"} <= set(facts)
    assert facts["file system of /dev/shm/x"] == "tmpfs"
    (found,) = judge_facts("n1", reading, about, NoLimits())
    assert found.verdict is P and facts["kernel"] in found.evidence
    assert {f.verdict for f in judge_alike({"n1": facts, "n2": facts})} == {P}
