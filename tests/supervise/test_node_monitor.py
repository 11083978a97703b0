"""What is seen of the allocation's nodes: spares that are ready or not, and drains by somebody."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core.launcher import Event, NodesDraining, SpareChecked
from transom_cli.slurm.port import Node, SlurmUnknown
from transom_cli.supervise.launcher import node_monitor
from transom_cli.supervise.launcher.node_monitor import NodeMonitor


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[Event]:
    monkeypatch.setattr(node_monitor, "DRAIN_EVERY", 0.05)
    monkeypatch.setattr(node_monitor, "SPARE_EVERY", 0.05)
    monkeypatch.setattr(node_monitor, "WARM_EVERY", 0.05)
    return queue.SimpleQueue()


def nothing(_: str) -> dict[str, object]:
    return {"ok": True}


@pytest.mark.long
def test_a_spare_is_ready_once_its_agent_answers_and_given_up_when_it_does_not(
    inbox: queue.SimpleQueue[Event],
) -> None:
    answers: list[dict[str, object]] = [{"error": "late"}, {"ok": True}, {"error": "late"}, {"ok": True}]
    answers += [{"error": "refused"}] * 5 + [{"ok": True}] * 100

    watch = NodeMonitor(inbox)
    watch.start((), ("n4",), lambda _: answers.pop(0), FakeSlurm)
    assert inbox.get(timeout=10) == SpareChecked(0.0, "n4", good=True)
    assert inbox.get(timeout=10) == SpareChecked(0.0, "n4", good=False, words="refused")
    assert inbox.get(timeout=10) == SpareChecked(0.0, "n4", good=True), "its agent was started again"
    watch.stop()


def test_a_spare_is_warmed_once_when_it_is_ready_and_the_time_has_come(inbox: queue.SimpleQueue[Event]) -> None:
    probed: list[str] = []
    asked: list[str] = []
    done = threading.Event()

    def probe(node: str) -> dict[str, object]:
        probed.append(node)
        return {"ok": node == "n4" and probed.count(node) > 1}

    def warm(node: str) -> bool:
        assert probed.count(node) > 1, "not before it is ready"
        asked.append(node)
        if len(asked) == 3:
            done.set()
        return done.is_set()

    watch = NodeMonitor(inbox)
    watch.start((), ("n4", "n5"), probe, FakeSlurm, warm)
    assert done.wait(10)
    time.sleep(0.3)
    watch.stop()
    assert asked == ["n4"] * 3, "and n5 never was"


def test_a_spare_that_takes_long_to_be_warmed_is_looked_at_all_the_while(inbox: queue.SimpleQueue[Event]) -> None:
    over, looks = threading.Event(), []

    def probe(_: str) -> dict[str, object]:
        looks.append(1)
        return {"ok": len(looks) < 4, "error": "gone"}

    watch = NodeMonitor(inbox)
    watch.start((), ("n4",), probe, FakeSlurm, lambda _: over.wait(60))
    assert [inbox.get(timeout=10).good for _ in range(2)] == [True, False]  # type: ignore[attr-defined]
    watch.stop()
    over.set()


def test_a_drain_is_told_once_with_its_reason(inbox: queue.SimpleQueue[Event]) -> None:
    admin = FakeSlurm(admin=True, user="root")
    names = tuple(admin.cluster.nodes)
    watch = NodeMonitor(inbox)
    watch.start(names[:2], (), nothing, lambda: admin)
    admin.drain(names[2], "not ours")
    admin.drain(names[1], "a fan")
    told = inbox.get(timeout=10)
    assert isinstance(told, NodesDraining) and told.nodes == (names[1],)
    assert told.words.startswith(f"{names[1]} is being drained: a fan")
    time.sleep(0.3)
    assert inbox.empty()
    watch.stop()


def test_a_slurm_that_does_not_answer_drains_nothing(inbox: queue.SimpleQueue[Event]) -> None:
    class Deaf(FakeSlurm):
        asked = 0

        def nodes(self, names: object = ()) -> list[Node]:
            Deaf.asked += 1
            raise SlurmUnknown("no answer")

    watch = NodeMonitor(inbox)
    watch.start(("n1",), (), nothing, Deaf)
    deadline = time.monotonic() + 10
    while Deaf.asked < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    watch.stop()
    assert Deaf.asked >= 3 and inbox.empty()
