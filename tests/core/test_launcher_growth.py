"""The launcher's core: a run that has shrunk gets nodes back, and grows at a step boundary."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TypeVar

import pytest
from core_launcher import NODES, exits, feed, fresh, lost, outcome, started
from hypothesis import given, settings
from hypothesis import strategies as st
from test_launcher_promises import stories
from test_launcher_shrink import FOUR, elastic

from transom_cli.core import costs, launcher
from transom_cli.core.codec import build, plain
from transom_cli.core.events import NodeFault, RecoverySeen
from transom_cli.core.launcher import Action, State

TOP_UP = ("m1",)


def shrunk(**policy: object) -> State:
    """Trains on n1, n3 and n4 since n2 did not answer; step 6 was done and is durable."""
    state = elastic()
    state = replace(state, policy=replace(state.policy, **policy))  # type: ignore[arg-type]
    state, _ = lost(state, 9.0, "n2")
    return feed(state, launcher.TasksSeen(15.0, 1), launcher.Stepped(20.0, 1, 6), launcher.CheckpointDurable(21.0, 6))[
        0
    ]


T = TypeVar("T")


def of_type(actions: list[Action], kind: type[T]) -> list[T]:
    return [a for a in actions if isinstance(a, kind)]


def said(actions: list[Action], what: str) -> list[str]:
    return [a.words for a in of_type(actions, launcher.Journal) if a.what == what]


def saved(state: State, at: float) -> tuple[State, list[Action]]:
    """All ranks save, and the launch is ended."""
    launch = state.launch.number
    return feed(
        state,
        launcher.CheckpointPlanned(at, launch, 9),
        launcher.CheckpointDurable(at + 1, 9),
        launcher.LaunchEnded(at + 2, launch),
    )


def with_top_up() -> State:
    """A top-up job has brought m1, which is ready."""
    state, actions = feed(shrunk(top_up=True), launcher.Tick(22.0))
    assert of_type(actions, launcher.SubmitTopUp) == [launcher.SubmitTopUp(1, 1)]
    state, actions = feed(state, launcher.TopUpSubmitted(23.0, 8), launcher.TopUpStarted(30.0, 8, TOP_UP))
    assert of_type(actions, launcher.WatchSpares) == [launcher.WatchSpares(TOP_UP)]
    return feed(state, launcher.SpareChecked(31.0, "m1", good=True))[0]


def test_run_that_lacks_nodes_says_when_it_asks_slurm_again() -> None:
    state, _ = feed(shrunk(top_up=True), launcher.Tick(22.0))
    refused, actions = feed(state, launcher.TopUpSubmitted(23.0, 0, "Slurm refused: QOSMaxJobs"))
    assert said(actions, "top-up") == [
        "Slurm refused: QOSMaxJobs; the next one follows after 5 min if nodes still lack"
    ]
    state, _ = feed(refused, launcher.Tick(324.0))
    _, actions = feed(state, launcher.TopUpSubmitted(325.0, 0, "Slurm refused: QOSMaxJobs"))
    assert said(actions, "top-up")[0].endswith("after 15 min if nodes still lack")


def test_a_node_that_answers_again_is_checked_and_gets_ranks() -> None:
    state, actions = feed(shrunk(preflight=True), launcher.NodeReturned(30.0, "n2"))
    assert actions == [launcher.CheckNodes("growth", ("n2",), "quick")]
    state, actions = feed(state, launcher.NodesChecked(35.0, "growth", words="1 node is fine"))
    assert of_type(actions, launcher.WatchSpares) == [launcher.WatchSpares(("n2",))]
    state, actions = feed(state, launcher.SpareChecked(36.0, "n2", good=True), launcher.Tick(36.0))
    assert of_type(actions, launcher.RequestCheckpoint) == [launcher.RequestCheckpoint(1)]
    state, actions = saved(state, 37.0)
    assert started(actions) == [FOUR]
    assert said(actions, "grown") == ["continues on 4 of 4 nodes, with n2"]
    assert state.nodes.lacking == 0 and not state.nodes.given_up


def test_a_node_that_returns_and_is_lost_again_stays_out() -> None:
    state, _ = feed(
        shrunk(), launcher.NodeReturned(30.0, "n2"), launcher.SpareChecked(31.0, "n2", good=True), launcher.Tick(31.0)
    )
    state, _ = feed(saved(state, 32.0)[0], launcher.Stepped(40.0, 2, 12))
    state, actions = lost(state, 45.0, "n2")
    assert started(actions) == [("n1", "n3", "n4")]
    state, actions = feed(state, launcher.Stepped(60.0, 3, 14), launcher.NodeReturned(61.0, "n2"))
    assert not of_type(actions, launcher.WatchSpares)


def test_a_node_with_a_finding_does_not_return() -> None:
    state = shrunk(preflight=True)
    fault = NodeFault("n2", "gpu_ecc", "FAIL", "uncorrectable errors", "gpu0")
    state, actions = feed(state, launcher.NodeReturned(30.0, "n2"), launcher.NodesChecked(35.0, "growth", (fault,)))
    assert not of_type(actions, launcher.WatchSpares)
    state, actions = feed(state, launcher.NodeReturned(65.0, "n2"), launcher.SpareChecked(66.0, "n2", good=True))
    assert actions == [] and "n2" in state.nodes.given_up


def test_the_nodes_of_a_top_up_job_get_ranks_at_a_step_boundary() -> None:
    state, actions = feed(with_top_up(), launcher.Tick(31.0))
    assert of_type(actions, launcher.RequestCheckpoint)
    state, actions = saved(state, 32.0)
    assert started(actions) == [("n1", "n3", "n4", "m1")]
    state, actions = feed(state, launcher.Stepped(40.0, 2, 12), launcher.Tick(41.0))
    assert actions == [], "the run has all its nodes"


def test_top_up_job_whose_node_is_lost_is_cancelled_and_another_one_follows() -> None:
    state, _ = feed(saved(feed(with_top_up(), launcher.Tick(31.0))[0], 32.0)[0], launcher.Stepped(40.0, 2, 12))
    state, actions = lost(state, 51.0, "m1")
    assert started(actions) == [("n1", "n3", "n4")]
    state, actions = feed(state, launcher.TasksSeen(59.0, 3), launcher.Stepped(60.0, 3, 14), launcher.Tick(60.5))
    assert of_type(actions, launcher.CancelTopUp) == [launcher.CancelTopUp(8, "its nodes are lost")]
    assert said(actions, "top-up") == ["job 8 has lost its nodes; the next one follows after 5 min if nodes still lack"]
    assert not of_type(feed(state, launcher.Tick(300.0))[1], launcher.SubmitTopUp)
    assert of_type(feed(state, launcher.Tick(361.0))[1], launcher.SubmitTopUp) == [launcher.SubmitTopUp(1, 1)]


def test_a_top_up_job_that_dies_is_a_lost_node_and_blames_nobody() -> None:
    state, _ = feed(saved(feed(with_top_up(), launcher.Tick(31.0))[0], 32.0)[0], launcher.Stepped(40.0, 2, 12))
    state, actions = feed(state, launcher.TopUpEnded(50.0, 8, "PREEMPTED"))
    state, actions = lost(state, 51.0, "m1")
    assert started(actions) == [("n1", "n3", "n4")]
    assert "m1" not in (*state.nodes.allocated, *state.nodes.given_up)
    state, actions = feed(state, launcher.TasksSeen(59.0, 3), launcher.Stepped(60.0, 3, 14), launcher.Tick(61.0))
    assert not of_type(actions, launcher.SubmitTopUp), "another one follows later"
    due = launcher.next_deadline(state)
    assert due is not None and due >= 50.0 + 300.0
    _, actions = feed(state, launcher.Tick(due))
    assert of_type(actions, launcher.SubmitTopUp)


def test_there_is_never_more_than_one_top_up_job_and_pauses_grow_after_refusals() -> None:
    state, at, submitted = shrunk(top_up=True), 22.0, []
    while at < 7200.0:
        state, actions = feed(state, launcher.Tick(at))
        if of_type(actions, launcher.SubmitTopUp):
            assert not of_type(feed(state, launcher.Tick(at + 5))[1], launcher.SubmitTopUp), "an answer is due"
            submitted.append(at)
            state, _ = feed(state, launcher.TopUpSubmitted(at + 1, 0, "Slurm refused: QOSMaxJobs"))
        at += 10.0
    gaps = [b - a for a, b in itertools.pairwise(submitted)]
    assert len(submitted) == 4 and gaps == sorted(gaps) and gaps[0] >= 300.0


def test_a_job_that_started_with_fewer_nodes_asks_for_the_others() -> None:
    state = fresh(NODES, top_up=True)  # type: ignore[arg-type]
    state = replace(state, nodes=replace(state.nodes, wanted=4, fewest=2))
    state, actions = feed(state, launcher.AttemptStarted(0.0), launcher.TasksSeen(1.0, 0), launcher.Stepped(5.0, 0, 4))
    assert started(actions) == [NODES]
    assert of_type(feed(state, launcher.Tick(6.0))[1], launcher.SubmitTopUp) == [launcher.SubmitTopUp(1, 1)]


def test_spares_that_cannot_be_used_yet_are_not_asked_for_twice() -> None:
    state, _ = lost(elastic(), 9.0, "n2")  # nothing is durable
    state = replace(state, policy=replace(state.policy, top_up=True))
    state, _ = feed(state, launcher.TasksSeen(15.0, 1), launcher.Stepped(20.0, 1, 6), launcher.NodeReturned(21.0, "n2"))
    _, actions = feed(state, launcher.SpareChecked(22.0, "n2", good=True), launcher.Tick(23.0))
    assert actions == []


@pytest.mark.parametrize("how", ["stop", "failure", "done"])
def test_the_top_up_job_is_cancelled_when_the_attempt_ends(how: str) -> None:
    state, launch = with_top_up(), 1
    if how == "stop":
        received = [launcher.StopRequested(40.0, "TERM"), launcher.GracePeriodOver(60.0)]
    elif how == "done":
        received = [launcher.RanksExited(40.0, launch, exits(0, 0, 0, node_of=state.nodes.training))]
    else:
        received = [launcher.StartFailed(40.0, launch, "srun is not here")]
    state, actions = feed(state, *received)
    assert state.phase is launcher.Phase.OVER and outcome(actions)
    assert [a.job_id for a in of_type(actions, launcher.CancelTopUp)] == [8]


def test_a_top_up_job_that_is_not_needed_any_more_is_cancelled() -> None:
    state, _ = feed(shrunk(top_up=True), launcher.Tick(22.0), launcher.TopUpSubmitted(23.0, 8))
    state, actions = feed(
        state, launcher.NodeReturned(24.0, "n2"), launcher.SpareChecked(25.0, "n2", good=True), launcher.Tick(25.0)
    )
    assert [a.job_id for a in of_type(actions, launcher.CancelTopUp)] == [8]
    assert not of_type(feed(state, launcher.TopUpStarted(26.0, 8, TOP_UP))[1], launcher.WatchSpares)


def test_nothing_grows_shortly_before_the_time_limit() -> None:
    state = shrunk(top_up=True)
    begun = replace(state.before, ends_at=30.0)
    state, actions = feed(replace(state, begun=begun), launcher.Tick(22.0))
    assert actions == []


def test_a_run_whose_training_saves_nothing_does_not_grow() -> None:
    state, _ = lost(elastic(), 9.0, "n2")
    state, _ = feed(state, launcher.Stepped(20.0, 1, 6), launcher.NodeReturned(21.0, "n2"))
    _, actions = feed(state, launcher.SpareChecked(22.0, "n2", good=True), launcher.Tick(23.0))
    assert not of_type(actions, launcher.RequestCheckpoint)


def test_the_time_limit_comes_before_a_growth() -> None:
    state, _ = feed(with_top_up(), launcher.Tick(31.0), launcher.TimeLimitNear(32.0))
    state, actions = saved(state, 33.0)
    assert outcome(actions).outcome.cause == "time_limit"


def test_a_lost_node_compares_what_shrinking_and_a_requeue_cost() -> None:
    state, _ = feed(elastic(), launcher.QueueSeen(1.0, ((4, 900.0), (4, 600.0), (2, 60.0), (1, 60.0))))
    state = replace(state, begun=replace(state.before, ends_at=3600.0))
    _, actions = lost(state, 9.0, "n2")
    (words,) = said(actions, "compared")
    assert words.startswith("training time lost: shrink to 3 nodes: 60 node-min; wait: 4")
    assert "; requeue: 48 node-min (" in words
    assert "600 s in the queue, 60 s for the missing nodes, from 3 jobs" in words


def test_the_comparison_is_computed_again_from_the_journal() -> None:
    state, _ = feed(elastic(), launcher.QueueSeen(1.0, ((8, 700.0),)))
    _, actions = lost(state, 9.0, "n2")
    (entry,) = [a for a in of_type(actions, launcher.Journal) if a.what == "compared"]
    record = json.loads(json.dumps({**plain(entry), "at": 9.0, "attempt": "7.0"}))
    situation = build(RecoverySeen, record).situation
    assert situation is not None and costs.comparison(situation) == entry.words


def test_the_wait_is_that_of_jobs_of_similar_size_or_else_of_larger_ones() -> None:
    waits = ((64, 3600.0), (8, 5.0), (4, 4.0), (16, 6.0), (2, 1.0))
    assert costs.similar(waits, 8) == [5.0, 4.0, 6.0]
    assert costs.similar(((64, 3600.0),), 8) == [3600.0]
    assert costs.similar(((1, 3600.0),), 8) == []
    assert len(costs.similar(((8, 1.0),) * 50, 8)) == costs.RECENT


def test_a_run_that_may_shrink_keeps_its_nodes_whatever_a_requeue_would_cost() -> None:
    state = elastic()
    state = replace(state, begun=replace(state.before, ends_at=360000.0))
    state, _ = feed(state, launcher.QueueSeen(1.0, ((4, 1.0), (1, 1.0))))
    _, actions = lost(state, 9.0, "n2")
    assert started(actions) == [("n1", "n3", "n4")], "nobody knows whether Slurm has other nodes this time"


def test_a_growth_pays_if_the_new_nodes_train_longer_than_the_others_start_up() -> None:
    assert costs.growth_pays(7, 1, startup=30.0, left=3600.0)
    assert not costs.growth_pays(7, 1, startup=30.0, left=300.0)


at = st.just(0.0)
jobs = st.sampled_from([7, 8])
growing = st.one_of(
    st.builds(launcher.NodeReturned, at, st.sampled_from(FOUR)),
    st.builds(launcher.SpareChecked, at, st.sampled_from([*FOUR, *TOP_UP]), st.booleans()),
    st.builds(launcher.TopUpSubmitted, at, st.sampled_from([0, 7, 8])),
    st.builds(launcher.TopUpStarted, at, jobs, st.sampled_from([TOP_UP, ("m1", "m2"), ("n1",)])),
    st.builds(launcher.TopUpEnded, at, jobs),
    st.builds(launcher.NodesChecked, at, st.just("growth")),
    st.builds(launcher.Tick, at),
)


@settings(max_examples=300, deadline=None)
@given(
    st.booleans(),
    st.integers(1, 3),
    st.lists(st.one_of(stories, st.lists(st.tuples(st.just(1.0), growing))), max_size=8),
)
def test_promises_of_a_run_that_grows(
    preflight: bool, fewest: int, parts: list[list[tuple[float, launcher.Event]]]
) -> None:
    state, now = elastic(fewest=fewest), 9.0
    state = replace(state, policy=replace(state.policy, top_up=True, preflight=preflight))
    asked, jobs_alive, clean = 0, set[int](), {0}
    for pause, received in (one for part in parts for one in part):
        if isinstance(received, launcher.TopUpSubmitted) and not asked:
            continue  # Slurm answers what was asked
        now += pause
        before, over = state, state.phase is launcher.Phase.OVER
        if isinstance(received, launcher.LaunchEnded) and received.launch == state.launch.number:
            clean.add(received.launch)
        state, actions = launcher.decide(state, replace(received, at=now))
        assert not (over and actions)
        if isinstance(received, launcher.TopUpSubmitted):
            asked -= 1
            jobs_alive |= {received.job_id} - {0}
        if isinstance(received, launcher.TopUpEnded):
            jobs_alive.discard(received.job_id)
        for action in actions:
            if isinstance(action, launcher.SubmitTopUp):
                assert not jobs_alive and not asked, "there is never more than one"
                assert 1 <= action.least <= action.most <= 4 - len(state.nodes.training)
                asked += 1
            if isinstance(action, launcher.CancelTopUp):
                jobs_alive.discard(action.job_id)
            if isinstance(action, launcher.StartLaunch):
                assert fewest <= len(set(action.nodes)) <= 4 and len(set(action.nodes)) == len(action.nodes)
                assert action.launch - 1 in clean, "beside what may still live"
                assert not set(action.nodes) & {*state.nodes.given_up, *before.growth.lost}
        if state.phase is launcher.Phase.OVER:
            assert not jobs_alive, "nothing needs it any more"
