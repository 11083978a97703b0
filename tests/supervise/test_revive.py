"""An agent that has died is started again, so many times and no more: real processes in place of srun."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_fake import FakeSlurm

from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.slurm.port import SlurmUnknown
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher import revive
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.revive import TRIES, Revival

SAYS_WHERE = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))"


class Node:
    """What the revival finds: an agent that answers or not, a slurmd that does or not, what a step does."""

    def __init__(self, folder: Path) -> None:
        self.attempt: AttemptDir = RunDir(folder).attempt(7, 0)
        self.attempt.nodes.mkdir(parents=True)
        self.lives, self.slurmd = False, Verdict.PASS
        self.step = [sys.executable, "-c", SAYS_WHERE, str(self.attempt.endpoint("n2"))]
        self.starts, self.asked = 0, 0
        self.journal: list[dict[str, Any]] = []
        allocation = Allocation(7, 0, ("n1", "n2"))
        options = LaunchOptions(RunDir(folder), "srun", ("true",), (sys.executable,))
        self.revival = Revival(allocation, options, self.attempt, self._lives, self._journal, lambda _: FakeSlurm())

    def _lives(self, node: str) -> bool:
        self.asked += 1
        return self.lives

    def _journal(self, kind: str, **fields: Any) -> None:
        self.journal.append({"type": kind, **fields})

    def argv(self, *_: object) -> list[str]:
        self.starts += 1
        return self.step

    def said(self) -> list[str]:
        return [r["what"] for r in self.journal]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path)
    monkeypatch.setattr(launchplan, "agent_argv", made.argv)
    monkeypatch.setattr(revive, "PAUSES", (0.0,))
    monkeypatch.setattr(revive, "ALIVE", 0.0)
    monkeypatch.setattr(Revival, "_reach", lambda _, node: Finding("reach", made.slurmd, node, "its words"))
    yield made
    made.revival.stop(at_once=True, patience=0.0)


def until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_started_again_and_told(node: Node) -> None:
    node.revival.look(("n2",))
    until(lambda: node.journal)
    assert node.journal == [{"type": "agent", "node": "n2", "what": "started again", "words": "start 1 of 3"}]
    assert node.attempt.endpoint("n2").exists()


def test_closed_port_is_acted_on_although_the_agent_answered_a_moment_ago(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revive, "ALIVE", 600.0)
    node.lives = True
    node.revival.look(("n2",))
    until(lambda: node.asked and not node.revival._under_way)
    node.lives = False
    node.revival.at_once("n2")
    assert node.said() == ["started again"]


def test_an_agent_that_answers_is_left_alone_however_late_its_table(node: Node) -> None:
    node.lives = True
    for _ in range(20):
        node.revival.at_once("n2")
    assert (node.asked, node.starts, node.journal) == (20, 0, [])


def test_where_the_slurmd_is_dead_nothing_is_started_and_the_tries_are_spent(node: Node) -> None:
    node.slurmd = Verdict.FAIL
    for _ in range(10):
        node.revival.at_once("n2")
    assert node.starts == 0
    assert node.said() == ["not started again"] * TRIES
    assert node.journal[-1]["words"] == "try 3 of 3: its words"
    assert node.revival.dead("n2") and not node.revival.dead("n1")


def test_a_node_that_answers_again_is_not_dead(node: Node) -> None:
    node.slurmd = Verdict.FAIL
    node.revival.at_once("n2")
    node.lives = True
    node.revival.at_once("n2")
    assert not node.revival.dead("n2")


def test_an_agent_that_was_stopped_with_its_launcher_is_asked_again(node: Node) -> None:
    def late(_: str) -> bool:
        node.revival.resumed()  # stopped and continued while the answer was waited for
        return False

    node.revival._lives = late
    node.revival.at_once("n2")
    assert (node.starts, node.journal) == (0, [])


def test_what_slurm_cannot_tell_is_tried(node: Node) -> None:
    node.slurmd = Verdict.UNKNOWN
    node.revival.at_once("n2")
    assert node.said() == ["started again"]


def test_while_slurmctld_is_away_no_try_is_spent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Finding:
        raise SlurmUnknown("Slurm did not answer `scontrol show`", "Socket timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Revival, "_reach", away)
        patch.setattr(revive, "AWAY", 0.0)
        for _ in range(10):
            node.revival.at_once("n2")
    assert (node.asked, node.starts, node.journal) == (10, 0, [])
    node.revival.at_once("n2")
    assert node.journal[-1]["words"] == "start 1 of 3"


def test_a_step_that_fails_is_not_tried_for_ever(node: Node) -> None:
    node.step = [sys.executable, "-c", "raise SystemExit(5)"]
    for _ in range(10):
        node.revival.at_once("n2")
    assert (node.starts, node.said()) == (TRIES, ["not started again"] * TRIES)
    assert "srun ended with exit code 5" in node.journal[0]["words"]


def test_a_program_that_cannot_be_run_harms_nobody(node: Node) -> None:
    node.step = ["/no/such/srun"]
    node.revival.at_once("n2")
    assert "No such file" in node.journal[0]["words"]
    node.step = [sys.executable, "-c", SAYS_WHERE, str(node.attempt.endpoint("n2"))]
    node.revival.at_once("n2")
    assert node.said() == ["not started again", "started again"]


def test_a_step_that_never_comes_up_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive, "COME", 0.3)
    node.step = ["sleep", "600"]
    node.revival.at_once("n2")
    assert "did not come up" in node.journal[0]["words"]
    assert node.revival._steps[0].wait(20) != 0


def test_between_two_tries_there_is_a_pause(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive, "PAUSES", (600.0,))
    node.step = ["false"]
    for _ in range(5):
        node.revival.at_once("n2")
    assert node.starts == 1


def test_who_asks_meanwhile_waits_for_the_one_that_is_at_it(node: Node) -> None:
    go = threading.Event()
    node.lives = True
    node.revival._lives = lambda _: not go.wait(30)  # type: ignore[method-assign]
    node.revival.look(("n2",))
    until(lambda: "n2" in node.revival._under_way)
    waiting = threading.Thread(target=node.revival.at_once, args=("n2",))
    waiting.start()
    node.revival.look(("n2",))
    go.set()
    waiting.join(30)
    assert not waiting.is_alive() and node.starts == 1


def test_after_the_end_no_more(node: Node) -> None:
    node.revival.stop(at_once=True, patience=0.0)
    node.revival.look(("n2",))
    node.revival.at_once("n2")
    assert (node.asked, node.starts) == (0, 0)


def test_the_step_is_for_one_node_alone(tmp_path: Path) -> None:
    allocation = Allocation(7, 0, ("n1", "n2", "n3"))
    options = LaunchOptions(RunDir(tmp_path), "srun", ("true",), ("python",))
    words = launchplan.agent_argv(allocation, options, RunDir(tmp_path).attempt(7, 0), "n2")
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2"} <= set(words)
    words = launchplan.agent_argv(allocation, options, RunDir(tmp_path).attempt(7, 0))
    assert "--nodes=3" in words and not [w for w in words if w.startswith("--nodelist")]
