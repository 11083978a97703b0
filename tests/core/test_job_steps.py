"""Several job steps of a user's own script in one attempt: numbers, progress, budgets and the account of time."""

from __future__ import annotations

from dataclasses import replace

from core_launcher import NODES, exits, feed, killed, outcome
from goodput_world import Launched, accounted, row, running, submitted

from transom_cli.core import events as ev
from transom_cli.core import launcher
from transom_cli.core.launcher import History, Launch, Nodes
from transom_cli.core.operator.actions import Cancel, Isolate, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Policy, Request, State

SECOND = launcher.State(
    7,
    0,
    Nodes(NODES, 3),
    1,
    launcher.Policy(relaunches=1),
    job_step="train",
    first=2,
    launch=Launch(1),
    history=History(numbered=1),
)


def test_second_step_numbers_its_launches_and_incidents_on() -> None:
    state, actions = feed(SECOND, launcher.AttemptStarted(0.0))
    assert actions == [launcher.StartLaunch(2, NODES)]
    state = killed(feed(state, launcher.Stepped(5.0, 2, 4))[0], 10.0)
    assert state.incident is not None and state.incident.id == "l2"
    assert state.launch.number == 3
    state, actions = feed(state, launcher.RanksExited(20.0, 3, exits(0, 0, 0)))
    assert outcome(actions).outcome.job_step == "train" and outcome(actions).exit_code == 0


def test_first_launch_of_a_later_step_may_take_long_to_start() -> None:
    state, _ = feed(SECOND, launcher.AttemptStarted(0.0))
    state, actions = feed(state, launcher.Tick(100000.0))
    assert actions == [] and launcher.next_deadline(state) is None


def test_later_step_does_not_train_on_fewer_nodes_after_an_earlier_one_gave_some_up() -> None:
    short = replace(SECOND, nodes=Nodes(NODES[:2], 3))
    _, actions = feed(short, launcher.AttemptStarted(0.0))
    found = outcome(actions)
    assert (found.outcome.status, found.again) == ("left", "requeue") and "3 nodes are needed" in found.outcome.why


# --- the operator ---


def start(restart: int, name: str, launch: int, at: float) -> tuple[ev.Event, ...]:
    return (ev.LaunchSeen(at, f"7.{restart}", launch, ("n1", "n2"), 2, job_step=name),)


def failed(restart: int, at: float, step: int, name: str) -> ev.OutcomeSeen:
    exit_ = ev.RankExit(0, "n1", 1, None, at, step)
    return ev.OutcomeSeen(at, f"7.{restart}", "failed", "rank 0 died", (exit_,), nodes=("n1", "n2"), job_step=name)


def play(state: State, *events: ev.Event) -> State:
    """Feed events, and answer what the operator orders."""
    for event in events:
        state, actions = decide(state, event)
        for action in actions:
            if isinstance(action, Restart):
                state, _ = decide(state, ev.Restarted(event.at, action.key, 7, state.job.restarts + 1, "requeued"))
            elif isinstance(action, Isolate):
                state = play(state, ev.Isolated(event.at, action.key, action.node, "excluded", ""))
            elif isinstance(action, Cancel):
                state = play(state, ev.JobSeen(event.at, 7, state.job.restarts, "CANCELLED"))
            elif action.key.endswith("/examine"):
                state = play(state, ev.Examined(event.at, action.key, "unknown", "", ""))
    return state


def running_run() -> State:
    state = State(policy=Policy(max_without_progress=2, backoff=0.0), request=Request(num_nodes=2))
    return play(state, *submitted(), running(1.0))


def test_crash_loop_in_the_second_step_is_stopped_although_the_first_one_steps_each_time() -> None:
    state = running_run()
    for restart in range(8):
        at = 1000.0 * (restart + 1)
        state = play(
            state,
            running(at, restart),
            *start(restart, "tokenize", 0, at + 1),
            ev.StepSeen(at + 2, f"7.{restart}", 500),
            ev.JobStepDone(at + 3, f"7.{restart}", "tokenize"),
            *start(restart, "train", 1, at + 4),
            failed(restart, at + 5, 3, "train"),
            ev.Tick(at + 400),
        )
        if state.phase.over:
            break
    assert (state.phase, state.exit_code, state.job.restarts) == (Phase.FAILED, 21, 3), state.verdict
    assert "without progress" in state.verdict


def test_second_step_that_progresses_may_be_restarted_any_number_of_times() -> None:
    state = running_run()
    for restart in range(8):
        at = 1000.0 * (restart + 1)
        state = play(
            state,
            running(at, restart),
            *start(restart, "tokenize", 0, at + 1),
            ev.StepSeen(at + 2, f"7.{restart}", 500),
            *start(restart, "train", 1, at + 4),
            ev.StepSeen(at + 5, f"7.{restart}", 10 * restart + 10),  # far below the first step's 500
            failed(restart, at + 6, 10 * restart + 10, "train"),
            ev.Tick(at + 400),
        )
    assert not state.phase.over and state.job.restarts == 8


def test_end_of_a_step_is_not_the_end_of_the_attempt() -> None:
    state = play(running_run(), *start(0, "1", 0, 5.0), ev.StepSeen(6.0, "7.0", 3), ev.JobStepDone(7.0, "7.0", "1"))
    assert state.phase is Phase.TRAINING
    state = play(state, *start(0, "2", 1, 8.0), ev.StepSeen(9.0, "7.0", 1))
    assert (state.job_step, state.progress.step, state.launch.number) == ("2", 1, 1)
    assert dict(state.other_steps)["1"].max_step == 3
    state = play(state, ev.JobStepDone(10.0, "7.0", "2"), ev.JobSeen(11.0, 7, 0, "COMPLETED"))
    assert (state.phase, state.exit_code) == (Phase.DONE, 0)


# --- the account ---


def test_steps_of_another_job_step_are_not_done_again() -> None:
    told = Launched("7.0", 10)
    told._add("launch", 10.0, launch=0, job_step="1")
    told._launch = 0
    told.steps((20, 1), (80, 61))._add("job_step", 81.0, job_step="1", status="done")
    told._launch = 1
    told._add("launch", 90.0, job_step="2")
    told.steps((95, 1), (125, 31))._add("job_step", 126.0, job_step="2", status="done")
    events = (*submitted(), running(10), ev.StepSeen(20, "7.0", 1), ev.JobSeen(130, 7, 0, "COMPLETED"))
    assert row(accounted(events, told)) == [
        (10, "queue", "start"),
        (10, "restart", "start"),
        (61, "productive", ""),
        (9, "idle", ""),
        (5, "restart", "start"),
        (31, "productive", ""),
        (4, "idle", ""),
    ]
