"""What is reported of a run: of whole stories by their words, and of random ones what must hold of any."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from core_alphabet import EVENTS, Answer
from core_ledger import Ledger
from core_transcript import _event, _run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_properties import play, policies, stories

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, Request, State
from transom_cli.core.policy import Rule
from transom_cli.notify.events import FINAL, KINDS, Notification, notifications_for

AT = 1.8e9
NODES = ("n1", "n2", "n3")
LOST: tuple[ev.Event, ...] = (
    ev.Started(AT, 1),
    ev.Submitted(AT + 1, "submit", 7),
    ev.JobSeen(AT + 2, 7, 0, "RUNNING", nodes=NODES),
    ev.LaunchSeen(AT + 3, "7.0", 0, NODES, 3),
    ev.StepSeen(AT + 10, "7.0", 46),
    ev.CheckpointSeen(AT + 11, 40),
    ev.OutcomeSeen(AT + 20, "7.0", "failed", "rank 1 on n2 ended with exit code 1", missing=("n3",), nodes=NODES),
    ev.Examined(AT + 21, "i1/examine", "network_fabric", "Connection reset by peer", "rank-1.log"),
    ev.Probed(AT + 21, "i1/probe/n3/1", "n3", "FAIL", "no slurmd"),
    ev.Probed(AT + 22, "i1/probe/n3/2", "n3", "FAIL", "no slurmd"),
    ev.Isolated(AT + 23, "i1/isolate/n3", "n3", "drained", ""),
    ev.Restarted(AT + 26, "i1/restart", 7, 1, "requeued"),
    ev.JobSeen(AT + 27, 7, 1, "RUNNING", nodes=("n1", "n2", "n4")),
    ev.StepSeen(AT + 32, "7.1", 41),
)


def follow(
    events: list[ev.Event] | tuple[ev.Event, ...], state: State | None = None
) -> tuple[list[Notification], State]:
    """As an operator's observer: each event in its order."""
    state = state or State(policy=Policy(), request=Request(num_nodes=3))
    news: list[Notification] = []
    since = 0.0
    for event in events:
        before = state
        state, _ = decide(before, event)
        news += notifications_for(before, since, state, event.at)
        since = event.at
    return news, state


def test_a_lost_node_is_one_incident_with_its_cause_and_one_recovery() -> None:
    news, _ = follow(LOST)
    assert [n.key for n in news] == ["started", "i1/incident", f"isolated/n3/{AT + 23:.0f}", "i1/recovered"]
    _, incident, isolated, recovered = news
    assert (incident.headline, incident.at) == ("i1: n3 lost", AT + 22)
    assert incident.details == (
        "evidence: no slurmd",
        "step 46, newest checkpoint on disk: step 40",
        "next: restart without n3",
    )
    assert dict(incident.facts)["nodes"] == ("n3",) and dict(incident.facts)["cause"] == "node_lost"
    assert isolated.headline == "n3 drained"
    assert recovered.headline == "i1: drained, back in 12 s"
    assert recovered.details[1:] == ("without n3", "at step 41; 6 steps repeated")
    assert dict(recovered.facts)["steps_again"] == 6


def test_an_incident_of_unknown_cause_is_reported_after_a_minute_once() -> None:
    quiet, _ = follow((*LOST[:7], ev.Tick(AT + 79.9)))
    assert [n.kind for n in quiet] == ["started"]
    late = [replace(event, at=event.at + 100) for event in LOST[7:10]]
    news, _ = follow((*LOST[:7], *(ev.Tick(AT + s) for s in (79.9, 80.1, 81, 90)), *late))
    assert [n.key for n in news] == ["started", "i1/incident"]
    assert news[1].details[-1] == "next: checking nodes and logs"
    assert news[1].at == AT + 80.1 and news[1].headline == "i1: rank 1 on n2 ended with exit code 1"


