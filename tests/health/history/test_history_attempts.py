"""From a run's events to the history's records: isolations with their evidence, attempts with hours and blame."""

from __future__ import annotations

from collections.abc import Sequence

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Request, State
from transom_cli.health.history.attempts import OpenAttempt, records_of
from transom_cli.health.history.records import Attempt, Isolation, Over, Record, RunOver

BEGUN = (
    ev.Started(0.0, 1),
    ev.Submitted(1.0, "submit", 7),
    ev.JobSeen(10.0, 7, 0, "RUNNING", nodes=("n1", "n2", "n3"), batch_host="n1"),
)
XID = ev.NodeFault("n2", "xid", "FAIL", "Xid 79", "reboot", "GPU-5", "77")
DISK = ev.NodeFault("n2", "disk", "SUSPECT", "96 % full", "avoid")


def told(events: Sequence[ev.Event]) -> list[Record]:
    state, telling, records = State(request=Request(num_nodes=3)), OpenAttempt("r1", "/runs/r1"), []
    for event in events:
        before = state
        state, _ = decide(before, event)
        telling, new = records_of(telling, before, event.at, state)
        records += new
    return records


PREFLIGHT = (
    *BEGUN,
    ev.OutcomeSeen(
        40.0, "7.0", "left", "2 of 3 passed", nodes=("n1", "n2", "n3"), cause="preflight", faults=(DISK, XID)
    ),
    ev.Isolated(41.0, "i1/isolate/n2", "n2", "excluded", "drain refused by Slurm: no"),
    ev.Restarted(50.0, "i1/restart", 7, 1, "requeued"),
)


def test_a_preflight_that_found_a_bad_node() -> None:
    isolation, attempt = told(PREFLIGHT)
    assert isolation == Isolation(
        41.0, "r1", "/runs/r1", "n2", "excluded", None, "preflight", "xid", "FAIL", "Xid 79", "reboot", "GPU-5", "77",
        "drain refused by Slurm: no",
    )  # fmt: skip
    assert attempt == Attempt(50.0, "r1", "7.0", 10.0, ("n1", "n2", "n3"), ("n2",), "preflight")


def test_nodes_isolated_earlier_are_not_blamed_again() -> None:
    outcome = ev.OutcomeSeen(40.0, "7.0", "left", "n3 isolated", cause="preflight", suspects=("n3",), faults=(XID,))
    records = told((*BEGUN, outcome, *PREFLIGHT[4:5], ev.Isolated(42.0, "i1/isolate/n3", "n3", "excluded", ""),
                    ev.Tick(60.0), ev.Restarted(70.0, "i1/restart", 7, 1, "requeued")))  # fmt: skip
    assert [r.blamed for r in records if isinstance(r, Attempt)] == [("n2",)]


def test_isolation_without_a_check_is_recorded_by_its_cause() -> None:
    records = told(
        (
            *BEGUN,
            ev.LaunchSeen(12.0, "7.0", 0, ("n1", "n2", "n3"), 3),
            ev.NodeSilent(30.0, "7.0", "n2", 11.0),
            ev.Probed(31.0, "i1/probe/n2/1", "n2", "FAIL", "no slurmd"),
            ev.Probed(32.0, "i1/probe/n2/2", "n2", "FAIL", "no slurmd"),
            ev.Isolated(33.0, "i1/isolate/n2", "n2", "drained", ""),
        )
    )
    (lost,) = (r for r in records if isinstance(r, Isolation))
    assert (lost.what, lost.verdict, lost.until, lost.evidence) == ("node_lost", "FAIL", None, "n2 lost: no slurmd")


def test_a_lift_and_the_end_of_the_run() -> None:
    more = (
        ev.JobSeen(51.0, 7, 1, "PENDING"),
        ev.LiftRequested(52.0, "ann", "lift-1.json", ("n2",)),
        ev.JobSeen(53.0, 7, 1, "RUNNING", nodes=("n1", "n3", "n4")),
        ev.JobSeen(3653.0, 7, 1, "COMPLETED", nodes=("n1", "n3", "n4")),
    )
    records = told((*PREFLIGHT, *more))
    assert records[2] == Over(52.0, "r1", "n2")
    assert records[3:] == [Attempt(3653.0, "r1", "7.1", 53.0, ("n1", "n3", "n4"), (), "done"), RunOver(3653.0, "r1")]


def test_an_attempt_ends_when_it_ran_no_more_and_not_when_the_next_one_begins() -> None:
    """A job that waits an hour in the queue used no node."""
    failed = ev.JobSeen(100.0, 7, 0, "TIMEOUT", nodes=("n1", "n2", "n3"))
    probes = [ev.Probed(101.0, f"i1/probe/n{i}/1", f"n{i}", "PASS", "up") for i in (1, 2, 3)]
    read = ev.Examined(101.0, "i1/examine", "unknown", "", "")
    waited = (*BEGUN, failed, *probes, read, ev.Tick(107.0), ev.Restarted(3700.0, "i1/restart", 7, 1, "requeued"))
    (attempt,) = (r for r in told(waited) if isinstance(r, Attempt))
    assert (attempt.began, attempt.wall, attempt.cause) == (10.0, 100.0, "time_limit")


def test_a_device_on_a_node_that_carries_no_rank_is_blamed_too() -> None:
    launched = ev.LaunchSeen(12.0, "7.0", 0, ("n1", "n3"), 2, idle=("n2",), faults=(XID,))
    isolated = ev.Isolated(13.0, "idle/7.0/n2/drain", "n2", "drained", "by ann: fans")
    end = ev.JobSeen(100.0, 7, 0, "COMPLETED")
    isolation, attempt, _ = told((*BEGUN, launched, isolated, end))
    assert isinstance(isolation, Isolation) and isinstance(attempt, Attempt)
    assert (isolation.serial, isolation.cause, isolation.detail) == ("77", "node_fault", "by ann: fans")
    assert attempt.blamed == ("n2",)
