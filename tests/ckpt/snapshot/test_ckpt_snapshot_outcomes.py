"""Ranks that wait for a write to end hear of it from their own node's daemon, however many there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import wait_for

from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.snapshot import persist
from transom_cli.ckpt.snapshot.peers import identity, make_hash
from transom_cli.ckpt.snapshot.persist import ALL, COPYING, DONE, FAILED, RUNNING, SUPERSEDED, UNKNOWN
from transom_cli.ckpt.snapshot.training import Training
from transom_cli.ckpt.snapshot.writer import Order
from transom_cli.rpc.server import Server
from transom_cli.rpc.verbs import Call, Reply

KEY = b"k" * 32
LONG = 60.0  # seconds: a test that waits so long has failed
WAITING = 40  # ranks: more than a daemon has lines


class Two:
    """Two nodes' daemons of one training; the first sees to what becomes durable. `asked`: what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.trainings = {node: Training("/c", "token", node, lambda line: None) for node in ("n0", "n1")}
        self.servers = {
            node: Server(KEY, identity(node), None, self._answers(node), make_hash=make_hash) for node in self.trainings
        }
        places = {node: ("127.0.0.1", server.start("127.0.0.1")) for node, server in self.servers.items()}
        for node, training in self.trainings.items():
            training.meet(node, places, KEY)

    def _answers(self, node: str):
        def answer(call: Call) -> Reply:
            if node == "n0":
                self.asked.append(call.verb)
            return self.trainings[node].answer(call)

        return answer

    def ends(self, step: int, state: str, trouble: str = "") -> None:
        self.trainings["n0"].persister._tell(step, state, trouble)

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()


@pytest.fixture
def two() -> Iterator[Two]:
    found = Two()
    yield found
    found.close()


def test_many_ranks_wait_without_a_question_to_the_one_that_sees_to_it(two: Two) -> None:
    there = two.trainings["n1"].persister
    ready = threading.Barrier(WAITING + 1)

    def rank(_: int) -> tuple[str, str]:
        ready.wait()
        return there.outcome_by("n0", 5, LONG)

    with ThreadPoolExecutor(WAITING) as ranks:
        told = ranks.map(rank, range(WAITING))
        ready.wait()
        two.ends(5, FAILED, "the disk is full")
        assert list(told) == [(FAILED, "the disk is full")] * WAITING
    assert two.asked == []


def test_what_was_not_heard_is_asked_for_once(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that sees to it could not reach this node when the write ended."""
    two.trainings["n0"].persister._outcomes.set(5, DONE)
    there = two.trainings["n1"].persister
    assert there.outcome_by("n0", 5, 0.0) == (RUNNING, ""), "it is taken to be under way for some seconds"
    assert two.asked == []
    monkeypatch.setattr(persist, "_SILENCE", 0.0)
    there._outcomes.forget(None)
    assert [there.outcome_by("n0", 5, 0.0) for _ in range(3)] == [(DONE, "")] * 3
    assert two.asked == ["outcome"]


def test_one_that_knows_nothing_or_is_gone_leaves_it_unknown_and_is_asked_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist, "_SILENCE", 0.0)
    monkeypatch.setattr(persist, "_UNSURE", 0.0)
    there = two.trainings["n1"].persister
    assert there.outcome_by("n0", 5, 0.0) == (UNKNOWN, "")
    two.servers["n0"].stop()
    state, trouble = there.outcome_by("n0", 5, 0.0)
    assert state == UNKNOWN
    assert "n0" in trouble
    assert two.asked == ["outcome"]


def test_copies_are_known_of_until_they_are_written(two: Two) -> None:
    there = two.trainings["n1"].persister
    two.ends(5, COPYING)
    assert there.outcome_by("n0", 5, LONG) == (COPYING, "")
    assert there.copying_by("n0")
    assert two.trainings["n0"].persister.copying_by("n0")
    two.ends(5, DONE)
    assert not there.copying_by("n0")
    assert not two.trainings["n0"].persister.copying_by("n0")
    assert two.asked == []


def test_a_past_that_did_not_happen_is_forgotten(two: Two) -> None:
    there = two.trainings["n1"].persister
    for step in (4, 5):
        two.ends(step, DONE)
    there.forget(4)
    assert there.outcome_by("n0", 4, 0.0) == (DONE, "")
    assert there.outcome_by("n0", 5, 0.0) == (RUNNING, "")


@pytest.mark.parametrize("back", [False, True], ids=["saved anew", "gone back to"])
def test_why_a_step_could_not_be_written_before_is_over_when_it_is_tried_again(two: Two, back: bool) -> None:
    two.ends(5, FAILED, "the disk is full")
    for node, training in two.trainings.items():
        assert training.persister.outcome_by("n0", 5, LONG) == (FAILED, "the disk is full")
        training.persister.forget(5) if back else training.persister.tried_again(5)
        assert training.persister.outcome_by("n0", 5, 0.0) == (UNKNOWN if node == "n0" else RUNNING, "")
    two.ends(5, DONE)
    for training in two.trainings.values():
        training.persister.tried_again(5)
        assert training.persister.outcome_by("n0", 5, LONG) == (DONE, ""), "what is durable stays so"


def test_of_writes_that_wait_only_the_newest_wanted_one_is_not_dropped(two: Two, monkeypatch: pytest.MonkeyPatch):
    leader = two.trainings["n0"].persister
    free, written = threading.Event(), []

    def checkpoint(order: Order, directory: object) -> str:
        assert free.wait(LONG)
        written.append(order.step)
        return ""

    monkeypatch.setattr(leader.writer, "checkpoint", checkpoint)
    monkeypatch.setattr(leader.writer, "tidy", lambda *_: None)
    monkeypatch.setattr(persist, "GRACE", 0.0)
    leader.begin(Order(1, "1.0", ALL))
    wait_for(lambda: not leader._pending)
    for step in range(2, 13):
        leader.begin(Order(step, "1.0", Keep(2, every=5), requested=step == 7))
    wait_for(lambda: set(leader._pending) == {10, 12})
    free.set()
    states = {step: leader.outcome(step, LONG)[0] for step in range(1, 13)}
    assert {step for step, state in states.items() if state == DONE} == {1, 10, 12} == set(written)
    assert {states[step] for step in (2, 5, 7, 11)} == {SUPERSEDED}


def test_a_durable_step_that_another_launch_commits_again_is_released(two: Two) -> None:
    """Else the next saves of that launch wait for memory that is never free."""
    for training in two.trainings.values():
        training.store._reserved.add(5, persist.RESERVED)
    lead = two.trainings["n0"].persister
    lead._outcomes.set(5, DONE)
    lead.begin(Order(5, "2.0", Keep(2, None)))
    for training in two.trainings.values():
        wait_for(lambda training=training: training.store._reserved.of(5) == ())
