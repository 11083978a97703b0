"""The operator's eyes and hands together, before a Slurm that does not answer for ten minutes. Time runs faster."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.cadence import Pause
from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import RunDir
from transom_cli.slurm.guards import CircuitBreaker, with_circuit_breaker
from transom_cli.slurm.port import SlurmUnknown, Submission
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor, Orders
from transom_cli.supervise.operator.slurm_poller import SlurmPoller

FASTER = 200.0
TEN_MINUTES = 600.0
BOUND = 30  # of asks in ten minutes: 7 in the first one, then 2


class FastEvent(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / FASTER)


class Away:
    """Every call fails, after `hangs` seconds, until it is well; all of them are counted."""

    def __init__(self, hangs: float) -> None:
        self._real, self._hangs = FakeSlurm(), hangs
        self.began, self.asked, self.well = clock(), list[float](), False

    def __getattr__(self, method: str) -> object:
        def call(*args: object, **options: object) -> object:
            if not self.well:
                self.asked.append(clock() - self.began)
                time.sleep(self._hangs / FASTER)
                raise SlurmUnknown("Slurm did not answer", "Unable to contact slurm controller (connect failure)")
            return getattr(self._real, method)(*args, **options)

        return call


def clock() -> float:
    return FASTER * time.monotonic()


def nothing_heard(node: str, *_: object) -> Finding:
    return Finding("reach", Verdict.UNKNOWN, node, "not asked")


@pytest.mark.parametrize("hangs", [0.0, 10.0], ids=["refused", "hanging"])
def test_whatever_the_operator_wants_a_sick_slurm_is_asked_a_few_times_a_minute(tmp_path: Path, hangs: float) -> None:
    away = Away(hangs)
    slurm = with_circuit_breaker(away, CircuitBreaker(clock))  # type: ignore[arg-type]
    out: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
    watch = SlurmPoller(slurm, Clock(), out, lambda _took: Pause(1.0, 0.0))
    hands = Executor(Orders(RunDir(tmp_path), Submission(tmp_path / "x")), slurm, nothing_heard, Clock(), out)
    watch._wake, hands._end = FastEvent(), FastEvent()
    watch.follow(7, 0, ("node1",))
    watch.start()
    orders = [act.Probe(f"i1/probe/node{n}/1", f"node{n}", 7) for n in range(1, 5)]
    orders += [act.Isolate(f"i1/isolate/node{n}", f"node{n}", "silent", True) for n in range(1, 5)]  # type: ignore[list-item]
    orders += [act.Patch("patch/1", 7, ("node1",)), act.Cancel("cancel/7.0", 7)]  # type: ignore[list-item]
    for order in orders:
        hands.do(order)
    try:
        while clock() - away.began < TEN_MINUTES:
            watch.look()  # as for something that moves all the time
            time.sleep(0.01)
        asked = len([at for at in away.asked if at < TEN_MINUTES])
        assert 5 <= asked <= BOUND, away.asked
        away.well = True
        answered: set[str] = set()
        deadline = time.monotonic() + 60
        while answered != {order.key for order in orders}:
            assert time.monotonic() < deadline, answered
            event = out.get(timeout=60)
            if hasattr(event, "key"):
                assert event.key not in answered, "each is done once"
                answered.add(event.key)
    finally:
        watch.stop()
        hands.stop()
