"""With the default table the cores do what they do without any; with any table they keep their promises."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core_alphabet import Answer, answer
from core_launcher import NODES, SPARE, fresh
from core_policy import DEFAULT, tables
from core_transcript import play as play_transcript
from hypothesis import given, settings
from hypothesis import strategies as st
from test_launcher_promises import stories as launcher_stories
from test_properties import begun, faults, moments, play, policies

from transom_cli.core import events as ev
from transom_cli.core import launcher
from transom_cli.core.events import UNDECIDED
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, State
from transom_cli.core.policy import Rule

FEW = settings(max_examples=150, deadline=None)
TRANSCRIPTS = sorted((Path(__file__).parent / "incidents").glob("*.txt"))


def unruled(words: str) -> str:
    """What a failed cancelling adds stays."""
    return re.sub(r"; stopped by rule .*?(?= \(cancelling failed: |$)", "", words, flags=re.DOTALL)


def without_rule(diagnosis: Diagnosis | None) -> Diagnosis | None:
    if diagnosis is None:
        return None
    return replace(diagnosis, decided=UNDECIDED, words=unruled(diagnosis.words))


def plain_incident(incident: Incident | None) -> Incident | None:
    if incident is None:
        return None
    marks = tuple(replace(m, words=unruled(m.words)) for m in incident.marks)
    return replace(incident, diagnosis=without_rule(incident.diagnosis), marks=marks)


def plain(state: State) -> State:
    """The state without the table, and without what reports it."""
    return replace(
        state,
        policy=replace(state.policy, rules=()),
        incident=plain_incident(state.incident),
        incidents=tuple(plain_incident(i) for i in state.incidents),  # type: ignore[misc]
        verdict=unruled(state.verdict),
    )


@FEW
@given(policies, st.one_of(moments, faults))
def test_the_default_table_is_what_the_operator_does(
    policy: Policy, story: list[tuple[float, ev.Event | Answer]]
) -> None:
    bare, table = begun(policy).state, begun(replace(policy, rules=DEFAULT)).state
    now = 1.0
    for pause, moment in story:
        now += pause
        if isinstance(moment, Answer):
            if not bare.pending:
                continue
            moment = answer(bare.pending[moment.which % len(bare.pending)], moment.how, now, bare.job.restarts)
        event = replace(moment, at=now)
        (bare, actions), (table, same) = decide(bare, event), decide(table, event)
        assert actions == same
        assert bare == plain(table)


def plain_order(order: Any) -> Any:
    if isinstance(order, launcher.Journal):
        words = order.words.partition("; stopped by rule ")[0]
        return replace(order, decided=UNDECIDED, words=words)
    if isinstance(order, launcher.FinishAttempt):
        why, kept = order.outcome.why, "; step 9 was made durable from memory"
        before, rule, _ = why.partition("; stopped by rule ")
        why = before + (kept if rule and why.endswith(kept) else "")
        return replace(order, outcome=replace(order.outcome, taken=(), why=why))
    return order


@FEW
@given(st.integers(0, 2), launcher_stories)
def test_the_default_table_is_what_the_launcher_does(
    relaunches: int, story: list[tuple[float, launcher.Event]]
) -> None:
    bare = fresh((*NODES, SPARE), relaunches=relaunches)
    table = replace(bare, policy=replace(bare.policy, rules=DEFAULT))
    now = 0.0
    for pause, received in story:
        now += pause
        received = replace(received, at=now)
        (bare, orders), (table, same) = launcher.decide(bare, received), launcher.decide(table, received)
        assert [plain_order(o) for o in orders] == [plain_order(o) for o in same]
        assert (bare.phase, bare.nodes, bare.budget) == (table.phase, table.nodes, table.budget)


# In the story of `no_progress`, the same exception ends three starts at the same step: the table stops it there.
SAME = [path for path in TRANSCRIPTS if path.stem != "no_progress"]


@pytest.mark.parametrize("path", SAME, ids=lambda p: p.stem)
def test_the_default_table_tells_the_same_stories(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the rule that a stop names."""
    monkeypatch.setattr("core_transcript.Policy", with_default_table)
    found = play_transcript(path.read_text()).splitlines()
    lines = [line.partition("; stopped by rule ")[0] for line in found]
    ours = [line for line in path.read_text().splitlines() if line.startswith("    ")]
    assert [line for line in lines if line.startswith("    ")] == ours


class with_default_table(Policy):
    def __init__(self, **given: object) -> None:
        super().__init__(**{"rules": DEFAULT, **given})  # type: ignore[arg-type]


@FEW
@given(policies, tables, st.one_of(moments, faults))
def test_no_table_breaks_a_promise_of_the_operator(
    policy: Policy, rules: tuple[Rule, ...], story: list[tuple[float, ev.Event | Answer]]
) -> None:
    """The ledger counts: no drain on a suspicion, nothing beyond the cap, no loop without progress."""
    play(begun(replace(policy, rules=rules)), story)


@FEW
@given(tables, launcher_stories)
def test_no_table_isolates_more_than_the_evidence_allows(
    rules: tuple[Rule, ...], story: list[tuple[float, launcher.Event]]
) -> None:
    """The launcher hands up nodes to blame: those of the evidence, or fewer; those it gave up itself; no others."""
    state = fresh((*NODES, SPARE))
    state = replace(state, policy=replace(state.policy, rules=rules))
    now = 0.0
    for pause, received in story:
        now += pause
        state, orders = launcher.decide(state, replace(received, at=now))
        diagnosis = state.incident.diagnosis if state.incident else None
        if diagnosis is not None:
            ladder = ("none", "exclude", "drain")
            for node in diagnosis.nodes:
                assert ladder.index(diagnosis.isolates(node)) <= ladder.index(diagnosis.by_evidence(node))
        for order in orders:
            assert not (isinstance(order, launcher.StartLaunch) and set(order.nodes) & set(state.nodes.given_up))


def test_actions_that_are_compared_are_not_empty() -> None:
    """The stories above lead somewhere."""
    ledger = begun(Policy(rules=DEFAULT))
    ended = ev.OutcomeSeen(30.0, "7.0", "failed", "why", (ev.RankExit(1, "n2", 1, None, 5.0),), durable=4)
    first = ledger.feed(ended)
    assert [type(a) for a in first] == [act.ReadLogs]
    (restart,) = ledger.feed(ev.Examined(31.0, first[0].key, "unknown", "boom", "rank-1.log"))
    assert isinstance(restart, act.Restart)
    assert ledger.state.incident is not None and ledger.state.incident.diagnosis is not None
    assert ledger.state.incident.diagnosis.decided.rule == "anything-else"
