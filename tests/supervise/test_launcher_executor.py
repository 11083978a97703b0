"""How a launch is ended: whatever fails on the launcher's side, the ranks are ended and no node is blamed for it."""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.ckpt.restore.rollback import read as setbacks
from transom_cli.core.events import RankExit
from transom_cli.core.launcher import (
    THIS_LAUNCHER,
    EndLaunch,
    Event,
    KillRanks,
    LaunchEnded,
    LogsRead,
    ReadLogs,
    ReplaceRanks,
    RollBack,
    StartFailed,
    StartLaunch,
)
from transom_cli.layout import RunDir
from transom_cli.rpc import secret
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.executor import Executor
from transom_cli.supervise.launcher.group import Group
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import StepPlan, TrainingStep

NODES = ("n1", "n2")


class Step(TrainingStep):
    """An srun that does not end by itself, or whose exit records cannot be read."""

    def __init__(self, ends: bool = True, error: OSError | None = None) -> None:
        self._ends, self._error, self.killed = ends, error, False

    nodes, code = NODES, None

    def wait(self, seconds: float) -> bool:
        return self._ends

    def kill(self) -> None:
        self.killed = True

    def exits(self) -> tuple[RankExit, ...]:
        if self._error:
            raise self._error
        return ()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Executor, Agents, queue.SimpleQueue[Event]]:
    run, allocation = RunDir(tmp_path), Allocation(7, 0, NODES)
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,))
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    agents = Agents(allocation, options, run.attempt(7, 0), lambda *_, **__: None, lambda _: FakeSlurm(), lambda: False)
    executor = Executor(allocation, options, run.attempt(7, 0), agents, inbox, lambda *_, **__: None)
    executor._nodes, executor.step = NODES, Step()
    return executor, agents, inbox


World = tuple[Executor, Agents, "queue.SimpleQueue[Event]"]


def answers(monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str]]) -> None:
    """Every agent does what it is asked."""

    def ask(_: Agents, node: str, name: str, *__: object) -> dict[str, object]:
        asked.append((node, name))
        return {"ok": True}

    monkeypatch.setattr(Agents, "_ask", ask)


def ended(inbox: queue.SimpleQueue[Event]) -> LaunchEnded:
    told = inbox.get(timeout=10)
    assert isinstance(told, LaunchEnded)
    return told


def test_an_srun_that_does_not_end_is_no_nodes_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, _, inbox = world
    answers(monkeypatch, [])
    executor.step = step = Step(ends=False)
    executor.end(EndLaunch(0, "l1", evidence=False))
    assert ended(inbox).survivors == ((THIS_LAUNCHER, "srun of launch 0"),)
    assert step.killed