def test_false_alarm_is_reported_only_to_targets_of_the_alarm() -> None:
    silent = (ev.NodeSilent(AT + 15, "7.0", "n2", 11.0),)
    answers = (ev.Probed(AT + 16, "i1/probe/n2/1", "n2", "PASS", "answers"),)
    assert [n.kind for n in follow((*LOST[:6], *silent, *answers))[0]] == ["started"]
    late = (ev.Probed(AT + 99, "i1/probe/n2/1", "n2", "PASS", "answers"),)
    news, _ = follow((*LOST[:6], *silent, *late))
    assert [n.key for n in news] == ["started", "i1/incident", "i1/recovered"]
    assert news[-1].headline == "i1: false alarm, closed after 84 s"


def test_only_a_hold_that_lasts_is_reported_and_so_is_its_end() -> None:
    held = ev.JobSeen(AT + 40, 7, 1, "PENDING", held=True, reason="JobHeldAdmin")
    runs = ev.JobSeen(AT + 50, 7, 1, "RUNNING", nodes=NODES)
    found = [n.key for n in follow(LOST)[0]]
    assert [n.key for n in follow((*LOST, held, runs))[0]] == found
    news, _ = follow((*LOST, held, ev.Tick(AT + 56), ev.JobSeen(AT + 80, 7, 1, "RUNNING", nodes=NODES)))
    assert [n.kind for n in news[len(found) :]] == ["held", "released"]
    assert (
        news[-2].headline == "held: an administrator holds the job in Slurm (JobHeldAdmin)" and news[-2].at == AT + 56
    )
    assert "release: scontrol release 7   # by an administrator" in news[-2].details


def test_a_hold_that_lasts_since_nobody_was_there_is_news_for_the_next_operator() -> None:
    held = ev.JobSeen(AT + 40, 7, 1, "PENDING", held=True, reason="JobHeldAdmin")
    news, _ = follow((*LOST, held, ev.Started(AT + 40_000, 2)))
    assert (news[-1].kind, news[-1].at) == ("held", AT + 40_000)


@pytest.mark.parametrize(
    ("end", "kind", "headline"),
    [
        ((ev.JobSeen(AT + 90, 7, 1, "COMPLETED"),), "done", "training finished"),
        ((ev.StopRequested(AT + 90, "ann"), ev.Acted(AT + 91, "cancel/7.1"), ev.JobSeen(AT + 92, 7, 1, "CANCELLED")),
         "stopped", "the run was stopped by ann"),
    ],
)  # fmt: skip
def test_the_end_is_reported_once(end: tuple[ev.Event, ...], kind: str, headline: str) -> None:
    news, state = follow((*LOST, *end, ev.Tick(AT + 200)))
    assert state.phase.over
    assert [(n.kind, n.headline) for n in news if n.final] == [(kind, headline)]
    assert "1 incident during the run" in news[-1].details


def test_a_time_limit_is_no_alarm() -> None:
    left = ev.OutcomeSeen(AT + 50, "7.0", "left", "the time limit is near", nodes=NODES, cause="time_limit", durable=46)
    back = (ev.Restarted(AT + 53, "i1/restart", 7, 1, "requeued"), ev.JobSeen(AT + 55, 7, 1, "RUNNING", nodes=NODES))
    news, _ = follow((*LOST[:6], left, *back, ev.StepSeen(AT + 60, "7.1", 47)))
    assert [(n.key, n.kind) for n in news[1:]] == [("i1/incident", "planned"), ("i1/recovered", "planned")]
    assert news[-1].headline == "i1: requeued, back in 10 s"


def test_an_alarm_that_was_only_a_time_limit_has_its_all_clear() -> None:
    ended = ev.JobSeen(AT + 50, 7, 0, "TIMEOUT")
    nodes = [ev.Probed(AT + 130, f"i1/probe/{n}/1", n, "PASS", "answers") for n in NODES]
    read = ev.Examined(AT + 131, "i1/examine", "unknown", "", "")
    back = (ev.Restarted(AT + 140, "i1/restart", 7, 1, "requeued"), ev.JobSeen(AT + 141, 7, 1, "RUNNING", nodes=NODES))
    news, _ = follow((*LOST[:6], ended, *nodes, read, *back, ev.StepSeen(AT + 150, "7.1", 47)))
    assert [n.kind for n in news] == ["started", "incident", "recovered"]
    assert "time limit" in news[-1].details[0]


