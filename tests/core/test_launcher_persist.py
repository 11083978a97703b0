"""The launcher's core: what the nodes hold in memory becomes durable before an attempt is given up."""

from __future__ import annotations

from core_launcher import NODES, exits, feed, fresh, outcome

from transom_cli.core import launcher
from transom_cli.core.launcher import Action, State

PERSIST = launcher.PersistMemory(0, 15.0)
MADE = "step 9 was made durable from memory"


def training(**policy: float) -> State:
    """Step 4 is durable, step 9 is done."""
    begun = launcher.AttemptStarted(0.0, memory=True)
    return feed(
        fresh(**policy),
        begun,
        launcher.Stepped(5.0, 0, 4),
        launcher.CheckpointDurable(6.0, 4),
        launcher.Stepped(7.0, 0, 9),
    )[0]


def died(state: State, at: float = 9.0) -> tuple[State, list[Action]]:
    """A rank; the rest is ended, the logs say nothing."""
    ends = (launcher.RanksExited(at, 0, exits(None, -9, None)), launcher.Tick(at + 2), launcher.LaunchEnded(at + 3, 0))
    return feed(state, *ends, launcher.LogsRead(at + 4, 0, "unknown", ""))


def test_a_launch_that_is_started_again_finds_its_memory_and_nothing_is_written() -> None:
    _, actions = died(training())
    assert launcher.StartLaunch(1, NODES) in actions and PERSIST not in actions


def test_an_attempt_that_is_handed_up_waits_for_what_is_in_memory() -> None:
    state, actions = died(training(relaunches=0))
    assert actions[-1] == PERSIST and not any(isinstance(o, launcher.FinishAttempt) for o in actions)
    assert (
        feed(state, launcher.Tick(14.0), launcher.Stepped(15.0, 0, 99), launcher.RanksExited(15.0, 0, exits(0, 0, 0)))[
            1
        ]
        == []
    )
    _, actions = feed(state, launcher.MemoryPersisted(16.0, 0, 9, MADE))
    left = outcome(actions)
    assert actions[0] == launcher.Journal("", "kept", MADE)
    assert (left.outcome.status, left.outcome.durable, left.again) == ("failed", 9, "requeue")
    assert left.outcome.why.endswith(f"; {MADE}")


def test_progress_that_only_memory_holds_counts_once_it_is_durable() -> None:
    def after(kept: int) -> str:
        begun = launcher.AttemptStarted(0.0, durable=4, stuck=3, memory=True)
        state, _ = died(feed(fresh(relaunches=0), begun, launcher.Stepped(5.0, 0, 9))[0])
        return outcome(feed(state, launcher.MemoryPersisted(16.0, 0, kept, "words"))[1]).again

    assert (after(9), after(4)) == ("requeue", "hold")


def test_where_nothing_is_in_memory_nothing_is_said() -> None:
    state, _ = died(training(relaunches=0))
    _, actions = feed(state, launcher.MemoryPersisted(13.2, 0, 4))
    assert len(actions) == 1 and outcome(actions).outcome.durable == 4
    assert "memory" not in outcome(actions).outcome.why


def test_it_is_not_waited_for_without_end() -> None:
    state, _ = died(training(relaunches=0))
    assert feed(state, launcher.Tick(27.9))[1] == []
    left, actions = feed(state, launcher.Tick(28.0))
    assert outcome(actions).outcome.why.endswith("did not become durable in time")
    assert feed(left, launcher.MemoryPersisted(29.0, 0, 9, MADE))[1] == [], "the outcome stands"


def test_large_checkpoints_get_the_time_that_they_are_known_to_take() -> None:
    """A step takes 60 s, and step 4 became durable 100 s after it was done."""
    begun = launcher.AttemptStarted(0.0, memory=True)
    steps = (launcher.Stepped(60.0 * n, 0, n) for n in range(1, 6))
    state, _ = feed(fresh(relaunches=0), begun, *steps, launcher.CheckpointDurable(340.0, 4))

    def limit(step: int) -> float:
        (action,) = (a for a in died(feed(state, launcher.Stepped(60.0 * step, 0, step))[0], 2000.0)[1] if
                     isinstance(a, launcher.PersistMemory))  # fmt: skip
        return action.seconds

    assert limit(30) == 200.0, "twice as long"
    assert limit(6) == 120.0, "two steps are repeated in that time"
    waiting, _ = died(feed(state, launcher.Stepped(1800.0, 0, 30))[0], 2000.0)
    assert feed(waiting, launcher.Tick(2203.0))[1] == []
    assert outcome(feed(waiting, launcher.Tick(2205.0))[1]).outcome.why.endswith("did not become durable in time")


def test_stop_request_with_hanging_ranks_writes_memory_in_time() -> None:
    state, actions = feed(
        training(),
        launcher.StopRequested(20.0, "SIGTERM"),
        launcher.CheckpointPlanned(20.5, 0, 30),
        launcher.Tick(27.9),
    )
    assert PERSIST not in actions
    state, actions = feed(state, launcher.Tick(28.0), launcher.Tick(29.0))
    assert actions == [PERSIST], "once"
    kept, _ = feed(state, launcher.MemoryPersisted(31.0, 0, 9, MADE))
    _, actions = feed(kept, launcher.Tick(40.0), launcher.GracePeriodOver(47.0))
    found = outcome(actions).outcome
    assert (found.status, found.durable) == ("stopped", 9) and found.why.endswith(
        f"the newest durable step is 9; {MADE}"
    )
    _, actions = feed(state, launcher.GracePeriodOver(47.0))
    found = outcome(actions).outcome
    assert found.durable == 4 and "held in memory did not become durable in time" in found.why


def test_stop_request_with_saving_ranks_leaves_memory_alone() -> None:
    state, _ = feed(
        training(),
        launcher.StopRequested(20.0, "SIGTERM"),
        launcher.CheckpointPlanned(20.5, 0, 12),
        launcher.CheckpointDurable(25.0, 12),
    )
    _, actions = feed(state, launcher.Tick(29.0), launcher.LaunchEnded(30.0, 0))
    assert outcome(actions).outcome.why == "stopped by SIGTERM; step 12 is durable"
    assert PERSIST not in actions


def test_stop_request_while_memory_is_written_ends_in_time() -> None:
    state, _ = died(training(relaunches=0, keeping=100))
    _, actions = feed(
        state, launcher.StopRequested(14.0, "SIGTERM"), launcher.Tick(30.0), launcher.GracePeriodOver(41.0)
    )
    found = outcome(actions).outcome
    assert found.status == "failed" and found.why.endswith("did not become durable in time")


def test_a_training_that_is_done_needs_no_memory() -> None:
    _, actions = feed(training(), launcher.RanksExited(9.0, 0, exits(0, 0, 0)))
    assert outcome(actions).outcome.status == "done"
