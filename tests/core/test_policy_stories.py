"""The policy at work: budgets over launches and attempts, swaps, what is ignored; in the launcher and the operator."""

from __future__ import annotations

import json
from dataclasses import replace

from core_alphabet import NODES as OPERATED
from core_launcher import NODES, exits, feed, fresh, killed, outcome, started, training, with_spare
from test_properties import begun

from transom_cli.core import events as ev
from transom_cli.core import launcher
from transom_cli.core.codec import build, plain
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.state import Phase, Policy, State
from transom_cli.core.policy import Rule

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB"
TWICE = Rule("oom", "relaunch", category=("cuda_oom",), budget=2, then="stop", source="run.toml")


def ruled(state: launcher.State, *rules: Rule) -> launcher.State:
    return replace(state, policy=replace(state.policy, rules=rules))


def out_of_memory(state: launcher.State, at: float) -> tuple[launcher.State, list[launcher.Action]]:
    """Rank 1 runs out of its GPU's memory, says so, and the launch is ended."""
    launch = state.launch.number
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, exits(None, 1, None)),
        launcher.Tick(at + 2),
        launcher.LaunchEnded(at + 3, launch),
    )
    return feed(state, launcher.LogsRead(at + 4, launch, "cuda_oom", OOM.format(at), "rank-1.log"))


def test_the_third_time_a_launcher_stops_with_the_evidence() -> None:
    state = ruled(training(), TWICE)
    for at in (10.0, 30.0):
        state, actions = out_of_memory(state, at)
        assert started(actions) == [NODES]
        (decided,) = [o.decided for o in actions if isinstance(o, launcher.Journal) and o.what == "decided"]
        assert (decided.rule, decided.action, decided.category) == ("oom", "relaunch", "cuda_oom")
    state, actions = out_of_memory(state, 50.0)
    left = outcome(actions)
    assert (left.outcome.status, left.again, started(actions)) == ("failed", "", [])
    assert "stopped by rule `oom` (run.toml): cuda_oom" in left.outcome.why
    assert "for the third time in this run" in left.outcome.why and OOM.format(50.0) in left.outcome.why
    assert [t.decided.action for t in left.outcome.taken] == ["relaunch", "relaunch", "stop"]
    assert [t.at for t in left.outcome.taken] == [10.0 + 2 - 54, 30.0 + 2 - 54, 50.0 + 2 - 54]


def test_the_next_attempt_continues_counting() -> None:
    state, actions = out_of_memory(ruled(training(), TWICE), 10.0)
    state, actions = out_of_memory(state, 30.0)
    state, actions = feed(state, launcher.StopRequested(40.0, "TERM"), launcher.GracePeriodOver(41.0))
    told = json.loads(json.dumps(plain(outcome(actions).outcome)))
    taken = build(ev.OutcomeSeen, told).taken
    later = ruled(fresh(), TWICE)
    later, _ = feed(
        later,
        launcher.AttemptStarted(100.0, taken=tuple(replace(t, at=t.at - 60.0) for t in taken)),
        launcher.Stepped(105.0, 0, 9),
    )
    assert [round(t.at) for t in later.history.earlier] == [12 - 41 - 60 + 100, 32 - 41 - 60 + 100]
    _, actions = out_of_memory(later, 110.0)
    assert started(actions) == [] and "for the third time" in outcome(actions).outcome.why


def test_a_swap_that_is_requested_comes_before_any_relaunch() -> None:
    state = ruled(with_spare(), Rule("away", "swap", cause=("rank_killed",)))
    launch = state.launch.number
    state, _ = feed(
        state,
        launcher.RanksExited(10, launch, exits(None, -9, None)),
        launcher.Tick(12),
        launcher.LaunchEnded(13, launch),
    )
    state, actions = feed(state, launcher.LogsRead(14, launch, "unknown", ""))
    assert started(actions) == [("n1", "n4", "n3")] and state.nodes.given_up == ("n2",)
    (told,) = [o for o in actions if isinstance(o, launcher.Journal) and o.what == "swapped"]
    assert told.decided.action == "swap"


def test_without_a_ready_spare_a_swap_is_a_relaunch() -> None:
    state = killed(ruled(training(), Rule("away", "swap", cause=("rank_killed",))), 10.0)
    assert (state.phase, state.nodes.training, state.launch.number) == (launcher.Phase.TRAINING, NODES, 1)


