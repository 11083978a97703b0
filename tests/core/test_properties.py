"""Promises of the core over random orders of events, counted by the test from the actions that came out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_alphabet import EVENTS, NODES, Answer, answer, answers, events, pauses
from core_ledger import Ledger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide, next_deadline
from transom_cli.core.operator.state import Policy, Request, State

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

policies = st.builds(
    Policy,
    max_without_progress=st.integers(1, 3),
    backoff=st.sampled_from((0.0, 5.0)),
    release_held=st.booleans(),
    drain=st.booleans(),
    cap_nodes=st.integers(0, 2),
    cap_fraction=st.just(0.0),
    cap_window=st.sampled_from((100.0, 3600.0)),
    expiry=st.sampled_from((50.0, 3600.0)),
)


def stories(told: st.SearchStrategy[ev.Event], size: int) -> st.SearchStrategy[list[tuple[float, ev.Event | Answer]]]:
    """Two answers to an event, so that incidents get somewhere."""
    moment = st.integers(0, 2).flatmap(lambda i: answers if i else told)
    return st.lists(st.tuples(pauses, moment), min_size=size // 2, max_size=size)


moments = stories(events, 50)


def begun(policy: Policy, num_nodes: int = 3) -> Ledger:
    """A run that trains on n1, n2 and n3."""
    ledger = Ledger(State(policy=policy, request=Request(num_nodes=num_nodes)))
    for event in (
        ev.Started(0.0, 1),
        ev.Submitted(0.0, "submit", 7),
        ev.JobSeen(0.0, 7, 0, "RUNNING", nodes=NODES[:3], batch_host="n1"),
    ):
        ledger.feed(event)
    return ledger


def play(ledger: Ledger, story: list[tuple[float, ev.Event | Answer]]) -> None:
    now = 1.0
    for pause, moment in story:
        now += pause
        play_one(ledger, now, moment)


def play_one(ledger: Ledger, now: float, moment: ev.Event | Answer) -> ev.Event | None:
    """Feed an event, or the answer to a pending action if there is one."""
    if isinstance(moment, Answer):
        waiting = list(ledger.asked.values())
        if not waiting:
            return None
        moment = answer(waiting[moment.which % len(waiting)], moment.how, now, ledger.state.job.restarts)
    event = replace(moment, at=now)
    ledger.feed(event)
    return event


def test_every_event_type_is_in_the_alphabet() -> None:
    known = {c for c in vars(ev).values() if isinstance(c, type) and issubclass(c, ev.Event) and c is not ev.Event}
    assert known == set(EVENTS)


def test_an_unknown_event_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no handler for Event"):
        decide(State(), ev.Event(0.0))


@QUICK
@given(policies, moments)
def test_promises_hold_from_the_very_start(policy: Policy, story: list[tuple[float, ev.Event | Answer]]) -> None:
    ledger = Ledger(State(policy=policy, request=Request(num_nodes=3)))
    ledger.feed(ev.Started(0.0, 1))
    play(ledger, story)


@QUICK
@given(policies, moments)
def test_promises_hold_in_a_running_training(policy: Policy, story: list[tuple[float, ev.Event | Answer]]) -> None:
    play(begun(policy), story)


ours = [
    st.builds(replace, strategy, attempt=st.just("7.0"))
    for cls, strategy in EVENTS.items()
    if cls in (ev.NodeSilent, ev.Stalled, ev.OutcomeSeen, ev.StallEnded)
]
faults = st.lists(
    st.tuples(pauses, st.one_of(*ours, EVENTS[ev.Tick], EVENTS[ev.Started], answers, answers)), max_size=40
)


@QUICK
@given(policies, faults)
def test_promises_hold_deep_in_one_incident(policy: Policy, story: list[tuple[float, ev.Event | Answer]]) -> None:
    play(begun(policy), story)


@QUICK
@given(policies, moments)
def test_a_doubled_event_orders_nothing(policy: Policy, story: list[tuple[float, ev.Event | Answer]]) -> None:
    """But for Started, which repeats what is unanswered, and Tick, with which time goes on."""
    ledger = begun(policy)
    now = 1.0
    for pause, moment in story:
        now += pause
        event = play_one(ledger, now, moment)
        if event is None:
            continue
        if isinstance(event, ev.Submitted | ev.Isolated | ev.Restarted | ev.Acted | ev.ActionFailed | ev.Examined):
            assert ledger.feed(event) == ()
        if isinstance(event, ev.Probed | ev.StopRequested | ev.JobGone | ev.LiftRequested | ev.RequeueRequested):
            assert ledger.feed(event) == ()


@QUICK
@given(policies, moments)
def test_what_is_unanswered_survives_any_number_of_operators(
    policy: Policy, story: list[tuple[float, ev.Event | Answer]]
) -> None:
    ledger = begun(policy)
    play(ledger, story)
    first = ledger.feed(ev.Started(1e6, 8))
    assert ledger.feed(ev.Started(1e6, 9)) == first


@QUICK
@given(policies, st.one_of(moments, faults), pauses)
def test_a_tick_before_the_next_deadline_changes_nothing(
    policy: Policy, story: list[tuple[float, ev.Event | Answer]], pause: float
) -> None:
    """A Tick at the deadline has an effect, and no Tick before it. The state is looked at after each event."""
    ledger, now = begun(policy), 1.0
    for wait, moment in story:
        now += wait
        play_one(ledger, now, moment)
        state, due = ledger.state, next_deadline(ledger.state)
        early = now + pause if due is None else min(now + pause, due - 1e-3)
        if early >= now:
            assert decide(state, ev.Tick(early)) == (state, ())
        if due is not None:
            assert decide(state, ev.Tick(max(now, due))) != (state, ())