TRANSCRIPTS = sorted((Path(__file__).parent / "incidents").glob("*.txt"))


def told_by(path: Path) -> tuple[list[ev.Event], State]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith(("#", " "))]
    start, *words = [shlex.split(line) for line in lines]
    return [_event(float(w[0]), *w[1:]) for w in words], _run(start[0], start[1:])


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda p: p.stem)
def test_every_story_of_the_core_is_reported_in_order(path: Path) -> None:
    events, state = told_by(path)
    news, end = follow([*events, ev.Tick(events[-1].at + 100)], state)
    promises(news, end)


def promises(news: list[Notification], end: State) -> None:
    counts = Counter(n.key for n in news)
    twice = {key for key, count in counts.items() if count > 1}
    assert twice <= {"started"}, "Slurm may take a start back; the key tells that it is the same"
    assert {n.kind for n in news} <= set(KINDS)
    ends = [n.kind for n in news if n.kind in FINAL]
    assert len(ends) == sum("in a new job" in one.result for one in end.requests) + end.phase.over
    assert not end.phase.over or ends[-1] == end.phase.value
    assert all(n.headline and "\n" not in n.headline for n in news)
    found: set[str] = set()
    for one in news:
        incident, _, kind = one.key.partition("/")
        if kind == "recovered":
            assert f"{incident}/incident" in found, "a recovery from what nobody was reported of"
        found.add(one.key)


