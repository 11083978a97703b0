"""Nodes that come back with ranks of a launch that is over: they are ended, and nothing else is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from processes import wait_for

from transom_cli.core.launcher import THIS_LAUNCHER, LaunchEnded
from transom_cli.supervise.launcher import node_release
from transom_cli.supervise.launcher.node_release import OrphanReaper

NODES = ("n1", "n2", "n3")


class Agents:
    """Those of each node answer an end order as is planned for them, one after the other; then that nothing is left."""

    def __init__(self, **plan: list[LaunchEnded | Exception]) -> None:
        self._plan, self.asked, self.told = plan, list[tuple[int, tuple[str, ...], float]](), list[dict[str, Any]]()
        self.done = threading.Event()

    def end(self, launch: int, nodes: tuple[str, ...], grace: float) -> LaunchEnded:
        self.asked.append((launch, nodes, grace))
        answers = self._plan.get(nodes[0], [])
        answer = answers.pop(0) if answers else LaunchEnded(0.0, launch)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def journal(self, kind: str, **fields: Any) -> None:
        self.told.append({"type": kind, **fields})
        if "no process" in fields["words"]:
            self.done.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_release, "AGAIN", 0.02)


def test_a_node_that_answers_again_is_freed_of_the_launch_that_it_missed_the_end_of() -> None:
    late = LaunchEnded(0.0, 0, unheard=("n2",))
    agents = Agents(n2=[late, RuntimeError("no thread"), late])
    reaper = OrphanReaper(agents.end, agents.journal)
    reaper.watch(0, late, NODES)
    assert reaper.on("n2") and not reaper.on("n1")
    assert agents.done.wait(10)
    assert agents.told == [
        {"type": "leftovers", "node": "n2", "words": "n2 answers again: no process of launch 0 remains there"}
    ]
    wait_for(lambda: not reaper.on("n2"))
    time.sleep(0.2)
    assert agents.asked == [(0, ("n2",), 0.0)] * 4, "no other launch, no other node, and not once more"


def test_what_lives_on_is_told_once_and_tried_again() -> None:
    stuck = LaunchEnded(0.0, 1, survivors=(("n3", "process 5 (python, D)"),))
    agents = Agents(n3=[stuck, stuck, stuck])
    reaper = OrphanReaper(agents.end, agents.journal)
    reaper.watch(1, stuck, NODES)
    assert agents.done.wait(10)
    assert [t["words"] for t in agents.told] == [
        "n3 answers again: launch 1 survives there: process 5 (python, D)",
        "n3 answers again: no process of launch 1 remains there",
    ]


def test_what_this_launcher_could_not_do_is_on_no_node() -> None:
    agents = Agents()
    reaper = OrphanReaper(agents.end, agents.journal)
    reaper.watch(0, LaunchEnded(0.0, 0, survivors=((THIS_LAUNCHER, "srun of launch 0"),)), NODES)
    time.sleep(0.2)
    assert agents.asked == []


def test_after_the_attempt_nothing_is_tried() -> None:
    agents = Agents()
    reaper = OrphanReaper(agents.end, agents.journal)
    reaper.stop()
    reaper.watch(0, LaunchEnded(0.0, 0, unheard=("n2",)), NODES)
    time.sleep(0.2)
    assert agents.asked == []