def test_a_relaunch_keeps_a_node_that_has_failed_before() -> None:
    """The evidence would exclude it the second time; the policy asks for less."""
    rule = Rule("stay", "relaunch", cause=("rank_killed",))
    assert killed(killed(training(), 10.0), 30.0).phase is launcher.Phase.OVER
    state = killed(killed(ruled(training(), rule), 10.0), 30.0)
    assert (state.phase, state.nodes.training, state.launch.number) == (launcher.Phase.TRAINING, NODES, 2)


def quiet(at: float, launch: int = 0) -> launcher.Stalled:
    return launcher.Stalled(at, launch, ev.Stall(4, 9.0, 8.0, (1,), ("n2",)))


def test_a_silence_that_is_ignored_ends_no_launch_and_is_reported_once() -> None:
    rule = Rule("patience", "ignore", cause=("hang",), budget=2)
    state, actions = feed(ruled(training(), rule), quiet(20.0), quiet(20.3), quiet(20.6))
    assert [(type(o), getattr(o, "what", "")) for o in actions] == [(launcher.Journal, "ignored")]
    assert state.phase is launcher.Phase.TRAINING and state.incident is None
    state, actions = feed(state, launcher.Stepped(21.0, 0, 5), quiet(40.0), quiet(40.3))
    assert len(actions) == 1 and state.phase is launcher.Phase.TRAINING
    state, actions = feed(state, launcher.Stepped(41.0, 0, 6), quiet(60.0))
    assert [type(o) for o in actions] == [launcher.Journal, launcher.EndLaunch], "its budget is spent"


def test_a_proven_fault_that_is_ignored_ends_no_launch() -> None:
    fault = ev.NodeFault("n2", "gpu_heat", "FAIL", "97 C")
    rule = Rule("warm", "ignore", category=("gpu_hardware",))
    state, actions = feed(ruled(training(), rule), launcher.FaultsFound(20.0, (fault,)))
    assert state.phase is launcher.Phase.TRAINING and "ignored" in [
        o.what for o in actions if isinstance(o, launcher.Journal)
    ]
    state, actions = feed(training(), launcher.FaultsFound(20.0, (fault,)))
    assert state.phase is launcher.Phase.ENDING


# --- the operator ---


def operated(*rules: Rule) -> State:
    ledger = begun(Policy(rules=rules))
    ledger.feed(ev.LaunchSeen(1.0, "7.0", 0, OPERATED[:3], 3))
    ledger.feed(ev.StepSeen(2.0, "7.0", 4))
    return ledger.state


def told(state: State, *events: ev.Event) -> tuple[State, list[act.Action]]:
    from transom_cli.core.operator.decide import decide

    ordered: list[act.Action] = []
    for event in events:
        state, actions = decide(state, event)
        ordered += actions
    return state, ordered


def answered(state: State, at: float, verdict: str) -> tuple[State, list[act.Action]]:
    requested = [a for a in state.pending if isinstance(a, act.Probe)]
    return told(state, *(ev.Probed(at, a.key, a.node, verdict, "e") for a in requested))


def test_the_operator_leaves_a_silence_alone_that_is_to_be_ignored() -> None:
    stalled = ev.Stalled(30.0, "7.0", ev.Stall(4, 9, 8, (), ()))
    state, _ = told(operated(Rule("patience", "ignore", cause=("hang",))), stalled)
    state, actions = answered(state, 31.0, "PASS")
    assert actions == [] and state.incident is None and state.phase is Phase.TRAINING
    assert state.incidents[-1].result == "ignored" and state.incidents[-1].marks[-1].what == "decided"


def test_a_lost_node_is_no_silence_to_be_ignored() -> None:
    rules = (Rule("patience", "ignore", cause=("hang", "node_lost")),)
    state, _ = told(operated(*rules), ev.Stalled(30.0, "7.0", ev.Stall(4, 9, 8, (1,), ("n2",))))
    state, _ = answered(state, 31.0, "FAIL")
    state, actions = answered(state, 33.0, "FAIL")
    assert [type(o) for o in actions] == [act.Restart], "the training is not alive; but nobody is isolated"


def failed(at: float) -> ev.OutcomeSeen:
    return ev.OutcomeSeen(at, "7.0", "failed", "why", (ev.RankExit(1, "n2", 1, None, 5.0),), durable=4)


