"""Isolation beside other users: their reports only lengthen an exclusion, and their drains count towards the cap."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.codec import event_from_json, event_to_json
from transom_cli.core.node_hazard import DAY, PUBLISHED, Use
from transom_cli.core.operator.actions import Isolate, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.isolation import LONGEST, drain_refused, drained_and_awaited, lasting, on_probation
from transom_cli.core.operator.state import Job, Policy, Request, State

NODES = ("n1", "n2", "n3")


def played(policy: Policy, *events: ev.Event) -> tuple[State, list[Isolate]]:
    state, ordered = State(policy, Request(3)), []
    begin = (ev.Started(0.0, 1), ev.Submitted(1.0, "submit", 7), ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES))
    for event in (*begin, *events):
        state, actions = decide(state, event)
        ordered += [action for action in actions if isinstance(action, Isolate)]
    return state, ordered


SUSPECT = ev.OutcomeSeen(
    20.0,
    "7.0",
    "left",
    "2 of 3 passed",
    nodes=NODES,
    cause="preflight",
    faults=(ev.NodeFault("n2", "ib", "SUSPECT", "x"),),
)
OTHERS = st.lists(
    st.builds(ev.OtherExclusion, st.just("ann"), st.none() | st.floats(allow_nan=True, allow_infinity=True)), max_size=5
)


@given(OTHERS, st.floats(1.0, 1e6))
def test_reports_of_others_only_lengthen_an_exclusion_and_at_most_by_a_day(
    others: list[ev.OtherExclusion], expiry: float
) -> None:
    state, (order,) = played(Policy(expiry=expiry), SUSPECT)
    after, _ = decide(state, ev.Isolated(21.0, order.key, "n2", "excluded", "", tuple(others)))
    (only,) = after.isolation.exclusions
    assert only.node == "n2" and only.until is not None
    assert 21.0 + expiry <= only.until <= 21.0 + max(expiry, LONGEST)
    assert ("because of" in only.detail) is (only.until > 21.0 + expiry)


def test_exclusion_lasts_as_long_as_another_users() -> None:
    state, (order,) = played(Policy(expiry=3600.0), SUSPECT)
    others = (ev.OtherExclusion("ann", 7200.0), ev.OtherExclusion("bob", 60.0))
    after, _ = decide(state, ev.Isolated(21.0, order.key, "n2", "excluded", "", others))
    assert after.isolation.exclusions[0].until == 7221.0
    assert after.isolation.exclusions[0].detail == "excluded for longer, because of ann, bob"


def test_reports_of_others_exclude_no_node() -> None:
    """Only an answer to an action that this run's own evidence ordered carries them."""
    state, _ = played(Policy())
    others = (ev.OtherExclusion("ann", None),)
    for key in ("", "i1/isolate/n2", "idle/7.0/n2/exclude"):
        assert decide(state, ev.Isolated(21.0, key, "n2", "excluded", "", others)) == (state, ())


def test_proven_fault_stays_excluded_until_a_person_lifts_it() -> None:
    proven = replace(SUSPECT, faults=(ev.NodeFault("n2", "xid", "FAIL", "Xid 79"),))
    state, (order,) = played(Policy(cap_cluster=5), proven)
    assert order.drain and (order.most, order.within) == (5, 3600.0)
    after, _ = decide(state, ev.Isolated(21.0, order.key, "n2", "excluded", "", (ev.OtherExclusion("ann", 5.0),)))
    assert after.isolation.exclusions[0].until is None


@given(st.lists(st.none() | st.floats(0, 1e5), max_size=20), st.none() | st.integers(0, 10), st.floats(1.0, 1e5))
def test_drains_of_all_users_within_the_window_count(ages: list[float | None], most: int | None, within: float) -> None:
    recent = len([age for age in ages if age is None or age < within])
    why = drain_refused(Isolate("k", "n1", "r", True, most, within), ages)
    assert bool(why) is (most is not None and recent >= most)
    assert not why or "isolate.max_cluster_nodes" in why


def test_unreadable_age_counts_as_recent() -> None:
    assert drain_refused(Isolate("k", "n1", "r", True, 1), [None])
    assert not drain_refused(Isolate("k", "n1", "r", True, 1), [3600.0])


def excluded_in(nodes: int, **policy: Any) -> tuple[float, str]:
    """For how many seconds a job excludes a suspect, by its number of nodes, and the detail."""
    names = tuple(f"n{i}" for i in range(1, nodes + 1))
    state = State(Policy(**policy), Request(nodes))
    suspect = replace(SUSPECT, nodes=names)
    begin = (ev.Started(0.0, 1), ev.Submitted(1.0, "submit", 7), ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=names))
    for event in (*begin, suspect):
        state, actions = decide(state, event)
    (order,) = (a for a in actions if isinstance(a, Isolate))
    state, _ = decide(state, ev.Isolated(21.0, order.key, "n2", "excluded", ""))
    (only,) = state.isolation.exclusions
    assert only.until is not None
    return only.until - 21.0, only.detail


