"""Requests of people: each counts once, is remembered with its author, and never competes with a recovery."""

from __future__ import annotations

from dataclasses import replace

from test_faults import NODES, Player, fault

from transom_cli.core import events as ev
from transom_cli.core.operator import actions as act
from transom_cli.core.operator import job
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Policy, State


def training(policy: Policy | None = None) -> Player:
    player = Player(policy)
    player.feed(ev.LaunchSeen(1.0, "7.0", 0, NODES, 3), ev.StepSeen(2.0, "7.0", 5))
    assert player.state.phase is Phase.TRAINING
    return player


def test_a_requeue_request_requeues_once_and_isolates_nothing() -> None:
    player = training()
    request = ev.RequeueRequested(3.0, "bob (uid 1002)", "requeue-1")
    player.feed(request, request)
    assert [type(a) for a in player.done if isinstance(a, act.Restart | act.Isolate)] == [act.Restart]
    player.feed(ev.JobSeen(4.0, 7, 1, "RUNNING", nodes=NODES, batch_host="n1"))
    player.feed(ev.LaunchSeen(5.0, "7.1", 0, NODES, 3), ev.StepSeen(6.0, "7.1", 6), request)
    assert player.restarts == 1 and player.state.phase is Phase.TRAINING
    closed = player.state.incidents[-1]
    assert closed.diagnosis is not None and closed.diagnosis.words == "requeue requested by bob (uid 1002)"
    assert [(r.what, r.who, r.result) for r in player.state.requests] == [
        ("requeue", "bob (uid 1002)", "the job is being requeued")
    ]


def test_a_fault_before_the_first_step_after_a_requested_requeue_does_not_make_it_fail_again() -> None:
    player = training()
    player.feed(ev.RequeueRequested(3.0, "bob", "requeue-1"))
    player.feed(ev.JobSeen(4.0, 7, 1, "RUNNING", nodes=NODES, batch_host="n1"), ev.LaunchSeen(5.0, "7.1", 0, NODES, 3))
    player.feed(ev.OutcomeSeen(6.0, "7.1", "failed", "why", nodes=NODES, exits=(ev.RankExit(1, "n2", 1, None),)))
    assert [one.result for one in player.state.incidents] == ["requeued"] and player.state.incident is not None


def test_requested_requeues_are_not_counted_as_restarts_without_progress() -> None:
    player = training(Policy(max_without_progress=1, backoff=1.0))
    for number in range(1, 5):
        player.feed(ev.RequeueRequested(float(number), "bob", f"requeue-{number}"))
        player.feed(ev.JobSeen(float(number), 7, number, "RUNNING", nodes=NODES, batch_host="n1"))
    assert player.restarts == 4 and player.state.budget.no_progress == 0


def test_a_requeue_request_during_a_recovery_or_without_a_running_job_changes_nothing() -> None:
    player = Player(Policy(backoff=100.0))
    player.feed(
        ev.OutcomeSeen(1.0, "7.0", "left", "why", nodes=NODES, cause="preflight", faults=(fault("n2", "SUSPECT"),))
    )
    before = player.state.incident
    player.feed(ev.RequeueRequested(2.0, "bob", "requeue-1"))
    assert player.state.incident == before and player.state.requests[-1].result.startswith("refused")
    waiting = Player()
    waiting.feed(ev.JobSeen(1.0, 7, 0, "PENDING"), ev.RequeueRequested(2.0, "bob", "requeue-1"))
    assert waiting.restarts == 0 and "no job is running" in waiting.state.requests[-1].result


def test_a_resume_request_releases_a_held_job_once() -> None:
    player = training()
    player.feed(ev.ResumeRequested(3.0, "bob", "resume-1"))
    assert player.state.requests[-1].result == "nothing to resume: the run is training"
    player.feed(ev.JobSeen(4.0, 7, 1, "PENDING", held=True, reason="JobHeldUser"))
    assert player.state.phase is Phase.HELD
    request = ev.ResumeRequested(5.0, "bob", "resume-2")
    player.feed(request, request)
    assert [a.job_id for a in player.done if isinstance(a, act.Release)] == [7]


def test_a_stop_request_is_remembered_with_its_author() -> None:
    player = training()
    player.feed(ev.StopRequested(3.0, "bob (uid 1002)"))
    assert [(r.what, r.who) for r in player.state.requests] == [("stop", "bob (uid 1002)")]


def test_second_request_while_the_first_is_under_way_names_it() -> None:
    player = training()
    state, _ = decide(player.state, ev.RequeueRequested(3.0, "bob", "requeue-1"))
    state, _ = decide(state, ev.RequeueRequested(3.1, "eve", "requeue-2"))
    assert state.requests[-1].result == "refused: the job is being requeued already: requeue requested by bob"


def test_a_stop_before_any_operator_ends_the_run_and_orders_nothing() -> None:
    state, actions = decide(State(), ev.StopRequested(1.0, "ann"))
    assert (state.phase, state.exit_code, actions) == (Phase.STOPPED, 130, ())
    assert state.verdict == "stopped by ann; its job was never submitted"
    assert decide(state, ev.Started(2.0, 1))[1] == ()


def test_a_stop_before_the_answer_of_sbatch_says_so_only_if_nothing_was_submitted() -> None:
    begun, _ = decide(State(), ev.Started(1.0, 1))
    stopping, actions = decide(begun, ev.StopRequested(2.0, "ann"))
    assert stopping.phase is Phase.STOPPING and [type(a) for a in actions] == [act.Cancel]
    none, _ = decide(stopping, ev.Acted(3.0, actions[0].key, job.NOTHING_SUBMITTED))
    assert (none.phase, none.verdict) == (Phase.STOPPED, "stopped by ann; its job was never submitted")
    some, _ = decide(stopping, ev.Acted(3.0, actions[0].key, "cancelled"))
    assert (some.phase, some.verdict) == (Phase.STOPPED, "stopped by ann")


def test_a_run_resumed_from_an_older_checkpoint_makes_progress_from_there() -> None:
    player = training()
    player.feed(ev.StepSeen(3.0, "7.0", 60), ev.CheckpointSeen(4.0, 50), ev.StopRequested(5.0, "ann"))
    player.feed(ev.JobSeen(6.0, 7, 0, "CANCELLED"), ev.Resumed(7.0, "ann", back_to=30))
    assert player.state.phase is Phase.SUBMITTING and player.state.progress.durable == 30
    progress = replace(player.state.progress, durable=40)
    assert progress.further() and not player.state.progress.further()