def test_an_srun_that_waits_for_a_replaced_node_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a task on a node that is dead, and no rank of the launch is there any more."""
    executor, _, inbox = world
    answers(monkeypatch, [])
    executor._nodes = ("n1", "n3")
    executor.step = step = Step(ends=False)
    executor.end(EndLaunch(0, "l1", evidence=False))
    assert ended(inbox).survivors == ()
    assert step.killed


def test_a_fault_of_ours_is_no_nodes_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, agents, inbox = world

    def end(*_: object) -> LaunchEnded:
        raise RuntimeError("no thread can be started")

    monkeypatch.setattr(agents, "end", end)
    executor.end(EndLaunch(0, "l1", evidence=False))
    ((node, words),) = ended(inbox).survivors
    assert node == THIS_LAUNCHER and "no thread can be started" in words


def test_without_room_for_evidence_the_launch_is_ended_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executor, _, inbox = world
    asked: list[tuple[str, str]] = []
    answers(monkeypatch, asked)
    (tmp_path / "attempts").write_text("in the way")  # nothing can be made below it
    executor.end(EndLaunch(0, "l1", evidence=True))
    assert ended(inbox) == LaunchEnded(0.0, 0)
    assert sorted(asked[2:]) == [(node, "end") for node in NODES]


def test_evidence_that_fails_is_told_and_the_launch_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, agents, inbox = world
    asked: list[tuple[str, str]] = []
    answers(monkeypatch, asked)
    monkeypatch.setattr(agents, "evidence", lambda *_: 1 / 0)
    executor.end(EndLaunch(0, "l1", evidence=True))
    assert ended(inbox) == LaunchEnded(0.0, 0, evidence=("no evidence: ZeroDivisionError('division by zero')",))
    assert sorted(asked) == [(node, "end") for node in NODES]


def test_who_the_others_wait_for_is_told_before_what_each_did(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executor, agents, inbox = world
    answers(monkeypatch, [])
    folder = RunDir(tmp_path).attempt(7, 0).evidence("l1")

    def evidence(*_: object) -> tuple[str, ...]:
        folder.mkdir(parents=True)
        for rank, state in enumerate("TSSS"):
            (folder / f"rank-{rank}.proc.json").write_text(f'{{"state": "{state}"}}')
        return ("rank 0 on n1, state T",)

    monkeypatch.setattr(agents, "evidence", evidence)
    executor.end(EndLaunch(0, "l1", evidence=True))
    first, second = ended(inbox).evidence
    assert first.startswith("non-communication hang: rank 0 is stopped (state T") and second == "rank 0 on n1, state T"


@pytest.mark.parametrize("kills", [False, True])
def test_what_ranks_print_once_the_launcher_has_ended_some_is_no_cause(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kills: bool
) -> None:
    executor, _, inbox = world
    log = RunDir(tmp_path).attempt(7, 0).logs(0) / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 5\n")

    def ask(_: Agents, _node: str, name: str, *__: object) -> dict[str, object]:
        if name in ("end", "kill"):
            log.write_text("step 5\nRuntimeError: [gloo/tcp/pair.cc:553] Connection closed by peer [::1]:22431\n")
        return {"ok": True}

    monkeypatch.setattr(Agents, "_ask", ask)
    monkeypatch.setattr("transom_cli.supervise.launcher.executor.RECORDED", 0.0)
    if kills:
        executor.kill(KillRanks(0, (1,)))
    else:
        executor.end(EndLaunch(0, "l1", evidence=False))
    inbox.get(timeout=10)
    assert "Connection closed" in log.read_text()
    executor.read_logs(ReadLogs(0, None))
    read = inbox.get(timeout=10)
    assert isinstance(read, LogsRead) and (read.category, read.line, read.last) == ("unknown", "", "")


def test_exit_records_that_cannot_be_read_do_not_make_a_launch_live_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, _, inbox = world
    answers(monkeypatch, [])
    executor.step = Step(error=OSError(116, "Stale file handle"))
    executor.end(EndLaunch(0, "l1", evidence=False))
    assert ended(inbox) == LaunchEnded(0.0, 0)


def test_an_srun_that_would_wait_for_a_silent_node_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, _, inbox = world
    monkeypatch.setattr(Agents, "_ask", lambda _, node, *__: {"ok": True} if node == "n1" else {"error": "late"})
    executor.step = step = Step(ends=False)
    executor.end(EndLaunch(0, "l1", evidence=False))
    assert ended(inbox) == LaunchEnded(0.0, 0, unheard=("n2",)) and step.killed
    assert (executor.orphans.on("n1"), executor.orphans.on("n2")) == (False, True)
    executor.orphans.stop()


def test_what_is_set_back_is_on_disk_before_the_next_launch(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, _, _ = world
    monkeypatch.chdir(tmp_path)
    executor.roll_back(RollBack(3, 20, (21, 30), "nan_loss"))
    (told,) = setbacks(Path("checkpoints"))
    assert (told.launch, told.to, told.skip, told.why) == ("7.0.3", 20, (21, 30), "nan_loss")
    assert Path("checkpoints/.fence").read_text().strip() == "7.0.3", "what lives on of older launches is kept out"


def test_a_launch_that_cannot_be_set_back_is_not_started(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, _, inbox = world
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/.setbacks").write_text("{torn")
    executor.roll_back(RollBack(3, 20, None, "nan_loss"))
    assert executor.start(StartLaunch(3, NODES)) is None
    told = inbox.get(timeout=1)
    assert isinstance(told, StartFailed) and "cannot be set back to step 20" in told.words


def test_stuck_rank_is_started_again_in_the_same_launch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left behind at the last moment is not taken for the end of the new process."""
    executor, _, inbox = world
    exits = executor._attempt.exits(1)
    exits.mkdir(parents=True)
    (exits / "rank-0.json").write_text('{"rank": 0, "node": "n1", "code": null, "signal": 9}')
    old = TrainingStep(StepPlan(["sleep", "60"], {}, NODES, 2), executor._attempt.exits(0))
    new = TrainingStep(StepPlan(["sleep", "60"], {}, NODES[:1], 1), exits)
    wanted: list[Group] = []
    monkeypatch.setattr(executor._new, "form", lambda group: wanted.append(group) or new)
    executor.step, executor._group = old, Group(1, NODES, "n1", {}, 5, (1,))
    try:
        executor.replace(ReplaceRanks(1, (0,)))
        assert [(group.launch, group.lost, group.port) for group in wanted] == [(1, (0,), 5)]
        assert executor.step is not None and executor.step.steps == [new, old]
        (exits / "rank-0.json").write_text(
            '{"rank": 0, "node": "n1", "code": 3, "signal": null, "wall": 1, "steps": 4}'
        )
        assert [one.code for one in executor.step.exits()] == [3] and inbox.empty()
    finally:
        old.kill()
        new.kill()


def test_agent_that_dies_during_a_call_is_restarted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node does not count as silent: the first call breaks, and then nothing listens there."""
    _, agents, _ = world
    secret.make(RunDir(tmp_path).secret)
    listener, revived = socket.create_server(("127.0.0.1", 0)), list[str]()

    def die() -> None:
        connection, _ = listener.accept()
        listener.close()
        connection.close()

    endpoint = RunDir(tmp_path).attempt(7, 0).endpoint("n1")
    endpoint.parent.mkdir(parents=True)
    endpoint.write_text(json.dumps({"port": listener.getsockname()[1]}))
    monkeypatch.setattr(agents, "_ips", {"n1": "127.0.0.1"})
    monkeypatch.setattr(agents._revival, "at_once", revived.append)
    dying = threading.Thread(target=die)
    dying.start()
    assert not agents.ask("n1", "end", 5.0, launch=0).get("ok")
    dying.join()
    assert revived == ["n1"]