class Tape(Ledger):
    """Keeps the events that came, and which of them an operator would have written down."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.first, self.all, self.kept = state, [], []  # type: ignore[var-annotated]

    def feed(self, event: ev.Event) -> None:
        before = self.state
        super().feed(event)
        self.all.append(event)
        if self.state != before or isinstance(event, ev.Started):
            self.kept.append(event)


def test_a_resumed_run_has_a_second_end_with_a_key_of_its_own() -> None:
    ends = [ev.Started(0.0, 1), ev.Submitted(1.0, "submit", 7), ev.StopRequested(2.0, "bob")]
    ends += [
        ev.JobSeen(3.0, 7, 0, "CANCELLED"),
        ev.Resumed(4.0, "bob"),
        ev.ActionFailed(5.0, "submit/2", "submit", "no"),
    ]
    news, end = follow(ends, State())
    assert [n.key for n in news if n.kind in FINAL] == ["over", "over/1"] and end.phase.over


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies, stories(st.one_of(*EVENTS.values()), 40))
def test_any_story_is_reported_once_and_alike_from_its_journal(
    policy: Policy, story: list[tuple[float, ev.Event | Answer]]
) -> None:
    tape = Tape(State(policy=policy, request=Request(num_nodes=3)))
    for event in (ev.Started(0.0, 1), ev.Submitted(0.0, "submit", 7), ev.JobSeen(0.0, 7, 0, "RUNNING", nodes=NODES)):
        tape.feed(event)
    play(tape, story)
    last = ev.Tick(tape.all[-1].at)
    live, end = follow([*tape.all, last], tape.first)
    promises(live, end)
    again, _ = follow([*tape.kept, last], tape.first)
    assert [(n.key, n.kind) for n in again] == [(n.key, n.kind) for n in live]


REPORTED = ev.RecoverySeen(AT + 15, "7.0", "l1", "seen", "rank 1 on n2 ended with exit code 1")


@pytest.mark.parametrize(
    ("action", "says"), [("stop", "the run stops"), ("relaunch", "recovers within the allocation")]
)
def test_incident_knows_a_newer_step_and_what_its_rule_decided(action: str, says: str) -> None:
    decided = ev.Decided("crash-loop", action, "user_code")
    diagnosed = replace(REPORTED, what="diagnosed", cause="failed", step=55, decided=decided)
    news, _ = follow((*LOST[:6], REPORTED, diagnosed, ev.Tick(AT + 80)))
    assert news[-1].kind == "incident" and dict(news[-1].facts)["step"] == 55
    assert news[-1].details[-2] == "step 55, newest checkpoint on disk: step 40"
    assert says in news[-1].details[-1]


SHRINKS = Request(num_nodes=3, fewest=1)


def test_growth_through_a_top_up_job_is_reported_and_its_nodes_carry_ranks() -> None:
    state = State(policy=Policy(), request=SHRINKS)
    shrunk = ev.LaunchSeen(AT + 20, "7.0", 1, ("n1", "n2"), 2, idle=("n3",))
    grown = ev.LaunchSeen(AT + 90, "7.0", 2, ("n1", "n2", "n4"), 3, idle=("n3",))
    news, state = follow((*LOST[:6], shrunk, grown), state)
    assert [one.headline for one in news[1:]] == ["grown: continues on 3 of 3 nodes, with n4"]
    assert news[-1].kind == "recovered" and dict(news[-1].facts)["nodes"] == ("n4",)
    assert state.carrying == ("n1", "n2", "n4") and state.job.nodes == NODES
    again, state = follow((ev.LaunchSeen(AT + 99, "7.0", 3, ("n1", "n2"), 2, idle=("n3",)),), state)
    assert (state.carrying, again) == (("n1", "n2"), [])


def test_launch_without_a_step_in_its_time_is_reported_once() -> None:
    late = ev.RecoverySeen(AT + 40, "7.0", "", "late", "no step seen for 30 s: a hang, or unseen steps")
    news, state = follow((*LOST[:4], late, ev.Tick(AT + 50)))
    assert [(one.kind, one.headline) for one in news[1:]] == [("incident", late.words)]
    assert state.launch.late == late.words and state.incident is None
    _, state = follow((ev.LaunchSeen(AT + 60, "7.0", 1, NODES, 3),), state)
    assert not state.launch.late


def test_checkpoint_that_is_newer_than_the_last_report_counts_as_a_step() -> None:
    news, _ = follow((*LOST[:6], ev.CheckpointSeen(AT + 12, 70), *LOST[6:10]))
    news = [one for one in news if one.kind == "incident"]
    assert "step 70, newest checkpoint on disk: step 70" in news[-1].details


def bad_loss(at: float, step: int, good: int = -1, what: str = "nan_loss") -> ev.RecoverySeen:
    words = f"the loss is NaN since step {step - 2}"
    return ev.RecoverySeen(at, "7.0", "", "report", words, what, step=step, good=good)


@pytest.mark.parametrize(
    ("good", "details"),
    [
        (40, ("newest checkpoint from before it: step 40", "`transom stop RUN`, then `transom resume RUN --from 40`")),
        (-1, ("no checkpoint is known to be from before it", "`transom stop RUN`, then start a new run")),
    ],
)
def test_loss_that_is_nan_is_one_incident_with_the_newest_good_checkpoint_and_what_to_do(
    good: int, details: tuple[str, str]
) -> None:
    report = bad_loss(AT + 20, 50, good)
    again = [replace(report, at=AT + 21), ev.Started(AT + 22, 2), replace(report, at=AT + 23)]
    news, state = follow((*LOST[:6], report, *again))
    assert [n.key for n in news] == ["started", "loss/7.0/50"]
    told = news[-1]
    assert (told.kind, told.headline) == ("incident", "the loss is NaN since step 48")
    assert told.details[:2] == (details[0], f"transom does nothing about it; what to do: {details[1]}")
    facts = dict(told.facts)
    assert (facts["step"], facts["cause"], facts.get("good")) == (50, "nan_loss", good if good >= 0 else None)
    assert state.phase.value == "training" and state.incident is None
    assert [n.key for n in follow((bad_loss(AT + 30, 60),), state)[0]] == ["loss/7.0/60"]


def test_loss_that_a_rule_handles_is_announced_with_the_rule() -> None:
    rule = Rule("back", reported=("nan_loss",), action="rollback")
    news, _ = follow(
        (*LOST[:6], bad_loss(AT + 20, 50, 40)), State(policy=Policy(rules=(rule,)), request=Request(num_nodes=3))
    )
    assert news[-1].details[1] == "next: rule `back` decides: rollback"
