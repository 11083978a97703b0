"""A run that is only observed: nothing is carried out, each action is recorded once, and its fate is followed."""

from __future__ import annotations

import queue
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from core_alphabet import EVENTS, NODES, Answer, answer, events
from hypothesis import given
from slurm_fake import FakeSlurm
from test_properties import QUICK, policies, stories

from transom_cli.core import events as ev
from transom_cli.core.incident import Stage
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Policy, Request, State
from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Submission
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor, Orders

READS = {"job", "jobs", "nodes", "history"}
CHANGES = (act.Isolate, act.Restart, act.Patch, act.Release, act.Cancel)


class Observed:
    """A run on n1 to n3 whose executor withholds what would change something; other answers come from the test."""

    def __init__(self, policy: Policy | None = None, verdict: str = "PASS") -> None:
        self.state = State(policy=policy or Policy(backoff=0.0), request=Request(num_nodes=3))
        self.verdict = verdict
        self.asked: dict[str, act.Action] = {}
        self.withheld: Counter[str] = Counter()
        self.feed(ev.Started(0.0, 1), ev.Submitted(0.0, "submit", 7))
        self.feed(ev.JobSeen(0.0, 7, 0, "RUNNING", nodes=NODES[:3], batch_host="n1"))

    def feed(self, *received: ev.Event) -> None:
        for event in received:
            self.state, actions = decide(self.state, event)
            self.asked |= {a.key: a for a in actions}

    def act(self, at: float) -> None:
        """Answer everything, as the executor would."""
        while self.asked:
            _, action = self.asked.popitem()
            if isinstance(action, CHANGES):
                self.withheld[action.key] += 1
                self.feed(ev.Withheld(at, action.key))
            elif isinstance(action, act.Probe):
                self.feed(ev.Probed(at, action.key, action.node, self.verdict, "asked"))
            elif isinstance(action, act.ReadLogs):
                self.feed(ev.Examined(at, action.key, "unknown", "", ""))

    @property
    def would(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(one.what, one.nodes) for one in self.state.withheld]


def hung(run: Observed, at: float = 10.0) -> None:
    run.feed(ev.StepSeen(at - 5, "7.0", 4), ev.Stalled(at, "7.0", ev.Stall(4, 9.0, 8.0, (1,), ("n2",))))
    run.act(at + 1)


def failed(run: Observed, at: float = 10.0) -> None:
    """A rank dies, and the job with it."""
    bad = ev.RankExit(1, "n2", None, 9, at)
    run.feed(ev.OutcomeSeen(at, "7.0", "failed", bad.words, (bad,)))
    run.act(at + 1)
    run.feed(ev.JobSeen(at + 2, 7, 0, "FAILED", nodes=NODES[:3], exit_code=137))


def test_a_hang_is_reported_once_and_closed_when_the_ranks_step_again() -> None:
    run = Observed()
    hung(run)
    assert run.would == [("requeue", ())] and run.state.phase is Phase.TRAINING
    assert run.state.incident is not None and run.state.incident.stage is Stage.WITHHELD
    for at in (20.0, 30.0):
        run.feed(ev.Stalled(at, "7.0", ev.Stall(4, at, 8.0, (1,), ("n2",))), ev.Tick(at))
        run.act(at)
    assert run.would == [("requeue", ())]
    run.feed(ev.StallEnded(40.0, "7.0"))
    assert run.state.incident is None and run.state.incidents[-1].result == "recovered"


@pytest.mark.parametrize("sign", ["hang", "silence"])
def test_a_relaunch_that_the_launcher_withholds_while_a_node_is_probed_is_noted(sign: str) -> None:
    run = Observed()
    stalled = ev.Stalled(10.0, "7.0", ev.Stall(4, 9.0, 8.0, (1,), ()))
    run.feed(ev.StepSeen(5.0, "7.0", 4), stalled if sign == "hang" else ev.NodeSilent(10.0, "7.0", "n2", 11.0))
    for what in ("seen", "diagnosed", "withheld"):
        run.feed(ev.RecoverySeen(11.0, "7.0", "l1", what, "relaunched the ranks", "hang"))
    run.act(12.0)
    assert run.would == [("relaunch", ())] and run.state.phase is Phase.TRAINING
    run.feed(ev.RecoverySeen(20.0, "7.0", "l1", "recovered", "step 9 done"))
    assert [one.result for one in run.state.incidents] == ["recovered"]


def test_a_dead_node_is_named_and_stays_in_the_run() -> None:
    run = Observed(verdict="FAIL")
    hung(run)
    assert run.would == [("drain", ("n2",)), ("requeue", ("n2",))]
    assert run.state.isolation.exclusions == ()
    assert run.state.withheld[0].words.startswith("drained n2: node_lost: ")


def test_slurms_own_requeue_is_followed_and_its_job_is_not_changed() -> None:
    run = Observed(verdict="FAIL")
    hung(run)
    run.feed(ev.JobSeen(20.0, 7, 1, "PENDING", reason="BeginTime", lost_nodes=("n2",)))
    run.act(21.0)
    assert run.state.incidents[-1].result == "requeued by Slurm"
    assert run.would[-1] == ("update", ("n2",)) and run.state.isolation.exclusions == ()
    run.feed(ev.JobSeen(30.0, 7, 1, "RUNNING", nodes=NODES[1:4]), ev.StepSeen(31.0, "7.1", 5))
    assert (run.state.phase, run.state.incident) == (Phase.TRAINING, None)


