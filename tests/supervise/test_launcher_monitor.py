"""What an attempt's launcher writes about the steps of its training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transom_cli.core import launcher
from transom_cli.core.events import RankExit
from transom_cli.core.launcher import Launch, Nodes, Phase, RanksExited, StandbyTook, State
from transom_cli.core.stall_state import StallLimits
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps, encode
from transom_cli.heartbeat.table import NodeTable, RankBeat
from transom_cli.heartbeat.table import encode as encode_table
from transom_cli.layout import AttemptDir
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor
from transom_cli.supervise.launcher.monitor import Monitor, ProgressLog
from transom_cli.supervise.launcher.training import StepPlan, TrainingStep


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    made = AttemptDir(tmp_path / "7.0")
    made.nodes.mkdir(parents=True)
    return made


def lines(attempt: AttemptDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in attempt.progress.read_text().splitlines()]


def test_first_step_then_ever_more_seldom_up_to_one_a_minute_and_the_last(attempt: AttemptDir) -> None:
    progress = ProgressLog(attempt, tuple)
    for second in range(131):
        progress.look(0, second - 5 if second >= 5 else -1, 1000.0 + second)
    progress.settle()
    progress.settle()
    assert lines(attempt) == [
        {"wall": 1005.0 + step, "launch": 0, "step": step} for step in (0, 2, 4, 8, 16, 32, 64, 124, 125)
    ]


def test_the_last_step_has_the_time_at_which_it_was_done(attempt: AttemptDir) -> None:
    progress = ProgressLog(attempt, tuple)
    progress.look(0, 1, 10.0)
    progress.look(0, 2, 11.0)
    for second in range(12, 400):
        progress.look(0, 2, float(second))  # a silence
    progress.settle()
    assert [(one["wall"], one["step"]) for one in lines(attempt)] == [(10.0, 1), (11.0, 2)]


def test_a_relaunch_begins_with_a_line_of_its_own_at_whatever_step(attempt: AttemptDir) -> None:
    progress = ProgressLog(attempt, tuple)
    progress.look(0, 40, 10.0)
    progress.look(0, 41, 11.0)
    progress.look(1, -1, 12.0)
    progress.settle()  # nothing was done yet
    progress.look(1, 31, 13.0)
    assert [(one["launch"], one["step"], one["wall"]) for one in lines(attempt)] == [
        (0, 40, 10.0),
        (0, 41, 11.0),
        (1, 31, 13.0),
    ]


def test_phases_of_the_rank_that_spent_most_on_each(attempt: AttemptDir) -> None:
    ranks = (
        RankSteps(0, 1, 9, 1.0, seconds={"checkpoint": 2.0, "forward": 5.0}),
        RankSteps(1, 1, 9, 1.0, seconds={"checkpoint": 3.0}),
        RankSteps(2, 0, 9, 1.0, seconds={"checkpoint": 9.0}),  # of the launch before
    )
    attempt.spent("n1").write_text(encode(NodeSteps("n1", "7.0", ranks)))
    progress = ProgressLog(attempt, lambda: ("n1",))
    progress.look(1, 1, 10.0)
    attempt.spent("n1").write_text("not an account")
    progress.look(1, 99, 80.0)
    assert [one.get("seconds") for one in lines(attempt)] == [{"checkpoint": 3.0, "forward": 5.0}, None]


def test_the_loss_that_is_told_beside_it_if_it_is_a_number(attempt: AttemptDir) -> None:
    def told(loss: float | None) -> None:
        quiet, teller = RankSteps(0, 1, 9, 1.0), RankSteps(3, 1, 9, 1.0, loss_step=8, loss=loss)
        attempt.spent("n1").write_text(encode(NodeSteps("n1", "7.0", (teller, quiet))))

    progress = ProgressLog(attempt, lambda: ("n1",))
    for minute, loss in enumerate((2.5, float("nan"), None, 2.25)):
        told(loss)
        progress.look(1, 10 + minute, 100.0 + 61 * minute)
    assert [one.get("loss") for one in lines(attempt)] == [2.5, None, None, 2.25]


def test_a_disk_that_takes_nothing_is_told_once(attempt: AttemptDir, capsys: pytest.CaptureFixture[str]) -> None:
    attempt.progress.mkdir()
    progress = ProgressLog(attempt, tuple)
    for minute in range(5):
        progress.look(0, minute, minute * 60.0)
    assert capsys.readouterr().out.count("cannot write") == 1


class Ended:
    """A training step in which one rank has ended, but srun has not."""

    waits = ""

    def __init__(self, rank_code: int) -> None:
        self.code, self._rank_code = None, rank_code

    def exits(self) -> tuple[RankExit, ...]:
        return (RankExit(0, "n1", self._rank_code, None),)


@pytest.mark.parametrize("code", [1, 0])
def test_the_launchers_sight_writes_it_and_the_last_step_once_a_rank_has_ended(attempt: AttemptDir, code: int) -> None:
    watch = HeartbeatMonitor(attempt.nodes, StallLimits())
    state = State(7, 0, Nodes(("n1",), 1), 1, launch=Launch(0))
    options: Any = SimpleNamespace(checkpoints=attempt.path / "none")
    monitor = Monitor(options, attempt, watch, lambda: state, lambda _: False)
    for step in range(4):
        rank = RankBeat(0, 0, step, step + 1, 0.1, None, "step", 1, "R")
        (attempt.nodes / "n1.beats").write_bytes(encode_table(NodeTable("n1", "7.0", step + 1, (rank,))))
        watch.look(float(step))
        assert list(monitor.heartbeat_events(float(step)))
    assert [one["step"] for one in lines(attempt)] == [0]
    training: Any = Ended(code)
    assert any(isinstance(heard, RanksExited) for heard in monitor.step_events(4.0, training))
    assert [one["step"] for one in lines(attempt)] == [0, 3]


def test_standby_of_no_use_is_reported_before_the_first_step(attempt: AttemptDir) -> None:
    state = State(7, 0, Nodes(("n1",), 1), 1, launch=Launch(1, tasks_seen=True, standby=True))
    options: Any = SimpleNamespace(checkpoints=attempt.path / "none")
    monitor = Monitor(options, attempt, HeartbeatMonitor(attempt.nodes, StallLimits()), lambda: state, lambda _: False)
    plan = StepPlan(["sleep", "60"], {}, ("n1",), 1, standby=True)
    step = TrainingStep(plan, attempt.exits(1))
    try:
        attempt.exits(1).mkdir(parents=True)
        assert not any(isinstance(heard, StandbyTook) for heard in monitor.step_events(1.0, step))
        (attempt.exits(1) / "from-scratch-0").touch()
        assert StandbyTook(2.0, 1, took=False) in list(monitor.step_events(2.0, step))
    finally:
        step.kill()


def test_a_launch_that_is_ended_while_its_ranks_step(attempt: AttemptDir) -> None:
    watch = HeartbeatMonitor(attempt.nodes, StallLimits())
    state = [State(7, 0, Nodes(("n1",), 1), 1, launch=Launch(0))]
    options: Any = SimpleNamespace(checkpoints=attempt.path / "none")
    monitor = Monitor(options, attempt, watch, lambda: state[0], lambda _: False)
    for step in range(6):
        if step == 3:
            state[0] = replace(state[0], phase=Phase.ENDING)
        rank = RankBeat(0, 0, step, step + 1, 0.1, None, "step", 1, "R")
        (attempt.nodes / "n1.beats").write_bytes(encode_table(NodeTable("n1", "7.0", step + 1, (rank,))))
        watch.look(float(step))
        list(monitor.heartbeat_events(float(step)))
    assert [one["step"] for one in lines(attempt)] == [0, 3]


@pytest.mark.parametrize("steps", [True, False])
def test_a_launch_that_steps_is_not_ended_for_a_node_whose_agent_and_slurmd_are_silent(
    attempt: AttemptDir, steps: bool
) -> None:
    """What the launcher's core makes of what its monitor tells: only if the ranks that can be seen make no step."""
    watch, clock = HeartbeatMonitor(attempt.nodes, StallLimits()), 100.0
    state, _ = launcher.decide(State(7, 0, Nodes(("n1", "n2"), 2), 1), launcher.AttemptStarted(clock))
    options: Any = SimpleNamespace(checkpoints=attempt.path / "none")
    monitor = Monitor(options, attempt, watch, lambda: state, lambda _: True)
    orders: list[launcher.Action] = []
    for second in range(120):
        clock += 1.0
        for rank in range(2):
            if rank == 0 or second < 20:
                at = second if steps or second < 20 else 20
                beat = RankBeat(rank, 0, at, at + 1, 0.1, None, "step", 1, "R")
                table = NodeTable(f"n{rank + 1}", "7.0", second + 1, (beat,))
                (attempt.nodes / f"n{rank + 1}.beats").write_bytes(encode_table(table))
        watch.look(clock)
        for heard in monitor.heartbeat_events(clock):
            state, new = launcher.decide(state, heard)
            orders += new
    assert any(isinstance(order, launcher.EndLaunch) for order in orders) is not steps
    assert state.progress.step == (119 if steps else 20)
