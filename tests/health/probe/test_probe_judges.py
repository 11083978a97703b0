"""The judges one by one on few nodes: which node is blamed, and with which evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transom_cli.health.check import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe import bits as exact
from transom_cli.health.probe.bits import judge_bits
from transom_cli.health.probe.judge import demote_common, judge_answers, judge_probe, one_per_check
from transom_cli.health.probe.matrix import Cell, blame, matrix, meetings
from transom_cli.health.probe.messages import DONE, Computed, Hello, Linked, ProbeReading, Sent, Silent
from transom_cli.health.probe.plan import Outcome, ProbeLimits
from transom_cli.health.probe.speed import Speed, again, judge_speed, learn, speed

LIMITS = ProbeLimits()
RIGHT = exact.CPU[0].name
F, S, M, U, P = Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR, Verdict.UNKNOWN, Verdict.PASS


def reading(*looks: tuple[Computed, ...], kinds: dict[str, str] | None = None, **parts: object) -> ProbeReading:
    nodes = tuple(dict.fromkeys(one.node for look in looks for one in look))
    hellos = tuple(Hello(node, 0, kind=(kinds or {}).get(node, "chip"), versions=(("torch", "2"),)) for node in nodes)
    return ProbeReading(nodes, hellos, looks, **parts)  # type: ignore[arg-type]


def bits(**digests: str) -> ProbeReading:
    """One digest of the kernel "gemm" by node."""
    return reading(tuple(Computed(node, 0, 1, (("gemm", digest),), repeats=9) for node, digest in digests.items()))


def verdicts(findings: tuple[Finding, ...], check: str) -> dict[str, Verdict]:
    return {finding.node: finding.verdict for finding in findings if finding.check == check}


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ("aaa", (P, P, P)),
        ("aab", (P, P, F)),
        ("aaab", (P, P, P, F)),
        ("aaabb", (P, P, P, M, M)),  # two chips do not break alike: they were set up differently
        ("aaabc", (P, P, P, M, M)),
        ("aabb", (M, M, M, M)),
        ("abc", (M, M, M)),
        ("ab", (M, M)),
        ("a", (P,)),
    ],
)
def test_single_device_with_other_bits_is_at_fault(digests: str, expected: tuple[Verdict, ...]) -> None:
    found = verdicts(judge_bits(bits(**{f"n{i}": digest for i, digest in enumerate(digests)})), "compute_digest")
    assert tuple(found.values()) == expected


def test_devices_of_another_kind_have_no_say() -> None:
    answers = tuple(Computed(f"n{i}", 0, 1, (("gemm", digest),)) for i, digest in enumerate("aab"))
    found = judge_bits(reading(answers, kinds={"n2": "another chip"}))
    assert verdicts(found, "compute_digest") == {"n0": P, "n1": P, "n2": P}
    assert next(f for f in found if f.node == "n2" and f.check == "compute_digest").evidence.startswith("no other")


def test_a_wrong_sum_is_proven_alone_but_not_when_others_are_wrong_alike() -> None:
    one = reading((Computed("n0", 0, 1, ((RIGHT, "bad"),)),))
    alone = next(f for f in judge_bits(one) if f.check == "compute_exact")
    assert (alone.verdict, alone.remedy) == (F, Remedy.REPAIR)
    assert alone.evidence == f"{RIGHT}: the result's digest is bad, right is {exact.ANSWERS[RIGHT]}"
    both = reading(tuple(Computed(node, 0, 1, ((RIGHT, "bad"),)) for node in ("n0", "n1")))
    assert verdicts(judge_bits(both), "compute_exact") == {"n0": U, "n1": U}


def test_device_with_varying_results_is_faulty() -> None:
    found = judge_bits(reading((Computed("n0", 0, 1, (("gemm", "a"),), repeats=50, differed=(("gemm", 2),)),)))
    finding = next(f for f in found if f.check == "compute_repeat")
    assert (finding.verdict, finding.remedy) == (F, Remedy.REPAIR)
    assert finding.evidence == "some of 50 repetitions gave other bits than the first: gemm in 2"


def rates(**by_node: float) -> tuple[Computed, ...]:
    return tuple(Computed(node, 0, 1, rates=(("gemm", rate),), repeats=9) for node, rate in by_node.items())


def test_slow_and_odd_are_learned_from_the_job() -> None:
    quiet = learn((100.0, 101.0, 99.0, 100.0))
    noisy = learn((100.0, 140.0, 70.0, 110.0))
    assert quiet is not None and noisy is not None
    assert [speed(x, quiet, LIMITS) for x in (95.0, 85.0, 60.0)] == [Speed.USUAL, Speed.ODD, Speed.SLOW]
    assert speed(80.0, noisy, LIMITS) is Speed.USUAL
    assert speed(1.0, noisy, LIMITS) is Speed.SLOW
    assert learn((100.0, 1.0)) is None


def test_slowness_is_relative_to_simultaneous_measurements() -> None:
    first = rates(n0=100.0, n1=100.0, n2=100.0, n3=30.0)
    assert again(reading(first), LIMITS) == ("n3", "n0", "n1")
    beside = rates(n3=30.0, n0=50.0, n1=50.0)  # all were slower then: it is at 60 % of them
    assert verdicts(judge_speed(reading(first, beside), LIMITS), "compute_speed")["n3"] is M
    assert again(reading(first, beside), LIMITS) == ()
    still = rates(n3=30.0, n0=90.0, n1=95.0)
    assert again(reading(first, still), LIMITS) == ("n3", "n0", "n1")
    assert verdicts(judge_speed(reading(first, still), LIMITS), "compute_speed")["n3"] is M
    sure = judge_speed(reading(first, still, still), LIMITS)
    assert verdicts(sure, "compute_speed") == {"n0": P, "n1": P, "n2": P, "n3": S}
    assert again(reading(first, still, still), LIMITS) == ()
    assert "gemm: 30 /s (median of the others: 100 /s); again 30 /s" in next(f.evidence for f in sure if f.node == "n3")


def test_of_two_the_slower_one_is_not_suspected() -> None:
    look = rates(n0=100.0, n1=30.0)
    assert again(reading(look), LIMITS) == ()
    assert verdicts(judge_speed(reading(look), LIMITS), "compute_speed") == {"n0": P, "n1": M}


def test_busy_node_is_odd_unless_all_nodes_are_busy() -> None:
    look = tuple(replace(one, starved=0.6 if one.node == "n2" else 0.1) for one in rates(n0=99.0, n1=100.0, n2=101.0))
    found = next(f for f in judge_speed(reading(look), LIMITS) if f.node == "n2")
    assert (found.verdict, found.remedy) == (M, Remedy.WATCH)
    assert found.evidence == "it waited for a CPU 60% of the time, the median process 10%"
    busy = tuple(replace(one, starved=0.6) for one in look)
    assert set(verdicts(judge_speed(reading(busy), LIMITS), "compute_speed").values()) == {P}


def test_node_without_free_cpu_is_suspected_after_all_measurements() -> None:
    """A quota whose group cannot be seen from inside (a container), or somebody else on all its processors."""

    def starving(*nodes: str, share: float = 0.9, usual: float = 0.4) -> tuple[Computed, ...]:
        named = rates(**dict.fromkeys(nodes, 100.0))
        return tuple(replace(one, starved=share if one.node == "n3" else usual) for one in named)

    first, beside = starving("n0", "n1", "n2", "n3"), starving("n3", "n0", "n1")
    assert again(reading(first), LIMITS) == ("n3", "n0", "n1")
    assert verdicts(judge_speed(reading(first, beside), LIMITS), "compute_speed")["n3"] is M
    sure = judge_speed(reading(first, beside, beside), LIMITS)
    assert verdicts(sure, "compute_speed") == {"n0": P, "n1": P, "n2": P, "n3": S}
    shown = "it waited for a CPU 90% of the time (median of the others: 40%); again 90% of the time"
    assert next(f.evidence for f in sure if f.node == "n3").startswith(shown)
    busy = starving("n3", "n0", "n1", usual=0.6)  # all had to wait then
    assert verdicts(judge_speed(reading(first, busy), LIMITS), "compute_speed")["n3"] is M
    assert again(reading(first, busy), LIMITS) == ()
    assert again(reading(starving("n0", "n1", "n2", "n3", share=0.7, usual=0.1)), LIMITS) == ()


def cell(pair: str, how: Outcome = Outcome.WELL, rate: float = 1e9) -> Cell:
    return Cell(pair[0], pair[1], 0, how, rate, 1e-4)


def both(pair: str, how: Outcome = Outcome.WELL) -> list[Cell]:
    return [cell(pair, how), cell(pair[::-1], how)]


def test_who_only_met_bad_nodes_is_not_bad() -> None:
    """a failed with x and y, who failed with everyone; nobody else vouches for a."""
    cells = [
        *both("ax", Outcome.FAILED),
        *both("ay", Outcome.FAILED),
        *both("bx", Outcome.FAILED),
        *both("by", Outcome.FAILED),
    ]
    cells += [*both("cx", Outcome.FAILED), *both("cy", Outcome.FAILED), *both("bc")]
    found = blame("abcxy", cells, LIMITS.probe_hot)
    assert {node.node for node in found.nodes} == {"x", "y"}
    assert found.links == ()


def test_no_node_is_blamed_if_all_links_fail() -> None:
    cells = [one for two in ("ab", "cd", "ac", "bd") for one in both(two, Outcome.FAILED)]
    found = blame("abcd", cells, LIMITS.probe_hot)
    assert found.nodes == ()
    assert len(found.links) == 8


def test_links_of_the_worst_node_blame_no_other_node() -> None:
    """x hears nobody; a is slow towards b by itself, and towards x because of x."""
    cells = [*both("ab"), *both("bc"), *both("cd"), *both("ad")]
    cells = [c for c in cells if (c.src, c.dst) != ("a", "b")] + [cell("ab", Outcome.SLOW)]
    for other in "abcd":
        cells += [cell(f"{other}x", Outcome.SLOW), cell(f"x{other}")]
    cells = [c for c in cells if (c.src, c.dst) != ("a", "d")]
    found = blame("abcdx", cells, LIMITS.probe_hot)
    assert [(node.node, node.sends, node.receives) for node in found.nodes] == [("x", False, True)]
    assert [(link.src, link.dst) for link in found.links] == [("a", "b")]


def pair(first: str, second: str, number: int = 1, **of: float) -> tuple[Linked, Linked]:
    """Two that met; their rates by sender, 1 GB/s where none is given."""
    return (
        Linked(first, 0, number, "p", second, DONE, sent=Sent(second, 1e-4, of.get(first, 1e9))),
        Linked(second, 0, number, "p", first, DONE, sent=Sent(first, 1e-4, of.get(second, 1e9))),
    )


def test_noisy_network_marks_only_links_beyond_its_noise_as_slow() -> None:
    noisy = (*pair("a", "b", 1, a=0.3e9, b=0.35e9), *pair("c", "d", 2, c=1e9, d=1e9), *pair("e", "f", 3, e=3e9, f=3e9))
    assert not any(one.bad for one in matrix(noisy, LIMITS))
    calm = (*pair("a", "b", 1, a=0.3e9), *pair("c", "d", 2), *pair("e", "f", 3))
    assert [(one.src, one.dst) for one in matrix(calm, LIMITS) if one.bad] == [("a", "b")]
    assert not any(one.bad for one in matrix(calm[:2], LIMITS)), "of two nodes nothing is learned"


def test_process_without_cpu_proves_nothing_about_its_link() -> None:
    sender, receiver = pair("a", "b", 1, a=1e7)
    assert sender.sent is not None
    others = (*pair("c", "d", 2), *pair("e", "f", 3))
    assert any(one.bad for one in matrix((sender, receiver, *others), LIMITS))
    hungry_sender = replace(sender, sent=replace(sender.sent, starved=0.5))
    for two in ((hungry_sender, receiver), (sender, replace(receiver, starved=0.5))):
        assert not any(one.bad for one in matrix((*two, *others), LIMITS))
    assert any(one.bad for one in matrix((replace(sender, starved=0.5), receiver, *others), LIMITS)), "it sent well"


def test_better_of_two_measurements_counts() -> None:
    others = (*pair("c", "d", 2), *pair("e", "f", 3))
    cells = matrix((*pair("a", "b", 1, a=1e7), *pair("a", "b", 4, a=9e8), *others), LIMITS)
    found = next(one for one in cells if one.src == "a")
    assert (found.bad, found.times, found.rate) == (False, 2, 9e8)


def test_missing_answer_proves_nothing_about_the_partner() -> None:
    waited = Linked("a", 0, 1, "p", "b", "meeting", absent=(("b", 0),), error="did not arrive: b/0")
    assert matrix((waited,), LIMITS) == ()


def test_garbled_bytes_are_the_fault_of_one_direction() -> None:
    sender, receiver = pair("a", "b")
    cells = matrix((sender, Linked("b", 0, 1, "p", "a", DONE, sent=receiver.sent, garbled=True)), LIMITS)
    assert {(c.src, c.dst): c.outcome for c in cells} == {("a", "b"): Outcome.FAILED, ("b", "a"): Outcome.WELL}
    assert next(c.error for c in cells if c.bad) == "the received bytes differ from those sent"
    assert [met.outcome for met in meetings(cells)] == [Outcome.FAILED]


def test_answers_that_came_late_or_never() -> None:
    silent = (Silent("n0", 0, "compute 1", 9.8, late=True), Silent("n1", 0, "pairs 1", 6.0, "killed by signal 9"))
    found = judge_answers(reading(rates(n0=1.0, n1=1.0, n2=1.0), silent=silent))
    shown = {f.node: f for f in found if f.verdict is not P}
    assert (shown["n0"].verdict, shown["n0"].check) == (M, "compute_answer")
    assert shown["n0"].evidence == "compute 1: no answer in 9.8 s; it came later"
    assert (shown["n1"].verdict, shown["n1"].check) == (S, "link_answer")
    assert shown["n1"].evidence == "pairs 1: no answer in 6.0 s (killed by signal 9)"


def test_a_device_that_cannot_compute_unless_its_memory_is_taken() -> None:
    look = (Computed("n0", 0, 1, error="CUDA error: unspecified launch failure"), *rates(n1=1.0, n2=1.0))
    full = (Computed("n0", 0, 1, error="CUDA out of memory. Tried to allocate 2 GiB"), *rates(n1=1.0, n2=1.0))
    assert verdicts(judge_answers(reading(look)), "compute_answer") == {"n0": S, "n1": P, "n2": P}
    assert verdicts(judge_answers(reading(full)), "compute_answer")["n0"] is M


def test_versions_that_few_have_are_a_matter_of_setup() -> None:
    hellos = tuple(
        Hello(f"n{i}", 0, kind="chip", versions=(("torch", v),)) for i, v in enumerate(("2.13", "2.13", "2.6"))
    )
    found = [f for f in judge_answers(ProbeReading(("n0", "n1", "n2"), hellos)) if f.check == "probe_versions"]
    assert [(f.verdict, f.remedy) for f in found] == [(P, Remedy.NONE), (P, Remedy.NONE), (M, Remedy.SETUP)]
    assert found[2].evidence == "torch 2.6; 2 of 3 nodes have torch 2.13"


def test_one_finding_of_each_node_and_check_the_worst() -> None:
    these = [Finding("x", v, "n0", str(i)) for i, v in enumerate((P, M, S, M, P))]
    assert [f.evidence for f in one_per_check(these)] == ["2"]


def test_more_than_half_of_the_nodes_are_not_at_fault_by_themselves() -> None:
    of = [Finding("x", S, f"n{i}", "bad", Remedy.AVOID) for i in range(3)]
    assert {(f.verdict, f.remedy) for f in demote_common(of, 4, 0.5)} == {(U, Remedy.NONE)}
    assert {f.verdict for f in demote_common(of, 6, 0.5)} == {S}


def test_nothing_seen_is_unknown_for_everyone() -> None:
    found = judge_probe(ProbeReading(("n0", "n1")), About(), LIMITS)
    assert {f.verdict for f in found} == {U}
