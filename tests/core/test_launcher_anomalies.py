"""A training that is slow, or whose loss goes wrong, is acted on where a rule asks for it, and else never."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_launcher import NODES, exits, feed, fresh, outcome, started, training, with_spare
from core_policy import DEFAULT

from transom_cli.core import launcher
from transom_cli.core.diagnose import RunFacts, diagnose, judged
from transom_cli.core.events import OutcomeSeen, RecoverySeen
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Job, Launch, State
from transom_cli.core.policy import Rule
from transom_cli.core.progress import Progress

SLOW = launcher.AnomalyReported(10.0, 0, "slow_node:n2", "slow_node", "a node is slow", 20, ("n2",))
NAN = launcher.AnomalyReported(10.0, 0, "nan_loss", "nan_loss", "the loss is not a number since step 12", 20, (), 10, 8)


def ruled(state: launcher.State, **rule: object) -> launcher.State:
    told = Rule(**{"name": "mine", "reported": ("slow_node", "nan_loss"), "source": "run.toml", **rule})  # type: ignore[arg-type]
    return replace(state, policy=replace(state.policy, rules=(told,)))


def told(actions: list[launcher.Action]) -> list[tuple[str, str]]:
    return [(o.incident, o.what) for o in actions if isinstance(o, launcher.Journal)]


@pytest.mark.parametrize("rule", [{"action": "ignore"}, {"action": "stop", "reported": ("slow_link",)}])
def test_nothing_is_done_unless_a_rule_asks_for_it(rule: dict[str, object]) -> None:
    for state in (training(), ruled(training(), **rule)):
        for report in (SLOW, NAN):
            after, actions = feed(state, report, *(launcher.Tick(t) for t in (11.0, 500.0)))
            assert actions == [] and after.phase is launcher.Phase.TRAINING


def test_a_rule_for_failures_meets_no_report_nor_the_other_way_round() -> None:
    everything = ruled(training(), action="stop", reported=())
    assert feed(everything, SLOW, NAN, launcher.Tick(99.0))[1] == []
    died = (
        launcher.RanksExited(9.0, 0, exits(None, -9, None)),
        launcher.Tick(11.0),
        launcher.LaunchEnded(12.0, 0),
        launcher.LogsRead(13.0, 0, "unknown", ""),
    )
    assert started(feed(ruled(training(), action="stop"), *died)[1]) == [NODES]


def test_a_slow_node_is_left_with_nothing_lost_once_it_has_lasted() -> None:
    state, actions = feed(ruled(with_spare(), action="isolate", budget=1, lasting=60.0), SLOW, launcher.Tick(69.0))
    assert actions == []
    state, actions = feed(state, launcher.Tick(70.0))
    assert told(actions) == [("", "reported")] and actions[-1] == launcher.RequestCheckpoint(0)
    state, actions = feed(
        state, launcher.CheckpointPlanned(71.0, 0, 30), launcher.Tick(75.0), launcher.CheckpointDurable(80.0, 30)
    )
    assert actions[-1] == launcher.EndLaunch(0, "", evidence=False)
    state, actions = feed(state, launcher.LaunchEnded(82.0, 0))
    assert told(actions) == [("l1", "seen"), ("l1", "diagnosed"), ("l1", "decided"), ("l1", "swapped")]
    assert started(actions) == [("n1", "n4", "n3")]
    (swapped,) = [o for o in actions if isinstance(o, launcher.Journal) and o.what == "swapped"]
    assert [(f.node, f.check, f.verdict) for f in swapped.faults] == [("n2", "slow_node", "SUSPECT")]
    state, actions = feed(state, launcher.Stepped(90.0, 1, 31), launcher.CheckpointDurable(91.0, 31))
    assert told(actions) == [("l1", "recovered")]
    other = replace(SLOW, at=95.0, launch=1, key="slow_node:n3", nodes=("n3",))
    assert feed(state, other, launcher.Tick(180.0))[1] == [], "the budget is spent, and there is no next rule"


def test_without_a_spare_the_attempt_is_handed_up_and_the_slow_node_kept_out_of_the_next() -> None:
    requested = (
        launcher.CheckpointPlanned(11.0, 0, 30),
        launcher.CheckpointDurable(12.0, 30),
        launcher.LaunchEnded(13.0, 0, exits(-15, -15, -15)),
    )
    _, actions = feed(ruled(training(), action="isolate", budget=1), SLOW, *requested)
    left = outcome(actions)
    assert (left.outcome.status, left.outcome.cause, left.again) == ("failed", "slow", "requeue")
    assert (left.outcome.blamed, left.outcome.missing) == (("n2",), ())
    assert [f.node for f in left.outcome.faults] == ["n2"]


def test_a_swap_waits_for_a_spare() -> None:
    state = ruled(fresh((*NODES, "n4")), action="swap", budget=1)
    state, _ = feed(
        state, launcher.AttemptStarted(0.0), launcher.Stepped(5.0, 0, 4), launcher.CheckpointDurable(6.0, 4)
    )
    state, actions = feed(state, SLOW, launcher.Tick(20.0))
    assert actions == []
    assert (
        launcher.RequestCheckpoint(0)
        in feed(state, launcher.SpareChecked(30.0, "n4", good=True), launcher.Tick(30.1))[1]
    )


def test_what_names_no_node_isolates_none_and_is_reported_once() -> None:
    state = ruled(training(), action="isolate", budget=1)
    state, actions = feed(state, replace(SLOW, nodes=()), launcher.Tick(11.0), launcher.Tick(12.0))
    (tell,) = actions
    assert isinstance(tell, launcher.Journal) and tell.words.endswith(
        "would isolate, but no node is known to be the cause"
    )


def test_a_report_that_is_over_or_of_another_launch_is_none() -> None:
    state = ruled(training(), action="stop", lasting=60.0)
    assert feed(state, SLOW, replace(SLOW, at=50.0, over=True), launcher.Tick(99.0))[1] == []
    assert feed(state, replace(SLOW, launch=1), launcher.Tick(99.0))[1] == []
    renewed = replace(SLOW, at=50.0, words="a node is slow; so do 2 ranks")
    assert feed(state, SLOW, renewed, launcher.Tick(71.0))[1] != [], "it has stood since its first word"


def test_a_loss_that_goes_wrong_is_rolled_back_and_its_batches_skipped() -> None:
    state, actions = feed(ruled(training(), action="rollback", budget=1, then="stop"), NAN)
    assert told(actions) == [("", "reported")] and actions[-1] == launcher.EndLaunch(0, "", evidence=False), (
        "no word of saving"
    )
    state, actions = feed(state, launcher.LaunchEnded(12.0, 0))
    assert told(actions) == [("l1", "seen"), ("l1", "diagnosed"), ("l1", "decided"), ("l1", "rolled_back")]
    (back,) = [o for o in actions if isinstance(o, launcher.Journal) and o.what == "rolled_back"]
    assert back.durable == 8 and back.words == "back to step 8 of 4; the batches of steps 11 to 20 are to be skipped"
    goes_back = launcher.RollBack(1, 8, (11, 20), f"nan_loss at step 20: {NAN.words}")
    assert actions[-2:] == [goes_back, launcher.StartLaunch(1, NODES)], "in this order"
    assert state.progress.durable == 8
    again = (launcher.Stepped(20.0, 1, 9), replace(NAN, at=30.0, launch=1, step=40, before=30, back_to=28))
    state, actions = feed(state, *again, launcher.LaunchEnded(31.0, 1, exits(-15, -15, -15)))
    left = outcome(actions)
    assert (left.outcome.status, left.outcome.cause, left.again) == ("failed", "diverged", "")
    assert (
        "stopped by rule `mine` (run.toml)" in left.outcome.why
        and "for the second time in this run" in left.outcome.why
    )


def test_batches_stay_where_the_rule_says_so() -> None:
    state, _ = feed(ruled(training(), action="rollback", budget=1, skip_batches=False), NAN)
    (back,) = [o for o in feed(state, launcher.LaunchEnded(12.0, 0))[1] if isinstance(o, launcher.RollBack)]
    assert back.skip is None


def test_it_goes_back_as_well_where_a_node_cannot_be_ended_or_a_spare_takes_its_place() -> None:
    ruling = {"action": "rollback", "budget": 1}
    state, _ = feed(ruled(with_spare(), **ruling), NAN)
    _, actions = feed(state, launcher.LaunchEnded(12.0, 0, unheard=("n2",)))
    assert [type(o).__name__ for o in actions if not isinstance(o, launcher.Journal)] == ["RollBack", "StartLaunch"]
    state, _ = feed(ruled(training(), **ruling), NAN)
    _, actions = feed(state, launcher.LaunchEnded(12.0, 0, unheard=("n2",)))
    assert isinstance(actions[-2], launcher.RollBack)
    left = outcome(actions).outcome
    assert (left.status, left.cause, left.durable, outcome(actions).again) == ("failed", "diverged", 8, "requeue")


def test_a_setback_that_cannot_be_recorded_starts_nothing_from_the_bad_state() -> None:
    state, _ = feed(ruled(training(), action="rollback", budget=1), NAN, launcher.LaunchEnded(12.0, 0))
    left = outcome(feed(state, launcher.StartFailed(12.1, 1, "the training cannot be set back to step 8: no space"))[1])
    assert left.outcome.status == "failed" and "cannot be set back" in left.outcome.why


def test_without_a_checkpoint_from_before_nothing_is_rolled_back() -> None:
    state = ruled(training(), action="rollback", budget=1, then="stop")
    state, actions = feed(state, replace(NAN, back_to=-1), launcher.Tick(11.0))
    (tell,) = actions
    assert isinstance(tell, launcher.Journal) and tell.words.endswith("but no checkpoint is from step 10 or before")
    assert state.phase is launcher.Phase.TRAINING


def test_a_fault_in_the_meantime_is_handled_as_ever() -> None:
    state, _ = feed(ruled(training(), action="relaunch", budget=1), SLOW)
    died = (
        launcher.RanksExited(11.0, 0, exits(None, -9, None)),
        launcher.Tick(13.0),
        launcher.LaunchEnded(14.0, 0),
        launcher.LogsRead(15.0, 0, "unknown", ""),
    )
    state, actions = feed(state, *died)
    assert (
        started(actions) == [NODES] and state.launch.response is None and state.departure.reason is launcher.Reason.NONE
    )
    (diagnosed,) = [o for o in actions if isinstance(o, launcher.Journal) and o.what == "diagnosed"]
    assert diagnosed.cause == "rank_killed"


def test_the_time_limit_and_somebodys_drain_come_before_what_is_slow() -> None:
    """A trainer that cannot be asked to save would else never be asked again."""
    state, _ = feed(
        ruled(training(), action="relaunch", budget=1), SLOW, launcher.CheckpointPlanned(11.0, 0, -1, "nobody listens")
    )
    assert state.departure.reason is launcher.Reason.ANOMALY
    for received, why in (
        (launcher.TimeLimitNear(20.0), launcher.Reason.TIME_LIMIT),
        (launcher.NodesDraining(20.0, ("n2",), "fan"), launcher.Reason.MAINTENANCE),
    ):
        after, actions = feed(state, received)
        assert (after.departure.reason, after.launch.response, actions[-1]) == (
            why,
            None,
            launcher.RequestCheckpoint(0),
        )


def test_stop_request_comes_first() -> None:
    state, _ = feed(ruled(training(), action="rollback", budget=1), NAN, launcher.StopRequested(11.0, "SIGTERM"))
    left = outcome(feed(state, launcher.LaunchEnded(12.0, 0))[1])
    assert left.outcome.status == "stopped"


def test_a_policy_of_the_attempts_before_counts_what_they_have_done() -> None:
    state = ruled(training(), action="rollback", budget=1, then="stop")
    first, _ = feed(
        state, NAN, launcher.LaunchEnded(12.0, 0), launcher.Stepped(20.0, 1, 9), launcher.StopRequested(21.0, "SIGTERM")
    )
    taken = outcome(feed(first, launcher.GracePeriodOver(50.0))[1]).outcome.taken
    assert [t.decided.action for t in taken] == ["rollback"]
    later = ruled(fresh(), action="rollback", budget=1, then="stop")
    later, _ = feed(
        later,
        launcher.AttemptStarted(0.0, 8, 20, taken=taken),
        launcher.Stepped(5.0, 0, 9),
        launcher.CheckpointDurable(5.0, 9),
        NAN,
    )
    assert outcome(feed(later, launcher.LaunchEnded(12.0, 0))[1]).outcome.cause == "diverged"
    assert isinstance(later.policy, launcher.Policy)


# --- what the operator makes of it ---


def judged_outcome(outcome: OutcomeSeen) -> Diagnosis:
    incident = replace(Incident("i1", 7, 0, 0.0, 4), outcome=outcome, faults=outcome.faults)
    known = RunFacts(NODES, launched=True, max_step=4, rules=DEFAULT)
    told = judged(diagnose(incident, known), incident, known, 100.0)
    assert told is not None
    return told


def test_the_operator_excludes_the_slow_node_and_starts_the_job_again() -> None:
    requested = (
        launcher.CheckpointPlanned(11.0, 0, 30),
        launcher.CheckpointDurable(12.0, 30),
        launcher.LaunchEnded(13.0, 0, exits(-15, -15, -15)),
    )
    _, actions = feed(ruled(training(), action="isolate", budget=1), SLOW, *requested)
    told = judged_outcome(outcome(actions).outcome)
    assert (told.cause, told.restart, told.nodes, told.isolates("n2")) == ("slow", True, ("n2",), "exclude")


def test_the_operator_does_not_start_again_what_the_policy_has_stopped() -> None:
    for report in (SLOW, NAN):
        state, _ = feed(
            ruled(training(), action="stop"),
            report,
            launcher.CheckpointPlanned(11.0, 0, 30),
            launcher.CheckpointDurable(12.0, 30),
        )
        told = judged_outcome(outcome(feed(state, launcher.LaunchEnded(13.0, 0, exits(-15, -15, -15)))[1]).outcome)
        assert not told.restart and told.decided.rule == "mine" and report.words in told.words


def test_the_operator_counts_on_no_step_beyond_a_rollback() -> None:
    state = State(job=Job(7, nodes=NODES), launch=Launch(started=True), progress=Progress(25, 25, durable=20))
    told = RecoverySeen(10.0, "7.0", "l1", "rolled_back", "back to step 8 of 25", "diverged", durable=8)
    assert decide(state, told)[0].progress.durable == 8


DOUBT = launcher.AnomalyReported(
    10.0, 0, "silent_corruption", "silent_corruption", "n2 differs", 20, ("n2",), before=10, back_to=8
)
WRONG = replace(DOUBT, key="corrupting_node", what="corrupting_node", words="n2 was wrong")


def by_default(state: launcher.State) -> launcher.State:
    return replace(state, policy=replace(state.policy, rules=DEFAULT))


def test_doubtful_weights_go_back_and_every_rank_moves_to_another_node() -> None:
    state, actions = feed(by_default(training()), DOUBT)
    assert actions[-1] == launcher.EndLaunch(0, "", evidence=False), "the doubtful state is not saved"
    state, actions = feed(state, launcher.LaunchEnded(12.0, 0))
    assert actions[-2:] == [
        launcher.RollBack(1, 8, None, "silent_corruption at step 20: n2 differs"),
        launcher.StartLaunch(1, ("n2", "n3", "n1")),
    ]
    assert state.health.faults == (), "a doubt is held against nobody"


def test_a_node_that_was_wrong_once_is_left_after_a_checkpoint() -> None:
    state, actions = feed(by_default(with_spare()), replace(WRONG, before=-1, back_to=-1))
    assert actions[-1] == launcher.RequestCheckpoint(0), "the present state is clean"
    saved = (launcher.CheckpointPlanned(11.0, 0, 30), launcher.CheckpointDurable(12.0, 30))
    _, actions = feed(state, *saved, launcher.LaunchEnded(13.0, 0))
    assert started(actions) == [("n1", "n4", "n3")]
    assert not [o for o in actions if isinstance(o, launcher.RollBack)]


def test_a_node_that_is_wrong_again_is_left_and_its_weights_too() -> None:
    state, actions = feed(by_default(with_spare()), WRONG)
    assert actions[-1] == launcher.EndLaunch(0, "", evidence=False)
    _, actions = feed(state, launcher.LaunchEnded(12.0, 0))
    assert started(actions) == [("n1", "n4", "n3")]
    (back,) = [o for o in actions if isinstance(o, launcher.RollBack)]
    assert (back.to, back.skip) == (8, None)


def test_doubtful_weights_without_a_clean_checkpoint_are_only_reported() -> None:
    for doubt in (replace(DOUBT, back_to=-1), replace(WRONG, back_to=-1)):
        _, actions = feed(by_default(training()), doubt)
        (entry,) = actions
        assert isinstance(entry, launcher.Journal) and "no checkpoint is from step 10 or before" in entry.words
