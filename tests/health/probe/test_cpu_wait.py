"""The share of time for which a process waited for a CPU: with others on it, alone, and throttled by a quota."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from transom_cli.health.probe.cpu_wait import Stopwatch, Waiting

SPIN = """
import json, os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from transom_cli.health.probe.cpu_wait import Stopwatch, Waiting
waiting, end, own = Waiting(), time.monotonic() + 1.0, 0.0
with Stopwatch() as watch:
    while time.monotonic() < end:
        watch.start()
        for _ in range(20000):
            pass
        own += watch.seconds()
    print(json.dumps([waiting.share(), watch.share(), own, watch.whole()]), flush=True)
"""
COUNTED = Path("/proc/self/schedstat").exists()


def spinning(**options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True, **options)  # type: ignore


def told(process: subprocess.Popen[str]) -> list[float]:
    """Of a second: the shares for which it waited, by both ways of counting, and the seconds that were its own, by the
    sum of what was timed and as a whole."""
    return json.loads(process.communicate(timeout=60)[0])  # type: ignore[no-any-return]


@pytest.mark.skipif(not COUNTED, reason="this kernel has no /proc/self/schedstat")
def test_four_on_one_processor_wait_for_most_of_the_time() -> None:
    for waiting, watch, own, whole in [told(process) for process in [spinning() for _ in range(4)]]:
        assert 0.5 < waiting <= 1.0
        assert 0.5 < watch <= 1.0
        # Each of a few hundred intervals is rounded up to what the thread computed, so their sum may exceed the whole.
        assert own - 0.05 <= whole < 0.5


def test_sleeping_is_not_waiting_for_a_cpu() -> None:
    waiting = Waiting()
    with Stopwatch() as watch:
        time.sleep(0.2)
        assert watch.seconds() > 0.1
        assert watch.share() < 0.5
    assert waiting.share() < 0.5


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group of this test's with a tenth of a processor."""
    made = Path(f"/sys/fs/cgroup/cpu/tsm-test-{os.getpid()}")
    try:
        made.mkdir()
        (made / "cpu.cfs_quota_us").write_text("10000")
    except OSError as error:
        pytest.skip(f"no control group with a quota can be made here: {error}")
    yield made
    made.rmdir()


@pytest.mark.root
@pytest.mark.skipif(not COUNTED, reason="this kernel has no /proc/self/schedstat")
def test_what_a_quota_withholds_is_not_waiting(quota: Path) -> None:
    for _ in range(5):  # beside others who want the processor it does wait
        process = spinning(preexec_fn=lambda: (quota / "cgroup.procs").write_text(str(os.getpid())))
        waiting, watch, _, whole = told(process)
        if max(waiting, watch) < 0.6:
            break
    assert waiting < 0.6, "it was stopped for nine tenths of the time"
    assert watch < 0.6
    assert whole > 0.4, "and what it did took that much longer"


def test_quota_is_read_from_the_cgroup(tmp_path: Path) -> None:
    """Of either version, of its own group and of those above it; composed as cgroups(7) has them."""
    v1, v2 = tmp_path / "cpu", tmp_path / "unified"
    (v1 / "job" / "step").mkdir(parents=True)
    (v2 / "job").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "task" / "1").mkdir(parents=True)
    schedstat = tmp_path / "proc" / "self" / "task" / "1" / "schedstat"
    schedstat.write_text("0 9000000000 1\n")
    proc = tmp_path / "proc" / "self"
    (proc / "mounts").write_text(f"cgroup {v1} cgroup rw,cpu,cpuacct 0 0\ncgroup2 {v2} cgroup2 rw 0 0\n")
    for member, folder, line in (
        ("3:cpu,cpuacct:/job/step", v1 / "job", "throttled_time 0"),
        ("0::/job", v2 / "job", "throttled_usec 0"),
    ):
        (proc / "cgroup").write_text(member + "\n")
        told = folder / "cpu.stat"
        told.write_text(f"nr_periods 5\n{line}\n")
        schedstat.write_text("0 0 1\n")
        waiting = Waiting(tmp_path / "proc")
        schedstat.write_text("0 3600000000000 1\n")
        assert waiting.share() == 1.0
        told.write_text(f"nr_periods 9\n{line[:-1]}{3600 * 10 ** (9 if 'time' in line else 6)}\n")
        assert waiting.share() == 0.0


def test_a_kernel_that_does_not_count_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "self" / "task" / "1").mkdir(parents=True)
    assert Waiting(tmp_path).share() == 0.0
