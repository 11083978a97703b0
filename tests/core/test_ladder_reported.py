"""A training that is slow, or whose loss goes wrong, is acted on where a rule asks for it, and else never."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_ladder import NODES, exits, feed, fresh, outcome, started, training, with_spare
from core_policy import DEFAULT

from transom_cli.core import launcher as sh
from transom_cli.core.diagnose import diagnose, judged
from transom_cli.core.events import HealSeen, OutcomeSeen
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.launcher import LadderPolicy, LadderState
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Job, Launch, Policy, State
from transom_cli.core.policy import Rule
from transom_cli.core.progress import Progress

SLOW = sh.Reported(10.0, 0, "slow_node:n2", "slow_node", "a node is slow", 20, ("n2",))
NAN = sh.Reported(10.0, 0, "nan_loss", "nan_loss", "the loss is not a number since step 12", 20, (), 10, 8)


def ruled(state: LadderState, **rule: object) -> LadderState:
    told = Rule(**{"name": "mine", "reported": ("slow_node", "nan_loss"), "source": "run.toml", **rule})  # type: ignore[arg-type]
    return replace(state, policy=replace(state.policy, rules=(told,)))


def told(orders: list[sh.Order]) -> list[tuple[str, str]]:
    return [(o.incident, o.what) for o in orders if isinstance(o, sh.Tell)]


@pytest.mark.parametrize("rule", [{"action": "ignore"}, {"action": "stop", "reported": ("slow_link",)}])
def test_nothing_is_done_unless_a_rule_asks_for_it(rule: dict[str, object]) -> None:
    for state in (training(), ruled(training(), **rule)):
        for report in (SLOW, NAN):
            after, orders = feed(state, report, *(sh.Tick(t) for t in (11.0, 500.0)))
            assert orders == [] and after.rung is sh.Rung.TRAINING


def test_a_rule_for_failures_meets_no_report_nor_the_other_way_round() -> None:
    everything = ruled(training(), action="stop", reported=())
    assert feed(everything, SLOW, NAN, sh.Tick(99.0))[1] == []
    died = (sh.Exits(9.0, 0, exits(None, -9, None)), sh.Tick(11.0), sh.Ended(12.0, 0), sh.Read(13.0, 0, "unknown", ""))
    assert started(feed(ruled(training(), action="stop"), *died)[1]) == [NODES]


def test_a_slow_node_is_left_with_nothing_lost_once_it_has_lasted() -> None:
    state, orders = feed(ruled(with_spare(), action="isolate", budget=1, lasting=60.0), SLOW, sh.Tick(69.0))
    assert orders == []
    state, orders = feed(state, sh.Tick(70.0))
    assert told(orders) == [("", "reported")] and orders[-1] == sh.Flush(0)
    state, orders = feed(state, sh.Flushing(71.0, 0, 30), sh.Tick(75.0), sh.Durable(80.0, 30))
    assert orders[-1] == sh.End(0, "", evidence=False)
    state, orders = feed(state, sh.Ended(82.0, 0))
    assert told(orders) == [("l1", "seen"), ("l1", "diagnosed"), ("l1", "decided"), ("l1", "swapped")]
    assert started(orders) == [("n1", "n4", "n3")]
    (swapped,) = [o for o in orders if isinstance(o, sh.Tell) and o.what == "swapped"]
    assert [(f.node, f.check, f.verdict) for f in swapped.faults] == [("n2", "slow_node", "SUSPECT")]
    state, orders = feed(state, sh.Stepped(90.0, 1, 31), sh.Durable(91.0, 31))
    assert told(orders) == [("l1", "recovered")]
    other = replace(SLOW, at=95.0, launch=1, key="slow_node:n3", nodes=("n3",))
    assert feed(state, other, sh.Tick(180.0))[1] == [], "the budget is spent, and there is no next rule"


def test_without_a_spare_the_attempt_is_handed_up_and_the_slow_node_kept_out_of_the_next() -> None:
    asked = (sh.Flushing(11.0, 0, 30), sh.Durable(12.0, 30), sh.Ended(13.0, 0, exits(-15, -15, -15)))
    _, orders = feed(ruled(training(), action="isolate", budget=1), SLOW, *asked)
    left = outcome(orders)
    assert (left.outcome.status, left.outcome.cause, left.again) == ("failed", "slow", "requeue")
    assert (left.outcome.blamed, left.outcome.missing) == (("n2",), ())
    assert [f.node for f in left.outcome.faults] == ["n2"]


def test_a_swap_waits_for_a_spare() -> None:
    state = ruled(fresh((*NODES, "n4")), action="swap", budget=1)
    state, _ = feed(state, sh.Begun(0.0), sh.Stepped(5.0, 0, 4), sh.Durable(6.0, 4))
    state, orders = feed(state, SLOW, sh.Tick(20.0))
    assert orders == []
    assert sh.Flush(0) in feed(state, sh.Spare(30.0, "n4", good=True), sh.Tick(30.1))[1]


def test_what_names_no_node_isolates_none_and_is_told_once() -> None:
    state = ruled(training(), action="isolate", budget=1)
    state, orders = feed(state, replace(SLOW, nodes=()), sh.Tick(11.0), sh.Tick(12.0))
    (tell,) = orders
    assert isinstance(tell, sh.Tell) and tell.words.endswith("would isolate, but no node is known to be the cause")


def test_a_report_that_is_over_or_of_another_launch_is_none() -> None:
    state = ruled(training(), action="stop", lasting=60.0)
    assert feed(state, SLOW, replace(SLOW, at=50.0, over=True), sh.Tick(99.0))[1] == []
    assert feed(state, replace(SLOW, launch=1), sh.Tick(99.0))[1] == []
    renewed = replace(SLOW, at=50.0, words="a node is slow; so do 2 ranks")
    assert feed(state, SLOW, renewed, sh.Tick(71.0))[1] != [], "it has stood since its first word"


def test_a_loss_that_goes_wrong_is_rolled_back_and_its_batches_skipped() -> None:
    state, orders = feed(ruled(training(), action="rollback", budget=1, then="stop"), NAN)
    assert told(orders) == [("", "reported")] and orders[-1] == sh.End(0, "", evidence=False), "no word of saving"
    state, orders = feed(state, sh.Ended(12.0, 0))
    assert told(orders) == [("l1", "seen"), ("l1", "diagnosed"), ("l1", "decided"), ("l1", "rolled_back")]
    (back,) = [o for o in orders if isinstance(o, sh.Tell) and o.what == "rolled_back"]
    assert back.durable == 8 and back.words == "back to step 8 of 4; the batches of steps 11 to 20 are to be skipped"
    goes_back = sh.GoBack(1, 8, (11, 20), f"nan_loss at step 20: {NAN.words}")
    assert orders[-2:] == [goes_back, sh.Start(1, NODES)], "in this order"
    assert state.durable == 8
    again = (sh.Stepped(20.0, 1, 9), replace(NAN, at=30.0, launch=1, step=40, before=30, back_to=28))
    state, orders = feed(state, *again, sh.Ended(31.0, 1, exits(-15, -15, -15)))
    left = outcome(orders)
    assert (left.outcome.status, left.outcome.cause, left.again) == ("failed", "diverged", "")
    assert (
        "stopped by rule `mine` (run.toml)" in left.outcome.why
        and "for the second time in this run" in left.outcome.why
    )


def test_batches_stay_where_the_rule_says_so() -> None:
    state, _ = feed(ruled(training(), action="rollback", budget=1, skip_batches=False), NAN)
    (back,) = [o for o in feed(state, sh.Ended(12.0, 0))[1] if isinstance(o, sh.GoBack)]
    assert back.skip is None


def test_it_goes_back_as_well_where_a_node_cannot_be_ended_or_a_spare_takes_its_place() -> None:
    ruling = {"action": "rollback", "budget": 1}
    state, _ = feed(ruled(with_spare(), **ruling), NAN)
    _, orders = feed(state, sh.Ended(12.0, 0, unheard=("n2",)))
    assert [type(o).__name__ for o in orders if not isinstance(o, sh.Tell)] == ["GoBack", "Start"]
    state, _ = feed(ruled(training(), **ruling), NAN)
    _, orders = feed(state, sh.Ended(12.0, 0, unheard=("n2",)))
    assert isinstance(orders[-2], sh.GoBack)
    left = outcome(orders).outcome
    assert (left.status, left.cause, left.durable, outcome(orders).again) == ("failed", "diverged", 8, "requeue")


def test_a_setback_that_cannot_be_recorded_starts_nothing_from_the_bad_state() -> None:
    state, _ = feed(ruled(training(), action="rollback", budget=1), NAN, sh.Ended(12.0, 0))
    left = outcome(feed(state, sh.NotStarted(12.1, 1, "the training cannot be set back to step 8: no space"))[1])
    assert left.outcome.status == "failed" and "cannot be set back" in left.outcome.why


def test_without_a_checkpoint_from_before_nothing_is_rolled_back() -> None:
    state = ruled(training(), action="rollback", budget=1, then="stop")
    state, orders = feed(state, replace(NAN, back_to=-1), sh.Tick(11.0))
    (tell,) = orders
    assert isinstance(tell, sh.Tell) and tell.words.endswith("but no checkpoint is from step 10 or before")
    assert state.rung is sh.Rung.TRAINING


def test_a_fault_in_the_meantime_is_handled_as_ever() -> None:
    state, _ = feed(ruled(training(), action="relaunch", budget=1), SLOW)
    died = (sh.Exits(11.0, 0, exits(None, -9, None)), sh.Tick(13.0), sh.Ended(14.0, 0), sh.Read(15.0, 0, "unknown", ""))
    state, orders = feed(state, *died)
    assert started(orders) == [NODES] and state.acting is None and state.leaving is sh.Leaving.NOT
    (diagnosed,) = [o for o in orders if isinstance(o, sh.Tell) and o.what == "diagnosed"]
    assert diagnosed.cause == "rank_killed"


def test_the_time_limit_and_somebodys_drain_come_before_what_is_slow() -> None:
    """A trainer that cannot be asked to save would else never be asked again."""
    state, _ = feed(ruled(training(), action="relaunch", budget=1), SLOW, sh.Flushing(11.0, 0, -1, "nobody listens"))
    assert state.leaving is sh.Leaving.REPORTED
    for heard, why in (
        (sh.Warned(20.0), sh.Leaving.TIME_LIMIT),
        (sh.Draining(20.0, ("n2",), "fan"), sh.Leaving.MAINTENANCE),
    ):
        after, orders = feed(state, heard)
        assert (after.leaving, after.acting, orders[-1]) == (why, None, sh.Flush(0))


def test_told_to_stop_comes_first() -> None:
    state, _ = feed(ruled(training(), action="rollback", budget=1), NAN, sh.Told(11.0, "SIGTERM"))
    left = outcome(feed(state, sh.Ended(12.0, 0))[1])
    assert left.outcome.status == "stopped"


def test_a_policy_of_the_attempts_before_counts_what_they_have_done() -> None:
    state = ruled(training(), action="rollback", budget=1, then="stop")
    first, _ = feed(state, NAN, sh.Ended(12.0, 0), sh.Stepped(20.0, 1, 9), sh.Told(21.0, "SIGTERM"))
    taken = outcome(feed(first, sh.Overtime(50.0))[1]).outcome.taken
    assert [t.decided.action for t in taken] == ["rollback"]
    later = ruled(fresh(), action="rollback", budget=1, then="stop")
    later, _ = feed(later, sh.Begun(0.0, 8, 20, taken=taken), sh.Stepped(5.0, 0, 9), sh.Durable(5.0, 9), NAN)
    assert outcome(feed(later, sh.Ended(12.0, 0))[1]).outcome.cause == "diverged"
    assert isinstance(later.policy, LadderPolicy)


# --- what the operator makes of it ---


def judged_outcome(outcome: OutcomeSeen) -> Diagnosis:
    incident = replace(Incident("i1", 7, 0, 0.0, 4), outcome=outcome, faults=outcome.faults)
    known = State(
        policy=Policy(rules=DEFAULT), job=Job(nodes=NODES), progress=Progress(max_step=4), launch=Launch(started=True)
    )
    told = judged(diagnose(incident, known), incident, known, 100.0)
    assert told is not None
    return told


def test_the_operator_excludes_the_slow_node_and_starts_the_job_again() -> None:
    asked = (sh.Flushing(11.0, 0, 30), sh.Durable(12.0, 30), sh.Ended(13.0, 0, exits(-15, -15, -15)))
    _, orders = feed(ruled(training(), action="isolate", budget=1), SLOW, *asked)
    told = judged_outcome(outcome(orders).outcome)
    assert (told.cause, told.restart, told.nodes, told.isolates("n2")) == ("slow", True, ("n2",), "exclude")


def test_the_operator_does_not_start_again_what_the_policy_has_stopped() -> None:
    for report in (SLOW, NAN):
        state, _ = feed(ruled(training(), action="stop"), report, sh.Flushing(11.0, 0, 30), sh.Durable(12.0, 30))
        told = judged_outcome(outcome(feed(state, sh.Ended(13.0, 0, exits(-15, -15, -15)))[1]).outcome)
        assert not told.restart and told.decided.rule == "mine" and report.words in told.words


def test_the_operator_counts_on_no_step_beyond_a_rollback() -> None:
    progress = Progress(durable=20, step=25, max_step=25)
    state = State(job=Job(id=7, nodes=NODES), launch=Launch(started=True), progress=progress)
    told = HealSeen(10.0, "7.0", "l1", "rolled_back", "back to step 8 of 25", "diverged", durable=8)
    assert decide(state, told)[0].progress.durable == 8
