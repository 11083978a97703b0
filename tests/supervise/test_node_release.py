"""Drained nodes that carry no rank any more go back to who drains them, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core.launcher import Nodes, State
from transom_cli.slurm.port import SlurmRefused, SlurmUnknown, Submission
from transom_cli.supervise.launcher import node_release
from transom_cli.supervise.launcher.node_release import NodeRelease
from transom_cli.supervise.launcher.plan import Allocation


class Cluster(FakeSlurm):
    """Answers a shrink with these errors first."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self._errors, self.asked = list(errors), list[tuple[str, ...]]()

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        self.asked.append(tuple(nodes))
        if self._errors:
            raise self._errors.pop(0)
        super().shrink(job_id, nodes)


class World:
    """A job of four nodes, whose batch script runs on the first."""

    def __init__(self, folder: Path, *errors: Exception) -> None:
        (folder / "s").write_text("#!/bin/bash\n")
        self.slurm = Cluster(*errors)
        self.job = self.slurm.submit(Submission(folder / "s", ("--nodes=4",)))
        self.slurm.sleep(5.0)
        self.nodes = self.slurm.job(self.job).nodes
        self.told: list[str] = []
        allocation = Allocation(self.job, 0, self.nodes, host=self.nodes[0])
        self.back = NodeRelease(allocation, lambda: self.slurm, self._journal)

    def _journal(self, kind: str, **fields: Any) -> None:
        self.told.append(fields["words"])

    def look(
        self, carrying: Sequence[int], draining: Sequence[int], left: Callable[[str], bool] = lambda _: False
    ) -> None:
        names = [tuple(self.nodes[n] for n in numbers) for numbers in (carrying, draining)]
        self.back.look(State(self.job, 0, Nodes(self.nodes, 2, training=names[0], draining=names[1]), 1), left)

    def settle(self, lines: int) -> list[str]:
        deadline = time.monotonic() + 10
        while len(self.told) < lines and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert not [t for t in threading.enumerate() if t.name == "give-back" and t.is_alive()]
        return self.told


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_release, "backoff", lambda _: 0.01)


def test_a_drained_node_goes_back_once_it_carries_no_rank(tmp_path: Path) -> None:
    world = World(tmp_path)
    n1, n2, n3, n4 = world.nodes
    world.look((0, 1), (1,))
    assert world.slurm.asked == [], "it trains there"
    world.look((0, 2), (1,), lambda node: node == n2)
    assert world.slurm.asked == [], "ranks of a former launch may live there"
    world.look((0, 2), (1,))
    assert world.settle(1) == [f"{n2} is given back: it is being drained, and runs no rank any more"]
    assert world.slurm.job(world.job).nodes == (n1, n3, n4) == world.back.kept()
    for _ in range(3):
        world.look((0, 2), (1, 3))
        world.settle(2)
    assert world.slurm.asked == [(n1, n3, n4), (n1, n3)], "a drained spare too, and each once"


def test_a_refusal_is_told_once_and_stands(tmp_path: Path) -> None:
    world = World(tmp_path, SlurmRefused("Slurm refused `scontrol update`", "Slurm said: Job violates a policy"))
    n1, n2, n3, n4 = world.nodes
    for _ in range(3):
        world.look((0, 2), (1,))
        told = world.settle(1)
    assert told == [f"{n2} stays in the job until it ends: Slurm said: Job violates a policy"]
    assert len(world.slurm.asked) == 1 and world.back.kept() == (n1, n2, n3, n4)


def test_a_slurm_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path, *[SlurmUnknown("no answer")] * 3)
    world.look((0, 2), (1,))
    assert world.settle(1)[0].startswith(f"{world.nodes[1]} is given back")
    assert len(world.slurm.asked) == 4


def test_the_node_of_the_batch_script_stays_and_the_other_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look((2, 3), (0, 1))
    told = world.settle(2)
    assert f"{world.nodes[0]} stays in the job until it ends: the batch script runs there" in told
    assert world.slurm.job(world.job).nodes == (world.nodes[0], *world.nodes[2:])
