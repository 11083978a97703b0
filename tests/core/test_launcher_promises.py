"""The launcher's core, whatever it hears: nothing starts beside what may still live, and every budget ends."""

from __future__ import annotations

from dataclasses import replace

from core_launcher import NODES, SPARE, exits, feed, fresh, training
from core_policy import report_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import launcher
from transom_cli.core.events import Stall
from transom_cli.core.launcher import Memory, Phase, decide
from transom_cli.core.policy import Rule

launches, steps = st.integers(0, 4), st.integers(-1, 30)
some_exits = st.lists(st.sampled_from([None, 0, 1, 2, 15, 93, -9, -15]), min_size=3, max_size=3).map(
    lambda c: exits(*c)
)
some_nodes = st.lists(st.sampled_from((*NODES, SPARE, "n9")), max_size=2).map(tuple)
at = st.just(0.0)
reported = st.one_of(
    st.builds(
        launcher.AnomalyReported, at, launches, st.just("slow_node:n2"), st.just("slow_node"), st.just("slow"),
        steps, some_nodes, over=st.booleans(),
    ),
    st.builds(
        launcher.AnomalyReported, at, launches, st.just("nan_loss"), st.just("nan_loss"), st.just("no number"),
        steps, st.just(()), before=steps, back_to=steps, over=st.booleans(),
    ),
)  # fmt: skip
stories = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 2.0, 150.0]),
        st.one_of(
            st.builds(launcher.Tick, at),
            st.builds(launcher.AttemptStarted, at, steps, memory=st.booleans()),
            st.builds(launcher.RanksExited, at, launches, some_exits, st.booleans(), st.sampled_from([None, 0, 1])),
            st.builds(
                launcher.Stalled,
                at,
                launches,
                st.builds(Stall, steps, st.just(9.0), st.just(8.0), st.just((1,)), some_nodes),
            ),
            st.builds(launcher.Stepped, at, launches, steps),
            st.builds(launcher.CheckpointDurable, at, steps),
            st.builds(
                launcher.LaunchEnded,
                at,
                launches,
                some_exits,
                some_nodes,
                st.sampled_from([(), (("n1", "process 5"),)]),
            ),
            st.builds(
                launcher.LogsRead,
                at,
                launches,
                st.sampled_from(["user_code", "network_fabric", "unknown"]),
                st.sampled_from(["", "x"]),
                hearing=st.sampled_from([(), (0, 1, 2), (0, 2)]),
            ),
            st.builds(launcher.HangJudged, at, launches, st.sampled_from([(), (1,), (1,), (0, 1)])),
            st.builds(launcher.RanksKilled, at, launches, some_exits, some_nodes),
            st.builds(launcher.RanksEntered, at, launches, st.just((0, 1, 2))),
            st.builds(launcher.StopRequested, at, st.just("TERM")),
            st.builds(launcher.TasksSeen, at, launches),
            st.builds(launcher.StartFailed, at, launches, st.just("no space")),
            st.builds(launcher.GracePeriodOver, at),
            st.builds(launcher.SpareChecked, at, st.sampled_from([SPARE, "n2"]), st.booleans()),
            st.builds(launcher.TimeLimitNear, at),
            reported,
            st.builds(launcher.NodeUnreachable, at, st.sampled_from([SPARE, "n2"]), st.sampled_from([1.0, 20.0, 50.0])),
            st.builds(launcher.NodesDraining, at, some_nodes, st.just("fan")),
            st.builds(launcher.CheckpointPlanned, at, launches, steps, st.just(""), st.booleans()),
            st.builds(
                launcher.MemoryPersisted,
                at,
                launches,
                steps,
                st.sampled_from(["", "step 9 was made durable from memory"]),
            ),
        ),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2), st.one_of(st.just(()), report_rules), stories
)
def test_promises(
    relaunches: int,
    spare: bool,
    recoverable: bool,
    fewest: int,
    rules: tuple[Rule, ...],
    story: list[tuple[float, launcher.Event]],
) -> None:
    allocated = (*NODES, SPARE) if spare else NODES
    state, now = fresh(allocated, relaunches=relaunches, recoverable=recoverable), 0.0
    state = replace(state, policy=replace(state.policy, rules=rules), nodes=replace(state.nodes, fewest=fewest))
    by_reports = sum(rule.budget or 0 for rule in rules) * 2  # each rule's budget, for either thing that is reported
    clean: set[int] = set()  # launches of which nothing is left, by their agents' word
    requested: set[int] = set()
    started: list[int] = []
    in_vain, best, swaps = 0, (-1, -1), 0  # best: checkpoint and step of the launches before
    abandoned: set[str] = set()
    left, keeping = False, None
    for pause, received in story:
        now += pause
        received = replace(received, at=now)
        before = state
        state, actions = decide(state, received)
        assert not (left and (actions or state != before)), "nothing follows the outcome"
        counts = (
            before.phase is Phase.ENDING
            and isinstance(received, launcher.LaunchEnded)
            and received.launch == before.launch.number
        )
        if counts:
            clean.add(received.launch)
            abandoned = {*received.unheard, *(node for node, _ in received.survivors)}
        for order in actions:
            if isinstance(order, launcher.StartLaunch):
                assert order.launch == len(started) and (fewest or 3) <= len(set(order.nodes)) <= 3
                assert list(order.nodes) == [n for n in allocated if n in order.nodes], "in Slurm's order"
                assert not set(order.nodes) & set(state.nodes.given_up)
                assert not before.stop or not started
                if started:
                    trained = before.nodes.training
                    gone = {x.node for x in before.launch.exits} | set(before.launch.unheard)
                    lost = tuple(rank for rank, node in enumerate(trained) if node in gone)
                    assert order.launch - 1 in clean or order.lost == lost != (), "beside what may still live"
                    kept = [r for r in range(len(trained)) if r not in order.lost] if order.lost else []
                    assert all(order.nodes[rank] == trained[rank] for rank in kept)
                    abandoned = set(before.launch.unheard) if order.lost else abandoned
                    assert not abandoned & set(order.nodes), "where something may still live"
                    swaps += not set(order.nodes) >= set(before.nodes.training)  # a run that grows loses no node
                    now_at = state.progress
                    further = now_at.durable > best[0] if now_at.durable >= 0 else now_at.max_step > best[1]
                    in_vain = 1 if further else in_vain + 1
                    assert in_vain <= 4 * relaunches * (1 + swaps) + swaps + by_reports, (
                        "each of the causes has its budget"
                    )
                    assert swaps <= len(allocated) - (fewest or 3)
                best = max(best[0], state.progress.durable), max(best[1], state.progress.max_step)
                started.append(order.launch)
            if isinstance(order, launcher.PersistMemory):
                assert keeping is None, "once"
                keeping = now
            if isinstance(order, launcher.EndLaunch):
                assert order.launch == state.launch.number and order.launch not in requested
                requested.add(order.launch)
            if isinstance(order, launcher.FinishAttempt):
                left = True
                found = order.outcome
                assert set(found.missing) | set(found.suspects) | set(found.blamed) <= set(allocated)
                assert order.again in ("", "requeue", "hold", "uncancelled")
                at_once = found.status == "done" or state.saved or isinstance(received, launcher.GracePeriodOver)
                assert at_once or before.memory is Memory.NONE or keeping is not None
                assert order.again not in ("requeue", "hold") or found.status in ("failed", "left")
                assert order.again != "uncancelled" or state.stop or isinstance(received, launcher.GracePeriodOver)
                assert (found.status == "done") == (order.exit_code == 0)
                if found.status == "done":
                    assert len(state.launch.exits) >= len(state.nodes.training) or state.launch.srun_code == 0
                    assert not any(x.bad for x in state.launch.exits)


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.booleans(), st.one_of(st.just(()), report_rules), stories)
def test_a_tick_before_the_deadline_changes_nothing(
    spare: bool, preflight: bool, rules: tuple[Rule, ...], story: list[tuple[float, launcher.Event]]
) -> None:
    state, now = fresh((*NODES, SPARE) if spare else NODES), 0.0
    policy = replace(state.policy, rules=rules, preflight=preflight, deep=True, recoverable=not preflight)
    state = replace(state, policy=policy)
    for pause, event in story:
        deadline = launcher.next_deadline(state)
        for at in (now, now + pause / 2, now + pause, (now if deadline is None else deadline) - 0.001):
            if at >= now and (deadline is None or at < deadline):
                assert decide(state, launcher.Tick(at)) == (state, ())
        now += pause
        state, _ = decide(state, replace(event, at=now))


