"""The agent's child that watches GPUs: a real process over the stub of NVIDIA's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_stub import StubNode
from nvml_stub import healthy, with_error, with_event, with_fault, with_hang, with_values

from transom_cli.core.codec import build
from transom_cli.health.finding import Remedy, Verdict
from transom_cli.health.gpu.reading import NvmlReading
from transom_cli.health.gpu.xid import GpuEvent, judge_event

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def watch(stub: StubNode) -> Iterator[Start]:
    started = []

    def start(every: str = "600") -> subprocess.Popen[str]:
        started.append(stub.start("-m", "transom_cli.health.gpu.watch", "--every", every))
        return started[-1]

    yield start
    for child in started:
        end(child)


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def line(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    said = json.loads(child.stdout.readline())
    assert isinstance(said, dict)
    return said


def test_readings_come_again_and_again(stub: StubNode, watch: Start) -> None:
    stub.set(healthy(2))
    child = watch("0.2")
    said = line(child)
    first = build(NvmlReading, said["reading"])
    assert said["events"] is True
    stub.set(with_fault(healthy(2), "ecc_uncorrected", gpu=1))
    while True:
        later = build(NvmlReading, line(child)["reading"])
        if later.gpus[1].ecc.uncorrected_volatile:
            break
    assert later.mono > first.mono and [gpu.uuid for gpu in later.gpus] == [gpu.uuid for gpu in first.gpus]


def test_event_is_printed_at_once(stub: StubNode, watch: Start) -> None:
    """The readings are ten minutes apart, so only the event itself can have been reported."""
    state = healthy(2)
    stub.set(state)
    child = watch()
    assert "reading" in line(child)
    state = with_event(with_fault(state, "recovery_reset", gpu=1), gpu=1, kind=0x8, data=95)
    stub.set(state)
    event = build(GpuEvent, line(child))
    assert (event.event, event.device, event.serial, event.xid, event.recovery) == (
        "xid",
        "GPU-stub-0001",
        "1652323000001",
        95,
        1,
    )
    found = judge_event("n1", event)
    assert (found.check, found.verdict, found.remedy, found.device) == (
        "gpu_xid",
        Verdict.FAIL,
        Remedy.RESET_GPU,
        "GPU-stub-0001",
    )
    stub.set(with_event(state, gpu=0, kind=0x2))
    assert build(GpuEvent, line(child)).event == "double_bit_ecc"


def test_without_nvml_the_watcher_prints_why_and_exits_with_0(watch: Start) -> None:
    child = watch()
    assert line(child) == {"absent": "Driver Not Loaded"}
    assert child.wait(30) == 0


@pytest.mark.parametrize(
    "broken",
    [
        lambda state: with_error(state, "nvmlEventSetCreate", 3),
        lambda state: with_error(state, "nvmlDeviceRegisterEvents", 3),
        lambda state: with_error(state, "nvmlEventSetWait_v2", 999),
        lambda state: with_values(state, 0, events=""),
    ],
    ids=["no sets", "no registration", "no waiting", "no types"],
)
def test_without_events_there_are_readings(stub: StubNode, watch: Start, broken: Callable[..., Any]) -> None:
    stub.set(broken(healthy(1)))
    child = watch("0.1")
    lines = [line(child) for _ in range(3)]
    assert all("reading" in one for one in lines)
    assert list(lines[-1]) == ["reading"], "it does not say that events are received, once it knows that they are not"


def test_gpu_lost_during_a_wait(stub: StubNode, watch: Start) -> None:
    stub.set(with_error(healthy(1), "nvmlEventSetWait_v2", 15))
    child = watch()
    assert "reading" in line(child)
    assert build(GpuEvent, line(child)).event == "gpu_unavailable"


def test_it_ends_with_its_input(stub: StubNode, watch: Start) -> None:
    stub.set(healthy(1))
    child = watch()
    line(child)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 0


def test_it_ends_with_its_input_even_in_a_call_that_hangs(stub: StubNode, watch: Start) -> None:
    stub.set(with_hang(healthy(1)))
    child = watch()
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 0


def test_it_ends_with_its_parent(stub: StubNode) -> None:
    """Somebody else holds its input open: that it has another parent is all there is to see."""
    stub.set(healthy(1))
    reader, writer = os.pipe()
    program = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'transom_cli.health.gpu.watch'], stdin={reader})\n"
        "child.wait()\n"
    )
    argv = [sys.executable, "-c", program]
    parent = subprocess.Popen(argv, env=stub.env(), stdout=subprocess.PIPE, text=True, pass_fds=(reader,))
    try:
        assert parent.stdout is not None
        assert "reading" in json.loads(parent.stdout.readline())
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == "", "the child has closed the pipe that it had from its parent: it is gone"
    finally:
        os.close(writer)  # which would end it, too
        os.close(reader)
        end(parent)


def test_watcher_ends_if_nobody_reads(stub: StubNode, watch: Start) -> None:
    stub.set(healthy(1))
    child = watch("0.1")
    line(child)
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(30) == 0


def test_between_readings_it_does_nothing(stub: StubNode, watch: Start) -> None:
    """Processor time of two idle seconds, where waiting for events fails at once: a loop that spins would show."""
    stub.set(with_error(healthy(1), "nvmlEventSetWait_v2", 999))
    child = watch()
    line(child)
    before = _cpu(child.pid)
    time.sleep(2.0)
    assert _cpu(child.pid) - before <= 0.1


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
