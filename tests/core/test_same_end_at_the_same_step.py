"""A rank that ends at the same step each time: by the same exit code, or by the same signal on any node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transom_cli.config.load import load
from transom_cli.config.run_settings import rules_of
from transom_cli.core.crash_loop import CrashLoop, crash_loop
from transom_cli.core.diagnose import RunFacts, diagnose, judged, taken_in
from transom_cli.core.events import Decided, OutcomeSeen, RankExit, RecoverySeen
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator.relaunches import relaunched, reported
from transom_cli.core.operator.state import Job, Phase, Policy, State
from transom_cli.core.progress import Progress

RULES = rules_of(load(site=None, user=None))
NODES = ("n1", "n2", "n3", "n4")


def end(node: str, how: int = -9, *, rank: int = 1, step: int = 24, since_start: bool = False) -> RankExit:
    """how: the exit code, or below zero the signal."""
    code, signal = (how, None) if how >= 0 else (None, -how)
    return RankExit(rank, node, code, signal, 10.0, step, since_start)


def incident(number: int, exit: RankExit, log_category: str = "unknown", log_line: str = "") -> Incident:
    outcome = OutcomeSeen(0.0, "7.0", "failed", "", (exit,))
    known = {"log_category": log_category, "log_line": log_line, "since_start": exit.since_start}
    return Incident(f"i{number}", 7, 0, 100.0 * number, exit.step, outcome=outcome, ran=90.0, durable=20, **known)  # type: ignore[arg-type]


def judge(incidents: list[Incident], **facts: object) -> list[Incident]:
    """Judge one incident after the other, each with those before it."""
    past: list[Incident] = []
    for one in incidents:
        run = RunFacts(nodes=NODES, launched=True, max_step=24, incidents=tuple(past), rules=RULES, **facts)  # type: ignore[arg-type]
        past.append(replace(one, diagnosis=judged(diagnose(one, run), one, run, one.began)))
    return past


def diagnoses(*exits: RankExit, category: str = "unknown") -> list[Diagnosis]:
    past = judge([incident(n, one, category) for n, one in enumerate(exits)])
    return [one.diagnosis for one in past if one.diagnosis is not None]


@pytest.mark.parametrize("category", ["unknown", "host_oom"])
def test_signal_that_follows_the_rank_to_other_nodes_excludes_none_and_ends_the_run(category: str) -> None:
    found = diagnoses(end("n2"), end("n4"), end("n3"), category=category)
    assert [one.isolate for one in found] == ["none"] * 3
    assert [one.nodes for one in found[1:]] == [(), ()]
    assert [one.restart for one in found] == [True, True, False]
    assert "at this step on n2 too, so it is the program or its memory, not the node" in found[1].words
    assert "rule `same-signal`" in found[2].words
    assert "3 times in a row on 3 nodes, never past the same step" in found[2].words


def test_signal_on_the_same_node_blames_the_node_and_ends_nothing() -> None:
    found = diagnoses(*[end("n2")] * 4)
    assert [one.isolate for one in found] == ["none", "exclude", "exclude", "exclude"]
    assert "n2 for the second time" in found[1].words and all(one.restart for one in found)


def test_node_stays_after_the_one_before_it_was_excluded_for_the_same_signal() -> None:
    found = diagnoses(end("n2"), end("n2"), end("n4"))
    assert [one.isolate for one in found] == ["none", "exclude", "none"]
    assert [one.restart for one in found] == [True, True, False], "3 times on 2 nodes"


@pytest.mark.parametrize(
    "other",
    [end("n4", rank=2), end("n4", step=30), end("n4", step=21), end("n4", -11), end("n4", step=-1)],
    ids=["another rank", "a later step", "an earlier step", "another signal", "before the first step"],
)
def test_another_death_is_no_evidence_against_the_program(other: RankExit) -> None:
    found = diagnoses(end("n2"), other, end("n2"), other, end("n2"))
    assert [one.isolate for one in found] == ["none", "none", "exclude", "exclude", "exclude"]
    assert all(one.restart for one in found)


def test_device_fault_in_the_log_still_blames_each_node() -> None:
    found = diagnoses(end("n2"), end("n4"), end("n4"), category="gpu_hardware")
    assert [one.nodes for one in found] == [("n2",), ("n4",), ("n4",)] and all(one.restart for one in found)


def test_same_exit_code_at_the_same_step_is_a_crash_loop_and_blames_no_node() -> None:
    found = diagnoses(*[end("n2", 1)] * 3)
    assert [one.isolate for one in found] == ["none"] * 3
    assert [one.restart for one in found] == [True, True, False]
    assert "rule `same-exit-code`" in found[2].words and "3 times in a row, never past the same step" in found[2].words


@pytest.mark.parametrize(
    "exits",
    [
        [end("n1", code) for code in (1, 2, 1, 2)],
        [end("n1", 1, step=step) for step in (24, 30, 24, 30)],
        [end("n1", 137)] * 4,
        [end("n1", 120)] * 4,
        [end("n1", 1, step=-1)] * 4,
    ],
    ids=["other codes", "other steps", "a shell's code of a signal", "Python could not write", "before the first step"],
)
def test_other_exit_codes_are_restarted(exits: list[RankExit]) -> None:
    assert all(one.restart for one in diagnoses(*exits))


def test_error_of_transom_in_the_log_is_no_loop_of_the_program() -> None:
    line = "transom_cli.ckpt.errors.SaveFailed: step-20 was not saved"
    past = judge([incident(n, end("n1", 1), "unknown", line) for n in range(4)])
    assert all(one.diagnosis is not None and one.diagnosis.restart for one in past)


def test_launcher_counts_the_ends_in_the_attempts_before() -> None:
    before = taken_in(judge([incident(0, end("n2")), incident(1, end("n2"))]))
    (third,) = judge([incident(2, end("n4"))], taken=before)
    assert third.diagnosis is not None and not third.diagnosis.restart and third.diagnosis.nodes == ()
    run = RunFacts(nodes=NODES, launched=True, max_step=40, taken=before, rules=RULES)
    past_it = diagnose(incident(2, end("n4")), run)
    assert past_it is not None and past_it.nodes == ("n4",), "an earlier attempt got past the step"


def test_unchanged_script_with_a_newer_checkpoint_each_time_is_no_loop() -> None:
    ends = [end(node, how, since_start=True) for node, how in (("n2", 1), ("n4", 1), ("n3", 1))]
    past = judge([replace(incident(n, one), durable=100 * n) for n, one in enumerate(ends)])
    assert all(one.diagnosis is not None and one.diagnosis.restart for one in past)


def shown(*exits: RankExit, category: str) -> CrashLoop | None:
    """As the operator knows the failures that the launcher handles."""
    world = State(phase=Phase.TRAINING, job=Job(7, state="RUNNING", nodes=NODES), policy=Policy(rules=RULES))
    decided = Decided("anything-else", "relaunch", category, f"{category}/1")
    cause = "rank_failed" if category == "unknown" else "rank_killed"
    for n, one in enumerate(exits):
        world = replace(world, progress=Progress(step=24, max_step=24))
        world = reported(world, RecoverySeen(10.0 + n, "7.0", f"l{n + 1}", "seen", f"fault {n}"))
        found = RecoverySeen(10.5 + n, "7.0", f"l{n + 1}", "diagnosed", one.words, cause, (one.node,))
        world = reported(world, replace(found, decided=decided, step=24, end=one))
        world = relaunched(world, 11.0 + n, n + 1, "launched")
    assert crash_loop((*world.counting, world.incident), 40, RULES) is None, "this start got past the step"
    return crash_loop((*world.counting, world.incident), 3, RULES)


def test_crash_loop_is_shown_from_the_second_time() -> None:
    loop = shown(end("n1", 1), end("n1", 1), category="unknown")
    assert loop is not None and (loop.count, loop.step, loop.line, loop.ends_at) == (2, 24, "exit code 1", 3)
    loop = shown(end("n2"), end("n4"), end("n3"), category="process_crash")
    assert loop is not None
    assert (loop.count, loop.nodes, loop.line, loop.ends_at) == (3, 3, "rank 1 killed by SIGKILL", 3)
    assert shown(end("n2"), end("n2"), end("n2"), category="process_crash") is None, "it may be the node"