def test_a_failed_job_waits_for_a_person_who_requeues_it() -> None:
    run = Observed()
    failed(run)
    assert run.state.phase is Phase.HELD
    assert run.state.verdict == "the job ended: FAILED; transom would have requeued the job"
    before = run.state
    run.feed(ev.JobSeen(100.0, 7, 0, "FAILED", nodes=NODES[:3], exit_code=137), ev.Tick(101.0))
    assert run.state == before, "the same news changes nothing"
    run.feed(ev.JobSeen(2472.0, 7, 1, "PENDING", reason="BeginTime"))
    run.act(2473.0)
    closed = run.state.incidents[-1]
    assert (closed.result, closed.ended_at) == ("requeued by hand", 2472.0)
    assert run.state.phase is Phase.RECOVERING


def test_a_failed_job_that_slurm_forgets_has_failed() -> None:
    run = Observed()
    failed(run)
    run.feed(ev.JobGone(400.0, 7))
    assert (run.state.phase, run.state.exit_code) == (Phase.FAILED, 1)
    assert "transom would have requeued" in run.state.verdict


def test_a_job_that_a_person_cancels_is_stopped() -> None:
    run = Observed()
    hung(run)
    run.feed(ev.JobSeen(90.0, 7, 0, "CANCELLED", nodes=NODES[:3]))
    assert run.state.phase is Phase.STOPPED and run.state.incidents[-1].result == "interrupted"


def test_a_stop_on_evidence_is_withheld_while_the_job_lives() -> None:
    run = Observed(Policy(backoff=0.0, max_without_progress=0))
    hung(run)
    run.feed(ev.StallEnded(20.0, "7.0"))
    hung(run, 25.0)
    assert [what for what, _ in run.would] == ["requeue", "exclude", "cancel"] and run.state.phase is Phase.TRAINING
    assert run.state.verdict == "" and run.state.exit_code is None
    run.feed(ev.StepSeen(30.0, "7.0", 9))
    assert run.state.incidents[-1].result == "recovered"


def test_the_end_of_an_observation_leaves_the_job_alone() -> None:
    run = Observed()
    run.feed(ev.StopRequested(10.0, "ann"))
    run.act(11.0)
    assert run.state.phase is Phase.STOPPED
    assert run.state.verdict == "stopped by ann: job 7 was only observed, and lives on"


def test_what_the_launcher_would_have_done_is_enough() -> None:
    run = Observed()
    run.feed(ev.LaunchSeen(1.0, "7.0", 0, NODES[:3], 3), ev.StepSeen(2.0, "7.0", 4))
    run.feed(ev.RecoverySeen(10.0, "7.0", "l1", "seen", "rank 1 on n2 killed by SIGKILL"))
    run.feed(ev.RecoverySeen(11.0, "7.0", "l1", "withheld", "relaunched the ranks on the same nodes"))
    bad = ev.RankExit(1, "n2", None, 9, 10.0)
    run.feed(ev.OutcomeSeen(20.0, "7.0", "failed", bad.words, (bad,)))
    run.act(21.0)
    run.feed(ev.JobSeen(22.0, 7, 0, "FAILED", nodes=NODES[:3], exit_code=137))
    assert [what for what, _ in run.would] == ["relaunch"] and run.state.phase is Phase.HELD


observed_stories = stories(events, 50)


@QUICK
@given(policies, observed_stories)
def test_no_story_makes_the_executor_change_anything(
    tmp_path_factory: pytest.TempPathFactory, policy: Policy, story: list[tuple[float, ev.Event | Answer]]
) -> None:
    """The real executor, with a Slurm that counts: it answers, and reads at most."""
    folder: Path = tmp_path_factory.getbasetemp()
    slurm = FakeSlurm(NODES, admin=True)
    job = slurm.submit(Submission(_script(folder), ("--nodes=3",)))
    slurm.start_pending()
    slurm.calls.clear()
    orders = Orders(RunDir(folder), Submission(_script(folder)), ("false",), observe=True, observed=job)
    reach = lambda node, *_: Finding("reach", Verdict.FAIL, node, "no answer")  # noqa: E731
    executor = Executor(orders, slurm, reach, Clock(), queue.SimpleQueue())
    run = Observed(replace(policy, observe=True))
    now, recorded = 1.0, 0
    for pause, moment in story:
        now += pause
        for action in tuple(run.asked.values()) if isinstance(moment, Answer) else ():
            if isinstance(action, CHANGES):
                told = executor._perform(run.asked.pop(action.key))
                assert isinstance(told, ev.Withheld)
                run.feed(replace(told, at=now))
            elif not isinstance(action, act.Submit):
                run.feed(answer(run.asked.pop(action.key), moment.how, now, run.state.job.restarts))
        if not isinstance(moment, Answer):
            run.feed(replace(moment, at=now))
        assert len(run.state.withheld) >= recorded
        recorded = len(run.state.withheld)
    keys = [one.key for one in run.state.withheld]
    assert len(keys) == len(set(keys)), "recorded once"
    assert {name for name, *_ in slurm.calls} <= READS
    assert not [i for i in run.state.isolation.exclusions if i.how == "drained"]


def _script(folder: Path) -> Path:
    path = folder / "observed.sbatch"
    if not path.exists():
        path.write_text("#!/bin/sh\n")
    return path


def test_every_action_that_changes_something_is_withheld(tmp_path: Path) -> None:
    """Whatever action is added: it is one that reads, or the executor of an observed run withholds it."""
    every = {cls for cls in vars(act).values() if isinstance(cls, type) and issubclass(cls, act.Action)}
    assert every - {act.Action} == {*CHANGES, act.Submit, act.Probe, act.ReadLogs}
    assert ev.Withheld in EVENTS
