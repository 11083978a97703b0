"""Steps that count from the start of a process: what is progress, and what is a crash loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from core_launcher import exits, feed, fresh, outcome, started
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core import launcher
from transom_cli.core.operator.actions import Action, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Policy, Request, State
from transom_cli.core.progress import FEW, Progress, made_progress

NODES = ("n1", "n2", "n3")


def dies(state: launcher.State, after: int, rank: int = 1) -> tuple[launcher.State, list[launcher.Action]]:
    """The present launch makes `after` steps, by the count of its processes; then a rank is killed."""
    at, launch = 100.0 * (state.launch.number + 1), state.launch.number
    state, _ = feed(state, launcher.Stepped(at, launch, after, since_start=True))
    codes = [-9 if r == rank else None for r in range(3)]
    state, _ = feed(
        state,
        launcher.RanksExited(at + 1, launch, exits(*codes)),
        launcher.Tick(at + 3),
        launcher.LaunchEnded(at + 4, launch),
    )
    return feed(state, launcher.LogsRead(at + 5, launch, "unknown", ""))


lengths = st.lists(st.integers(11, 10**6), min_size=3, max_size=3)


@given(lengths.filter(lambda x: all(abs(a - b) > max(3, b // 50) for b, a in pairwise(x))))
def test_starts_of_unlike_length_use_up_no_relaunch(lengths: list[int]) -> None:
    state, _ = feed(fresh(relaunches=1), launcher.AttemptStarted(0.0))
    for rank, made in enumerate(lengths):
        state, orders = dies(state, made, rank)
        assert started(orders) == [NODES]


def test_a_launch_that_always_dies_at_its_own_step_50_uses_up_its_relaunches() -> None:
    state, orders = feed(fresh(relaunches=2), launcher.AttemptStarted(0.0))
    for made, rank in ((50, 0), (50, 1), (51, 2)):
        state, orders = dies(state, made, rank)
    found = outcome(orders).outcome
    assert "relaunched 2 times without progress (51 steps in the last start)" in found.why
    assert (found.step, found.since_start) == (51, True)


def test_a_few_steps_after_each_relaunch_are_no_progress() -> None:
    state, orders = feed(fresh(relaunches=2), launcher.AttemptStarted(0.0))
    for made, rank in ((340, 0), (2, 1), (9, 2)):
        state, orders = dies(state, made, rank)
    assert outcome(orders).outcome.status == "failed"


def test_the_last_step_of_the_rank_that_failed_counts_and_not_a_late_heartbeat() -> None:
    state, _ = feed(fresh(relaunches=1), launcher.AttemptStarted(0.0))
    for seen in (20, 44):
        codes = exits(-9, None, None) if seen == 20 else exits(None, -9, None)
        ended = tuple(ev.RankExit(x.rank, x.node, x.code, x.signal, x.wall, 50, True) for x in codes)
        launch, at = state.launch.number, 100.0 * (state.launch.number + 1)
        state, _ = feed(state, launcher.Stepped(at, launch, seen, since_start=True))
        state, _ = feed(
            state,
            launcher.RanksExited(at + 1, launch, ended),
            launcher.Tick(at + 3),
            launcher.LaunchEnded(at + 4, launch),
        )
        state, orders = feed(state, launcher.LogsRead(at + 5, launch, "unknown", ""))
    assert "(50 steps in the last start)" in outcome(orders).outcome.why


@pytest.mark.parametrize(("made", "before", "progress"), [
    (-1, -1, False), (0, -1, True), (FEW, -1, True), (400, 180, True), (150, 180, True), (FEW, 340, False),
    (50, 50, False), (52, 50, False), (10_100, 10_000, False), (10_300, 10_000, True), (-1, 50, False),
])  # fmt: skip
def test_what_counts_as_progress(made: int, before: int, progress: bool) -> None:
    assert made_progress(made, before) is progress


def test_first_checkpoint_is_progress_even_if_it_is_older_than_a_step_that_was_lost() -> None:
    lost = Progress().stepped(500, False, 500).charged().new_start()
    assert not lost.stepped(400, False, 400).further()
    saved = replace(lost.stepped(120, False, 120), durable=100)
    assert saved.further() and saved.charged().beyond == " beyond step 100"
    again = saved.charged().new_start().stepped(700, False, 700)
    assert not again.further(), "with checkpoints, only a newer one counts"


def test_trainer_that_stepped_until_slurm_took_its_nodes_made_progress() -> None:
    known = Progress().stepped(500, False, 500).charged().new_start()
    assert known.stepped(40, False, 40).further("time_limit") and not known.stepped(40, False, 40).further("hang")
    assert not known.further("time_limit"), "no step was seen, and others made some"
    assert Progress().further("time_limit"), "no step of any start is known: a trainer without heartbeats"


# --- the operator ---


def run(lengths: list[int], allowed: int = 2, *, since_start: bool = True) -> State:
    """A run whose attempts end after so many steps, each on another node; it stops where the operator gives up."""
    nodes = tuple(f"n{i}" for i in range(len(lengths) + 1))
    policy, now = Policy(max_without_progress=allowed, backoff=0.0), 0.0
    state = State(policy=policy, request=Request(num_nodes=len(nodes)))

    def tell(event: ev.Event) -> tuple[Action, ...]:
        nonlocal state
        state, actions = decide(state, event)
        return actions

    tell(ev.Started(now, 1))
    tell(ev.Submitted(now, "submit", 7))
    for restart, made in enumerate(lengths):
        now += 100.0
        attempt = f"7.{restart}"
        tell(ev.JobSeen(now, 7, restart, "RUNNING", nodes=nodes, batch_host=nodes[0]))
        tell(ev.LaunchSeen(now, attempt, 0, nodes, len(nodes)))
        if made >= 0:
            tell(ev.StepSeen(now + 1, attempt, made, since_start))
        died = ev.RankExit(restart, nodes[restart], None, 9, now, made, since_start)
        requested = tell(ev.OutcomeSeen(now + 2, attempt, "failed", "killed", (died,), nodes=nodes))
        for action in requested:
            requested = tell(ev.Examined(now + 3, action.key, "unknown", "", ""))
        restarts = [a for a in (*requested, *tell(ev.Tick(now + 50))) if isinstance(a, Restart)]
        if not restarts:
            return state
        tell(ev.Restarted(now + 51, restarts[0].key, 7, restart + 1, "requeued"))
    return state


def test_a_run_that_resumes_from_checkpoints_of_its_own_is_never_given_up() -> None:
    state = run([340, 180, 150, 40, 210])
    assert (state.phase, state.budget.no_progress, state.job.starts) == (Phase.RECOVERING, 0, 5)


def test_a_run_that_always_crashes_after_as_many_steps_is_given_up() -> None:
    state = run([50] * 9)
    assert (state.job.starts, state.exit_code) == (run([50] * 9, since_start=False).job.starts, 21), "the usual budget"
    assert "restarted 2 times without progress (50 steps in the last start)" in state.verdict
    assert state.budget.no_progress == 2, "a refused restart is not used"


def test_a_run_that_crashes_again_soon_after_its_checkpoint_is_given_up() -> None:
    assert run([340, 40, 40, 40, 40, 40]).exit_code == 21


def test_attempts_without_a_step_do_not_hide_a_loop() -> None:
    assert run([50, -1, 50, -1, 50, -1]).exit_code == 21


def test_steps_of_the_training_itself_are_compared_as_before() -> None:
    assert run([340, 180, 150, 40], since_start=False).exit_code == 21
    assert run([340, 400, 450, 500], since_start=False).budget.no_progress == 0


def test_the_trainings_own_step_is_believed_once_it_is_reported() -> None:
    state = run([340])
    state, _ = decide(state, ev.JobSeen(500.0, 7, 1, "RUNNING", nodes=state.job.nodes))
    state, _ = decide(state, ev.StepSeen(501.0, "7.1", 12))
    assert (state.progress.step, state.progress.max_step, state.progress.since_start) == (12, 12, False)