def test_large_job_excludes_a_suspect_for_longer_where_that_is_set() -> None:
    assert excluded_in(1024) == (3600.0, "")
    assert excluded_in(64, expiry_by_cost=True) == (3600.0, ""), "never for less than isolate.expiry"
    lasts, detail = excluded_in(1024, expiry_by_cost=True)
    assert lasts == 6 * 3600.0
    assert detail == "for 6 h, since another failure would cost 256 node-hours"
    assert excluded_in(16384, expiry_by_cost=True)[0] == LONGEST


def isolated_again(nodes: int, **known: Any) -> tuple[float, str]:
    names = tuple(f"n{i}" for i in range(1, nodes + 1))
    state = State(Policy(expiry_by_cost=True), Request(nodes), job=Job(nodes=names))
    return lasting(state, 21.0, "n2", **known)


def test_node_that_failed_in_other_runs_is_excluded_for_longer_than_one_that_did_not() -> None:
    assert isolated_again(1024)[0] == 6 * 3600.0
    lasts, detail = isolated_again(1024, elsewhere=2)
    assert lasts == LONGEST
    assert detail == (
        "for 24 h, since another failure would cost 256 node-hours; it was at fault 2 times in the last 30 days before"
    )


def test_site_whose_returned_nodes_work_excludes_for_no_longer_than_the_setting() -> None:
    good = PUBLISHED.updated([Use(30 * DAY, failed=False)] * 10_000)
    assert isolated_again(1024)[0] > 3600.0
    assert isolated_again(1024, hazard=good, elsewhere=2) == (3600.0, "")


@given(st.integers(0, 10**6), st.lists(st.builds(Use, st.floats(0, 1e8), st.booleans()), max_size=20))
def test_no_history_excludes_for_less_than_the_setting_or_more_than_a_day(elsewhere: int, uses: list[Use]) -> None:
    lasts, _ = isolated_again(4096, elsewhere=elsewhere, hazard=PUBLISHED.updated(uses))
    assert 3600.0 <= lasts <= LONGEST


def test_what_the_history_said_is_in_the_journal() -> None:
    event = ev.Isolated(21.0, "k", "n2", "excluded", "", hazard=PUBLISHED, elsewhere=3)
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def waiting(reason: str, **policy: Any) -> State:
    """The job is requeued without the suspect n2, and waits."""
    state, (order,) = played(Policy(**policy), SUSPECT)
    state, _ = decide(state, ev.Isolated(21.0, order.key, "n2", "excluded", ""))
    (restart,) = (a for a in state.pending if isinstance(a, Restart))
    state, _ = decide(state, ev.Restarted(25.0, restart.key, 7, 1, "requeued"))
    return decide(state, ev.JobSeen(30.0, 7, 1, "PENDING", reason=reason))[0]


def test_node_is_on_probation_once_its_exclusion_has_ended() -> None:
    state = waiting("Priority")
    assert on_probation(state, 100.0) == ()
    state, _ = decide(state, ev.Tick(4000.0))
    state, _ = decide(state, ev.JobSeen(4010.0, 7, 1, "RUNNING", nodes=NODES))
    state, _ = decide(state, ev.StepSeen(4100.0, "7.1", 9))
    assert on_probation(state, 4200.0) == ("n2",)
    assert on_probation(state, 4200.0 + 31 * 86400.0) == ()


def test_only_drained_nodes_of_a_waiting_job_are_awaited() -> None:
    fault = replace(SUSPECT, faults=(ev.NodeFault("n2", "xid", "FAIL", "Xid 79"), ev.NodeFault("n3", "ib", "FAIL", "")))
    state, orders = played(Policy(cap_nodes=2), fault)
    for node, how in (("n2", "drained"), ("n3", "excluded")):
        key = next(order.key for order in orders if order.node == node)
        state, actions = decide(state, ev.Isolated(21.0, key, node, how, ""))
    (restart,) = (action for action in actions if isinstance(action, Restart))
    assert drained_and_awaited(state) == (), "the job does not wait yet"
    state, _ = decide(state, ev.Restarted(22.0, restart.key, 7, 1, "requeued"))
    state, _ = decide(state, ev.JobSeen(23.0, 7, 1, "PENDING"))
    assert drained_and_awaited(state) == ("n2",)
    state, _ = decide(state, ev.LiftRequested(24.0, "an administrator in Slurm", "returned-24", ("n2",)))
    assert drained_and_awaited(state) == () and state.isolation.excluded == ("n3",)