def test_the_deadline_of_each_phase_is_when_a_tick_acts() -> None:
    def due(state: launcher.State) -> float:
        deadline = launcher.next_deadline(state)
        assert deadline is not None
        assert decide(state, launcher.Tick(deadline - 0.01)) == (state, ()) != decide(state, launcher.Tick(deadline))
        return deadline

    state = training()
    assert launcher.next_deadline(state) is None
    state, _ = feed(state, launcher.RanksExited(9.0, 0, exits(None, -9, None)))
    assert due(state) == 9.3
    state, _ = feed(state, launcher.Tick(9.3))
    assert due(state) == 129.3, "the end of the launch"
    state, _ = feed(state, launcher.LaunchEnded(10.0, 0))
    assert due(state) == 40.0, "the logs"
    state, _ = feed(state, launcher.LogsRead(11.0, 0, "unknown", ""))
    assert due(state) == 131.0, "the first task of the relaunch"
    state, _ = feed(state, launcher.TasksSeen(12.0, 1), launcher.Stepped(13.0, 1, 9), launcher.TimeLimitNear(14.0))
    assert launcher.next_deadline(state) is None
    state, _ = feed(state, launcher.CheckpointPlanned(15.0, 1, -1, "no answer", again=True))
    assert due(state) == 20.0, "the next request for a final checkpoint"
    held = replace(state, memory=Memory.HELD)
    held, _ = feed(held, launcher.StopRequested(16.0, "SIGTERM"), launcher.Tick(20.0))
    assert due(held) == 24.0, "what is in memory"
    state, _ = feed(state, launcher.StopRequested(16.0, "SIGTERM"), launcher.GracePeriodOver(41.0))
    assert state.phase is Phase.OVER and launcher.next_deadline(state) is None
