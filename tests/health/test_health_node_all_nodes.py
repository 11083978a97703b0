"""What is said of one node, seen beside all the others: shared trouble, and nodes that differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import codec
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.alike import judge_alike
from transom_cli.health.node.facts import FactsLimits, FactsReading, by_node, judge_facts, read_facts
from transom_cli.health.node.shared import shared_trouble

S, M, P, U, F = Verdict.SUSPECT, Verdict.MONITOR, Verdict.PASS, Verdict.UNKNOWN, Verdict.FAIL


def told(check: str, **verdicts: Verdict) -> dict[str, tuple[Verdict, str]]:
    findings = {node: (Finding(check, verdict, node, "words"),) for node, verdict in verdicts.items()}
    return {node: (found.verdict, found.evidence) for node, (found,) in shared_trouble(findings).items()}


def test_a_file_server_is_no_nodes_fault() -> None:
    found = told("mount:/shared", a=S, b=S, c=S, d=P)
    said = "words (on 3 of 4 nodes: the file system's, not the node's)"
    assert found == {"a": (M, said), "b": (M, said), "c": (M, said), "d": (P, "words")}
    assert told("run_dir", a=S, b=S)["a"][0] is M


def test_a_node_that_is_alone_with_it_is_suspected() -> None:
    assert told("write:/shared", a=S, b=P)["a"] == (S, "words")
    assert told("write:/shared", a=S, b=S, c=P, d=P)["a"] == (S, "words"), "half is not most"
    assert told("write:/shared", a=S)["a"] == (S, "words")
    assert told("write:/shared", a=S, b=U, c=U)["a"] == (S, "words"), "those that were not asked count for nobody"


def test_a_server_that_many_wait_for_is_slow_and_whoever_waits_longest_is_not_to_blame() -> None:
    """A thousand nodes that write at once: most are done within seconds, a few are not."""
    assert told("mount:/shared", a=S, b=S, c=M, d=M, e=P, f=P, g=P)["a"] == (
        M,
        "words (2 other nodes had to wait for it too: the file system's, not the node's)",
    )
    assert told("mount:/shared", a=S, b=M, c=P, d=P)["a"] == (S, "words"), "one that was slow is chance"
    assert told("mount:/tmp", a=S, b=M, c=M, d=P)["a"] == (S, "words"), "each has its own"
    assert told("run_dir", a=S, b=M, c=M, d=P)["a"][0] is M
    one = {
        "a": (Finding("mount:/x", P, "a", "answers"), Finding("write:/x", S, "a", "`fsync` hangs", Remedy.AVOID)),
        **{n: (Finding("mount:/x", M, n, "it took 7 s"),) for n in "bc"},
        "d": (Finding("mount:/x", P, "d", "answers"),),
    }
    assert [f.verdict for f in shared_trouble(one)["a"]] == [P, M]


def test_gpus_that_are_alike_on_most_nodes_are_no_nodes_fault() -> None:
    for check in ("gpu_count", "gpu_clocks", "gpu_fabric", "gpu_lost", "gpu_leftover"):
        assert told(check, a=S, b=S, c=P)["a"][0] is M, check
    several = {
        n: (Finding("gpu_clocks", S, n, "slow", device="GPU-1"), Finding("gpu_clocks", M, n, "warm", device="GPU-2"))
        for n in "ab"
    }
    assert [f.verdict for f in shared_trouble(several)["a"]] == [M, M], "a node's worst device counts"


def test_what_nodes_do_not_share_is_theirs() -> None:
    assert told("ecc", a=S, b=S, c=S)["a"] == (S, "words")
    assert told("mount:/shared", a=F, b=F, c=S)["a"] == (F, "words"), "proof stays"


def test_what_each_has_for_itself_is_called_so() -> None:
    assert told("room:/tmp", a=S, b=S)["a"] == (M, "words (on 2 of 2 nodes: what they have in common, not the node's)")
    assert "what they have in common" in told("ib_state", a=S, b=S)["a"][1]


CHECKS = st.sampled_from(["mount:/x", "write:/x", "room:/x", "run_dir", "ib_state", "ecc", "host"])
NODES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.lists(st.tuples(CHECKS, st.sampled_from(Verdict)), unique_by=lambda x: x[0]),
    min_size=1,
)


@given(NODES)
def test_only_suspects_change_and_only_to_monitor(nodes: dict[str, list[tuple[str, Verdict]]]) -> None:
    before = {n: tuple(Finding(c, v, n, "words", Remedy.AVOID) for c, v in found) for n, found in nodes.items()}
    after = shared_trouble(before)
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
    assert shared_trouble(after) == after or any(f.verdict is F for of in before.values() for f in of)


def test_the_odd_one_out_is_named() -> None:
    facts = {node: {"driver": "570.86", "kernel": "6.1"} for node in "abcd"}
    facts["c"] = {"driver": "570.90", "kernel": "6.1"}
    found = {f.node: f for f in judge_alike(facts)}
    assert (found["c"].verdict, found["c"].remedy) == (M, Remedy.SETUP)
    assert found["c"].evidence == "driver is 570.90, on 3 of 4 nodes 570.86"
    assert found["a"].verdict is P and found["a"].evidence == "in 2 facts as the other nodes (4 in all)"


def test_without_a_majority_all_hear_of_it_once() -> None:
    found = judge_alike({"a": {"cpu": "x", "driver": "1"}, "b": {"cpu": "y", "driver": "1"}})
    assert [f.evidence for f in found] == ["cpu differs over the nodes: x (1), y (1)"] * 2
    assert {f.verdict for f in found} == {M}


def test_what_a_node_does_not_tell_makes_it_no_odd_one() -> None:
    facts = {"a": {"gpu": "H100"}, "b": {"gpu": "H100"}, "c": {}}
    assert {f.verdict for f in judge_alike(facts)} == {P}
    assert judge_alike({}) == ()
    assert [f.verdict for f in judge_alike({"a": {"gpu": "H100"}})] == [P]


def test_this_machine_says_what_it_is() -> None:
    about = About(folders=("/dev/shm/x", "/"))
    reading = read_facts(about)
    assert codec.build(FactsReading, codec.plain(reading)) == reading
    facts = dict(reading.facts)
    assert {"kernel", "cpus", "memory", "python", "machine"} <= set(facts)
    assert facts["file system of /dev/shm/x"] == "tmpfs"
    (found,) = judge_facts("n1", reading, about, FactsLimits())
    assert found.verdict is P and facts["kernel"] in found.evidence
    assert by_node({"n1": [reading, FactsReading((("driver", "1"),))]})["n1"] == {**facts, "driver": "1"}
    assert {f.verdict for f in judge_alike(by_node({"n1": [reading], "n2": [reading]}))} == {P}
