"""The agreement on a step at which all ranks save: ranks that go on stepping, and orders that are passed on late."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from transom_cli.core.launcher import CheckpointPlanned
from transom_cli.supervise.launcher.final_checkpoint import plan_checkpoint


class Nodes:
    """Two ranks on two nodes. Between two questions `pace` steps go by; an order stands from the answer on."""

    def __init__(self, pace: int, *, listening: int = 1, broken: str = "") -> None:
        self.pace, self.listening, self.broken = pace, listening, broken
        self.step = 100
        self.orders: list[int] = []

    def ask(self, step: int) -> Mapping[str, Mapping[str, object]]:
        self.step += self.pace
        if step >= 0:
            self.orders.append(step)
        good = {"ok": True, "listening": list(range(self.listening)), "reached": self.step, "keeps": [0]}
        answers: dict[str, Mapping[str, object]] = {"n1": good, "n2": good}
        if self.broken:
            answers["n2"] = {"error": self.broken}
        return answers


def test_the_step_lies_ahead_of_all_ranks() -> None:
    nodes = Nodes(pace=3)
    assert plan_checkpoint(nodes.ask, 4, 2, step_time=0.1) == CheckpointPlanned(0.0, 4, 103 + 2 + 15, keeps=True)
    assert nodes.orders == [120] and nodes.step < 120


def test_a_step_that_was_passed_meanwhile_is_put_further_ahead() -> None:
    nodes = Nodes(pace=20)
    found = plan_checkpoint(nodes.ask, 0, 2, step_time=0.1)
    assert nodes.orders == [137, 172] and found.step == 172, "140 was reached when 137 had been passed on"


def test_ranks_that_outrun_every_order_cannot_be_asked() -> None:
    found = plan_checkpoint(Nodes(pace=1000).ask, 0, 2, step_time=0.1)
    assert (found.step, found.words) == (-1, "the ranks were faster than the order")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (Nodes(1, listening=0), "no rank has a Checkpointer"),
        (Nodes(1, broken="Connection refused"), "n2 does not answer: Connection refused"),
    ],
)
def test_why_there_is_no_step(nodes: Nodes, words: str) -> None:
    found = plan_checkpoint(nodes.ask, 0, 2, step_time=0.1)
    assert (found.step, found.words, nodes.orders) == (-1, words, [])


def test_all_ranks_must_listen() -> None:
    assert plan_checkpoint(Nodes(1).ask, 0, 4, step_time=0.1).words == "only 2 of 4 ranks have a Checkpointer"


def test_before_step_times_are_known_the_next_but_one_step_is_tried() -> None:
    nodes = Nodes(pace=0)
    assert plan_checkpoint(nodes.ask, 0, 2, step_time=0.0).step == 102
