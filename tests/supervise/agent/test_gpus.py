"""An agent that watches GPUs through a real watcher, over a stub of NVIDIA's library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import nvml_stub
import psutil
import pytest

from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.status import GpuStatus, NodeGpus, decode, encode, gpus_of, with_gpus
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent import node_gpus
from transom_cli.supervise.agent.node_gpus import GpuFile, Gpus
from transom_cli.supervise.agent.node_health import Watched

WHAT = Watched(every=0.2, about=About(tier=Tier.WATCH, gpus=2))


class Node:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = folder / "states"
        self.attempt = AttemptDir(folder / "48213.0")
        self.attempt.nodes.mkdir(parents=True)
        environment = nvml_stub.environment(nvml_stub.build(folder / "lib"), self.states)
        for name, value in {**environment, "SLURMD_NODENAME": "node1"}.items():
            monkeypatch.setenv(name, value)
        self.healthy = nvml_stub.healthy(2, "node1")
        nvml_stub.write(self.states, "node1", self.healthy)
        self.news: list[Finding] = []
        self.watching: Gpus | None = None

    def watch(self, what: Watched = WHAT) -> None:
        self.watching = Gpus("node1", what, self._tell, {}, GpuFile(self.attempt, "node1"))
        self.watching.start()

    def _tell(self, news: Sequence[Finding]) -> None:
        self.news += news

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not ready():
            assert time.monotonic() < deadline, self.news
            time.sleep(0.02)

    def shown(self) -> NodeGpus | None:
        path = self.attempt.gpus("node1")
        return decode(path.read_text()) if path.exists() else None

    def children(self) -> list[psutil.Process]:
        return [p for p in psutil.Process().children() if _is_watcher(p)]


def _is_watcher(process: psutil.Process) -> bool:
    try:
        return "transom_cli.health.gpu.watch" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie among them
        return False


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path, monkeypatch)
    yield made
    if made.watching is not None:
        made.watching.stop()
        made.until(lambda: not made.children())


def test_what_is_new_is_told_with_device_and_serial_and_what_was_there_is_not(node: Node) -> None:
    node.watch()
    node.until(lambda: node.shown() is not None)
    assert [f for f in node.news if f.verdict.bad] == []
    nvml_stub.write(node.states, "node1", nvml_stub.with_fault(node.healthy, "row_remap_failed", gpu=1))
    node.until(lambda: any(f.verdict is Verdict.FAIL for f in node.news))
    (found,) = [f for f in node.news if f.verdict is Verdict.FAIL]
    assert found.check == "gpu_rows" and found.device.startswith("GPU-") and found.serial
    assert found.remedy in (Remedy.REPAIR, Remedy.RESET_GPU)


def test_an_event_of_the_driver_is_told_at_once(node: Node) -> None:
    node.watch(replace(WHAT, every=60.0))
    node.until(lambda: node.shown() is not None)  # it listens
    nvml_stub.write(node.states, "node1", nvml_stub.with_event(node.healthy, 0, 8, 79))
    node.until(lambda: any(f.check == "gpu_xid" for f in node.news))
    (found,) = [f for f in node.news if f.check == "gpu_xid"]
    assert found.verdict is Verdict.FAIL and "Xid 79" in found.evidence and found.device.startswith("GPU-")


def test_what_the_gpus_tell_is_left_in_the_run_directory(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_gpus, "EVERY", 0.05)
    node.watch()
    node.until(lambda: node.shown() is not None)
    shown = node.shown()
    assert shown is not None
    assert (shown.node, shown.attempt, shown.expected, shown.answering) == ("node1", "48213.0", 2, 2)
    assert (shown.worst, shown.level, shown.xid) == ("", "", None) and shown.xids_since is not None
    first, second = gpus_of(shown)
    assert (first.uuid, first.heat, first.slowdown, first.warmth, first.busy) == ("GPU-node1-0000", 31, 87, "light", 0)
    assert (first.throttle, first.ecc_uncorrected, first.rows_pending, first.pages_pending) == ((), 0, False, None)
    assert second.index == 1 and second.power == pytest.approx(71.23)
    hot = nvml_stub.with_fault(node.healthy, "hardware_slowdown", gpu=1)
    nvml_stub.write(node.states, "node1", nvml_stub.with_event(hot, 0, 8, 31))
    node.until(lambda: (shown := node.shown()) is not None and bool(shown.worst) and shown.xid == 31)
    shown = node.shown()
    assert shown is not None and (shown.worst, shown.level, shown.xid_gpu) == ("gpu1 throttled", "throttled", 0)


def test_an_agent_after_it_knows_the_xids_and_writes_no_oftener_than_it_may(node: Node) -> None:
    node.watch(replace(WHAT, every=60.0))
    node.until(lambda: node.shown() is not None)  # which comes at once; the next one is due in 25 s
    path = node.attempt.gpus("node1")
    written = path.stat().st_mtime_ns
    nvml_stub.write(node.states, "node1", nvml_stub.with_event(node.healthy, 1, 8, 79))
    node.until(lambda: any(f.check == "gpu_xid" for f in node.news))
    assert path.stat().st_mtime_ns == written
    gpu = GpuStatus(1, "GPU-node1-0001", xid=94, xid_at=1000.0)
    path.write_text(encode(with_gpus(NodeGpus("node1", "48213.0", 1000.0, 30.0, 2, 2), [gpu])))
    assert GpuFile(node.attempt, "node1").former() == {"GPU-node1-0001": (94, 1000.0)}
    path.write_text("{")
    assert GpuFile(node.attempt, "node1").former() == {}


def test_nvml_that_hangs_is_told_and_ends_with_the_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_gpus, "HUNG", 5.0)
    node.watch()
    node.until(lambda: bool(node.children()))
    nvml_stub.write(node.states, "node1", nvml_stub.with_hang(node.healthy, "nvmlDeviceGetUUID"))
    node.until(lambda: any(f.check == node_gpus.CHECK for f in node.news))
    assert [f.verdict for f in node.news if f.check == node_gpus.CHECK] == [Verdict.MONITOR]


def test_a_watcher_that_dies_is_started_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_gpus, "AGAIN", 0.1)
    node.watch()
    node.until(lambda: bool(node.children()))
    first = node.children()[0].pid
    os.kill(first, 9)
    node.until(lambda: any(p.pid != first for p in node.children()))
    assert any(f.check == node_gpus.CHECK and f.verdict is Verdict.UNKNOWN for f in node.news)


def test_without_gpus_in_the_job_nothing_is_started_and_without_a_driver_nothing_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.watch(replace(WHAT, about=About(tier=Tier.WATCH)))
    time.sleep(0.3)
    assert node.children() == [] and node.news == []
    monkeypatch.delenv("LD_LIBRARY_PATH")
    monkeypatch.setattr(node_gpus, "AGAIN", 0.1)
    node.watch()
    node.until(lambda: bool(node.news) and not node.children())
    assert [f.verdict for f in node.news] == [Verdict.UNKNOWN]
