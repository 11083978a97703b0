"""Stuck processes: a real zombie, and a real one that hangs in the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from processes import wait_for

from transom_cli.core import codec
from transom_cli.health.check import About
from transom_cli.health.checks import processes as module
from transom_cli.health.checks.processes import (
    ProcessesLimits,
    ProcessesReading,
    Stuck,
    judge_processes,
    read_processes,
)
from transom_cli.health.finding import Verdict
from transom_cli.health.system import read_text

OLD = ProcessesLimits(stuck_age=0.0)


def state(pid: int) -> str:
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]


@pytest.fixture(autouse=True)
def every_stuck_process_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading keeps the oldest hundred; this machine may have as many zombies of other programs."""
    monkeypatch.setattr(module, "_KEPT", 10**6)


@pytest.fixture
def hanging() -> Iterator[int]:
    """The parent of a vfork waits in D until the child is gone: vfork(2)."""
    program = "import ctypes, time\nif ctypes.CDLL(None).vfork() == 0:\n    time.sleep(600)\n"
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: state(parent.pid) == "D")
    yield parent.pid
    os.killpg(parent.pid, 9)
    parent.wait()


def test_old_zombie_is_monitored() -> None:
    child = subprocess.Popen(["true"])
    wait_for(lambda: state(child.pid) == "Z")
    reading = read_processes(About())
    assert codec.build(ProcessesReading, codec.plain(reading)) == reading
    (zombie,) = [one for one in reading.stuck if one.pid == child.pid]
    assert (zombie.name, zombie.state, zombie.parent, zombie.threads) == ("true", "Z", os.getpid(), 1)
    only = ProcessesReading(9, (zombie,))  # this machine may have older ones, which are listed first
    (found,) = judge_processes("n1", only, About(), OLD)
    assert found.verdict is Verdict.MONITOR and f"child of {os.getpid()}" in found.evidence
    child.wait()
    assert child.pid not in [one.pid for one in read_processes(About()).stuck]


def test_process_blocked_in_the_kernel_is_monitored(hanging: int) -> None:
    reading = read_processes(About())
    assert hanging in [one.pid for one in reading.stuck if one.state == "D"]
    only = ProcessesReading(9, tuple(one for one in reading.stuck if one.pid == hanging))
    (found,) = judge_processes("n1", only, About(), OLD)
    assert found.verdict is Verdict.MONITOR
    assert found.evidence.startswith("blocked in the kernel: 1, zombies: 0; python (")


def test_process_scheduled_between_readings_is_not_blocked(hanging: int, monkeypatch: pytest.MonkeyPatch) -> None:
    switches = iter([("voluntary_ctxt_switches: 5",), ("voluntary_ctxt_switches: 6",)])
    monkeypatch.setattr(module, "_read_switches", lambda pid: next(switches) if pid == str(hanging) else ())
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert hanging not in [one.pid for one in read_processes(About()).stuck]


def test_young_zombie_passes_and_zombie_with_threads_is_named() -> None:
    young = Stuck(7, "ls", "Z", 1, 20.0, 1)
    (found,) = judge_processes("n1", ProcessesReading(400, (young,)), About(), ProcessesLimits())
    assert found.verdict is Verdict.PASS and "none of 400" in found.evidence
    leader = Stuck(8, "python", "Z", 1, 9000.0, 3)
    (found,) = judge_processes("n1", ProcessesReading(400, (leader, young)), About(), ProcessesLimits())
    assert found.evidence.endswith("python (8, Z, 3 threads, child of 1, started 9000 s ago)")
