"""The judge of chaos runs: what is well passes, and every invariant can fail."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from chaos_judge import INVARIANTS, Made, Readings, Resumed, judge

KILLED = Made("node-kill", "node2", 9.0, node="node2")
WELL = Readings(
    made=(Made("rank-kill", "rank 1", 5.0), KILLED),
    took=40.0,
    bound=300.0,
    phase="done",
    exit_code=0,
    verdict="",
    wanted="a" * 64,
    sha256="a" * 64,
    newest=(-1, 5, 10, 15),
    resumed=(Resumed("7.0.0", -1, 0), Resumed("7.1.0", 10, 10)),
    drained=("node2",),
)
HELD = replace(WELL, phase="held", exit_code=21, sha256="")
CAPPED = "node1, node3, node4 lost: no slurmd; not isolated: that would be more than 2 nodes in 60 minutes"


def test_healthy_run_violates_nothing() -> None:
    assert judge(WELL) == ()


@pytest.mark.parametrize(
    ("change", "invariant", "words"),
    [
        ({"exit_code": None, "phase": "recovering"}, "ends", "not over after 300 s: recovering"),
        ({"operator_lost": "OSError: no"}, "ends", "the operator ended by itself: OSError: no"),
        ({"sha256": "b" * 64}, "same result", "the final state is bbbbbbbbbbbbbbbb, the uninterrupted run's is aaaa"),
        ({"sha256": ""}, "same result", "done, but without a final state"),
        ({"exit_code": 21, "phase": "held", "verdict": CAPPED}, "truthful reason", "nothing that was done to it"),
        ({"exit_code": 1, "phase": "failed"}, "truthful reason", "no reason given"),
        ({"newest": (-1, 10, 5)}, "durable checkpoints", "the newest good checkpoint was step 10, and then step 5"),
        ({"newest": (5, -1)}, "durable checkpoints", "was step 5, and then step -1"),
        ({"damaged": "x is missing"}, "durable checkpoints", "step 15, is not good at the end: x is missing"),
        ({"resumed": (Resumed("7.1.0", 10, 5),)}, "durable checkpoints", "trains from step 5; step 10 was durable"),
        ({"drained": ("node2", "node3")}, "healthy nodes", "node3 was drained, and nothing had been done to it"),
        ({"left": ("pid 9 of job 7",)}, "nothing left", "left behind: pid 9 of job 7"),
        ({"operators": ("pid 9",)}, "nothing left", "an operator still runs: pid 9"),
        ({"unended": ("7_RUNNING",)}, "nothing left", "a job still exists: 7_RUNNING"),
        ({"together": ("7_RUNNING, 8_RUNNING",)}, "one job at once", "7_RUNNING, 8_RUNNING"),
        ({"unexplained": ("7.0.1 (standby)",)}, "fallback with a reason", "7.0.1 (standby)"),
    ],
)
def test_every_invariant_can_fail(change: dict[str, object], invariant: str, words: str) -> None:
    found = judge(replace(WELL, **change))  # type: ignore[arg-type]
    assert [violation.invariant for violation in found] == [invariant] and invariant in INVARIANTS
    assert words in found[0].words


def test_all_violations_are_reported() -> None:
    found = judge(replace(WELL, drained=("node1", "node1", "node3"), newest=(10, 5, 0)))
    assert [violation.invariant for violation in found] == ["durable checkpoints"] * 2 + ["healthy nodes"] * 2


@pytest.mark.parametrize(
    ("verdict", "made", "good"),
    [
        (CAPPED, [Made("node-stop", n, 1.0, node=n) for n in ("node1", "node3", "node4")], True),
        (CAPPED, [Made("node-stop", "node1", 1.0, node="node1"), Made("node-kill", "node1", 2.0, node="node1")], False),
        ("a node cannot see or write the run directory (rank 0)", [Made("disk-readonly", "d", 1.0)], True),
        ("a node cannot see or write the run directory (rank 0)", [KILLED], False),
        ("restarted 3 times without progress beyond step 5; last: x", [KILLED] * 4, True),
        ("restarted 3 times without progress beyond step 5; last: x", [KILLED] * 3, False),
        ("Slurm has forgotten the job, and nothing tells how it ended", [Made("controller-kill", "c", 1.0)], True),
        ("Slurm has forgotten the job, and nothing tells how it ended", [KILLED], False),
        ("checkpoints exist, but none of them restores", [Made("disk-full", "d", 1.0)] * 4, False),
    ],
)
def test_a_stop_needs_a_reason_that_its_faults_explain(verdict: str, made: list[Made], good: bool) -> None:
    found = judge(replace(HELD, verdict=verdict, made=tuple(made), drained=()))
    assert [violation.invariant for violation in found] == ([] if good else ["truthful reason"])
