"""All runs' records together: active isolations, nodes that a new run avoids, repeat offenders."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.node_hazard import RECENT, Use
from transom_cli.health.finding import Verdict
from transom_cli.health.history.nodes import (
    CARRIED,
    REMEMBERED,
    HistoryLimits,
    NodeHistory,
    failures_elsewhere,
    fold,
    judge_history,
    poisson_tail,
    to_avoid,
    uses_after_return,
)
from transom_cli.health.history.records import (
    Attempt,
    Isolation,
    Lift,
    Over,
    Record,
    RunOver,
    from_json,
    to_json,
)

DAY = 86400.0
NOW = 1000 * DAY
XID = Isolation(
    NOW - 3600.0, "r1", "/runs/r1", "n3", "excluded", None, "node_fault", "xid", "FAIL", "Xid 79", "reboot", "GPU-5",
    "77",
)  # fmt: skip
SLOW = replace(XID, node="n4", until=NOW + 60.0, verdict="SUSPECT", check="gemm", serial="")
LOST = replace(XID, node="n5", how="drained", cause="node_lost", check="", serial="")


def ended(history: NodeHistory) -> dict[str, str]:
    return {s.isolation.node: s.ended for s in history.statuses}


@pytest.mark.parametrize(
    "record", [XID, Over(1.0, "r", "n1"), Attempt(9.0, "r", "7.0", 1.0, ("n1", "n2"), ("n1",), "x"), RunOver(1.0, "r"),
               Lift(1.0, "ann", ("n1",))], ids=lambda r: type(r).__name__,
)  # fmt: skip
def test_records_are_read_as_they_were_written(record: Record) -> None:
    assert from_json(to_json(record)) == record
    assert from_json({**to_json(record), "schema": 2}) is None
    assert from_json({**to_json(record), "wall": "soon"}) is None
    assert from_json({"schema": 1, "type": "Poem"}) is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (Over(NOW - 60, "r1", "n3"), {"n3": "over", "n4": "", "n5": ""}),
        (Over(NOW - 60, "r2", "n3"), {"n3": "", "n4": "", "n5": ""}),
        (Lift(NOW - 60, "ann", ("n4", "n5")), {"n3": "", "n4": "lifted", "n5": "lifted"}),
        (Lift(NOW - 60, "ann", ("n4", "n5"), "r2"), {"n3": "", "n4": "", "n5": ""}),
        (Lift(NOW - 7200, "ann", ("n3", "n4", "n5")), {"n3": "", "n4": "", "n5": ""}),  # before they were isolated
        (RunOver(NOW - 60, "r1"), {"n3": "", "n4": "run over", "n5": ""}),  # n3: new runs keep off; n5: Slurm does
    ],
)
def test_what_ends_an_isolation(record: Record, expected: dict[str, str]) -> None:
    assert ended(fold([XID, SLOW, LOST, record], NOW)) == expected


def test_suspicion_expires_and_a_lifted_exclusion_stays_lifted() -> None:
    assert ended(fold([SLOW], NOW + 61.0)) == {"n4": "expired"}
    assert ended(fold([SLOW, Lift(NOW, "ann", ("n4",))], NOW + 61.0)) == {"n4": "lifted"}
    assert ended(fold([SLOW, Lift(NOW, "ann", ("n4",)), Over(NOW + 9.0, "r1", "n4")], NOW + 61.0)) == {"n4": "lifted"}


def test_isolation_after_a_lift_is_active() -> None:
    again = replace(XID, wall=NOW - 10.0)
    assert ended(fold([XID, Lift(NOW - 60, "ann", ("n3",)), again], NOW)) == {"n3": ""}


def test_the_order_of_files_does_not_matter() -> None:
    records = [XID, SLOW, LOST, Lift(NOW - 60, "ann", ("n3",)), RunOver(NOW - 30, "r1")]
    assert fold(reversed(records), NOW) == fold(records, NOW)


def test_records_older_than_ninety_days_are_ignored() -> None:
    old = [replace(XID, wall=NOW - REMEMBERED - 1), Attempt(NOW - REMEMBERED - 1, "r", "7.0", 0.0, ("n1",), ("n1",))]
    assert fold(old, NOW) == NodeHistory()


def used(run: str, attempt: str, began: float, ended: float, *blamed: str) -> Attempt:
    return Attempt(ended, run, attempt, began, ("n1", "n2"), blamed)


HOUR = 3600.0
PAST = [
    used("r1", "7.0", 0.0, 10 * HOUR, "n1"),
    used("r1", "7.1", 11 * HOUR, 13 * HOUR),  # n1 returns here
    used("r2", "8.0", 14 * HOUR, 15 * HOUR, "n1"),  # and fails after 4 h
    used("r2", "8.0", 14 * HOUR, 15 * HOUR, "n1"),  # recorded twice
    used("r1", "7.2", 20 * HOUR, 21 * HOUR, "n2"),
]


def test_use_of_a_node_counts_from_its_return_after_each_failure() -> None:
    first = (Use(2 * HOUR, False, 0.0, 0), Use(4 * HOUR, True, 3 * HOUR, 0))
    assert uses_after_return(PAST) == (*first, Use(HOUR, False, 0.0, 1))
    assert uses_after_return([XID, SLOW, *PAST[:1]]) == (), "no node has returned"


def test_attempt_that_ran_beside_the_failed_one_is_no_return() -> None:
    beside = used("r3", "9.0", 9 * HOUR, 30 * HOUR)
    assert uses_after_return([PAST[0], beside]) == ()


def test_failures_in_other_runs_count_for_a_month() -> None:
    now = 16 * HOUR
    assert failures_elsewhere(PAST, "n1", "r3", now) == 2
    assert failures_elsewhere(PAST, "n1", "r1", now) == 1
    assert failures_elsewhere(PAST, "n3", "r3", now) == 0
    assert failures_elsewhere(PAST, "n1", "r3", now + RECENT) == 0


def test_new_runs_avoid_proven_faults_that_could_not_be_drained() -> None:
    drained = replace(XID, node="n6", how="drained")
    seen_by_run = replace(XID, node="n7", check="")  # a lost node: Slurm keeps it away by itself
    records = [XID, SLOW, LOST, drained, seen_by_run]
    assert [i.node for i in to_avoid(fold(records, NOW), NOW)] == ["n3"]
    records.append(RunOver(NOW - 60, "r1"))
    assert [i.node for i in to_avoid(fold(records, NOW), NOW)] == ["n3"], "also when its run is over"
    later = NOW - 3600.0 + CARRIED + 1.0
    assert to_avoid(fold(records, later), later) == (), "for a week"
    records.append(Lift(NOW - 30, "ann", ("n3",)))
    assert to_avoid(fold(records, NOW), NOW) == ()


def test_new_runs_avoid_a_node_for_at_most_a_week() -> None:
    later = NOW - 3600.0 + CARRIED + 1.0
    history = fold([XID], later)
    assert ended(history) == {"n3": ""} and to_avoid(history, later) == ()


def attempts(hours: dict[str, float], failures: dict[str, int], runs: int = 1) -> list[Record]:
    """Attempts on one node each, as many as it had failures, which together make up its hours."""
    records: list[Record] = []
    for node, total in hours.items():
        failed = failures.get(node, 0)
        parts = max(failed, 1)
        for i in range(parts):
            blamed = (node,) if i < failed else ()
            wall = NOW - 1000.0 - i
            records.append(
                Attempt(
                    wall, f"r{i % runs}", f"{node}.{i}", wall - total / parts * 3600, (node,), blamed, "rank_killed"
                )
            )
    return records


def test_a_node_that_fails_beyond_the_rate_of_all_is_a_repeat_offender() -> None:
    hours = {f"n{i}": 100.0 for i in range(20)}
    records = attempts(hours, {"n3": 4, "n5": 1, "n9": 1}, runs=2)
    (offender,) = judge_history(fold(records, NOW), HistoryLimits())
    assert (offender.check, offender.node, offender.verdict) == ("history", "n3", Verdict.MONITOR)
    assert "at fault in 4 attempts of 2 runs in 100 h of use" in offender.evidence
    assert "0.3 expected at the rate of all 20 nodes (chance 0.0003)" in offender.evidence


def test_many_failures_of_a_node_that_ran_much_are_none() -> None:
    hours = {"n0": 900.0, **{f"n{i}": 10.0 for i in range(1, 20)}}
    assert judge_history(fold(attempts(hours, {"n0": 4, "n5": 1}), NOW), HistoryLimits()) == ()


def test_a_job_that_fails_everywhere_has_no_repeat_offenders() -> None:
    hours = {f"n{i}": 50.0 for i in range(8)}
    assert judge_history(fold(attempts(hours, dict.fromkeys(hours, 5)), NOW), HistoryLimits()) == ()


def test_one_failure_is_never_enough() -> None:
    hours = {f"n{i}": 1000.0 for i in range(500)}
    assert judge_history(fold(attempts(hours, {"n3": 1}), NOW), HistoryLimits()) == ()
    (found,) = judge_history(fold(attempts(hours, {"n3": 2}), NOW), HistoryLimits())
    assert found.node == "n3"
    assert judge_history(fold(attempts(hours, {"n3": 2}), NOW), HistoryLimits(history_failures=3)) == ()


def test_an_attempt_that_two_operators_wrote_of_counts_once() -> None:
    one = Attempt(NOW - 10, "r", "7.0", NOW - 3610, ("n1",), ("n1",))
    (use,) = fold([one, replace(one, wall=NOW - 9)], NOW).uses
    assert use.failures == (("r", "7.0"),) and use.hours == pytest.approx(1.0, rel=0.01)


def test_a_device_that_was_moved_is_seen_again() -> None:
    records = [XID, replace(XID, wall=NOW - 60, run="r2", node="n8")]
    (found,) = judge_history(fold(records, NOW), HistoryLimits())
    assert (found.serial, found.node, found.verdict) == ("77", "n8", Verdict.MONITOR)
    assert "serial 77 was isolated in 2 places: n3 GPU-5 (xid), n8 GPU-5 (xid)" in found.evidence
    assert judge_history(fold([XID, replace(XID, wall=NOW - 60, run="r2")], NOW), HistoryLimits()) == (), (
        "two runs, one place"
    )


@given(st.integers(0, 40), st.floats(0.001, 30.0))
def test_the_poisson_tail_is_the_sum_of_its_terms(count: int, mean: float) -> None:
    direct = 1.0 - math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
    assert poisson_tail(count, mean) == pytest.approx(direct, abs=1e-9)
    assert poisson_tail(count, mean) >= poisson_tail(count + 1, mean) > 0.0


def test_the_poisson_tail_at_its_ends() -> None:
    assert poisson_tail(0, 5.0) == 1.0 and poisson_tail(3, 0.0) == 0.0
    assert poisson_tail(20, 0.5) == pytest.approx(2.4368e-25, rel=1e-3), "not lost beside 1"