def test_what_the_launcher_relaunched_counts_for_the_operator_too() -> None:
    _, actions = out_of_memory(ruled(training(), TWICE), 10.0)
    heals = [o for o in actions if isinstance(o, launcher.Journal)]
    run = operated(TWICE)
    for launch in (1, 2):
        name = f"l{launch}"
        seen = ev.RecoverySeen(10.0 * launch, "7.0", name, "seen", "rank 1 ended")
        run, _ = told(run, seen)
        for heal in heals:
            told_as = {"what": heal.what, "words": heal.words, "cause": heal.cause, "nodes": heal.nodes}
            run, _ = told(run, ev.RecoverySeen(10.0 * launch, "7.0", name, **told_as, decided=heal.decided))
        run, _ = told(run, ev.LaunchSeen(10.0 * launch + 1, "7.0", launch, OPERATED[:3], 3))
        run, _ = told(run, ev.StepSeen(10.0 * launch + 2, "7.0", 5 + launch))
    run, (requested,) = told(run, failed(40.0))
    run, actions = told(run, ev.Examined(41.0, requested.key, "cuda_oom", OOM.format(80), "rank-1.log"))
    assert [type(o) for o in actions] == [act.Cancel] and run.phase is Phase.STOPPING
    assert "stopped by rule `oom` (run.toml)" in run.verdict and "for the third time" in run.verdict


def test_what_no_rule_decided_is_remembered_too() -> None:
    """A table without a last word: the first unknown failure was restarted by the evidence alone."""
    strict = Rule("strict", "stop", category=("unknown",), before_first_step=False)
    early, _ = feed(fresh(), launcher.AttemptStarted(0.0))
    state = killed(ruled(early, strict), 10.0, (None, 1, None))
    assert (
        state.phase is launcher.Phase.TRAINING and state.incident is not None and state.incident.diagnosis is not None
    )
    assert (state.incident.diagnosis.decided.rule, state.incident.diagnosis.decided.category) == ("", "unknown")
    state, _ = feed(state, launcher.Stepped(20.0, 1, 9))
    state = killed(state, 30.0, (None, 1, None))
    assert state.phase is launcher.Phase.OVER and state.history.incidents[-1].diagnosis.decided.rule == "strict"  # type: ignore[union-attr]


def test_what_a_launcher_has_stopped_for_no_operator_starts_again() -> None:
    """The launcher counted relaunches of which this operator, begun later, was never told."""
    state = ruled(training(), TWICE)
    for when in (10.0, 30.0, 50.0):
        state, actions = out_of_memory(state, when)
    handed = replace(outcome(actions).outcome, at=60.0)
    for line, stops in ((OOM.format(99), True), ("torch.OutOfMemoryError: HIP out of memory", False)):
        run, (examine, *_) = told(operated(TWICE), handed)
        run, _ = answered(run, 61.0, "PASS")
        run, ordered = told(run, ev.Examined(62.0, examine.key, "cuda_oom", line, "rank-1.log"))
        assert [type(o) for o in ordered] == [act.Cancel if stops else act.Restart]
        assert ("for the third time" in run.verdict) is stops


def test_a_swap_that_was_requested_excludes_nobody_who_answers() -> None:
    away, suspicion = Rule("away", "swap"), Rule("isolate", "isolate")
    for rule, kept_away in ((away, False), (suspicion, True)):
        state = ruled(with_spare(), rule)
        if rule is away:
            _, actions = out_of_memory(state, 10.0)
        else:  # as before: on the evidence, here a node without an answer to two probes of a check
            fault = ev.NodeFault("n2", "xid", "SUSPECT", "Xid 63")
            _, actions = out_of_memory(feed(state, launcher.FaultsFound(9.0, (fault,)))[0], 10.0)
        (swap,) = [o for o in actions if isinstance(o, launcher.Journal) and o.what == "swapped"]
        heal = ev.RecoverySeen(14.0, "7.0", swap.incident, "swapped", swap.words, swap.cause, swap.nodes, swap.faults)
        _, ordered = told(operated(rule), replace(heal, decided=swap.decided))
        assert [a.node for a in ordered if isinstance(a, act.Isolate)] == (["n2"] if kept_away else [])
        assert [a.node for a in ordered if isinstance(a, act.Probe)] == ["n2"], "it is looked at in any case"
