"""The host during training: this machine, and readings of faulty hosts."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from transom_cli.health import host_watch
from transom_cli.health.checks.host import Memory
from transom_cli.health.checks.mounts import Room, RoomReader
from transom_cli.health.finding import Finding, Reported, Verdict, changes, worst
from transom_cli.health.host_watch import HostReader, HostReading, judge_host

GIB = 2**30
WELL = HostReading(
    node="n1",
    wall=1000.0,
    mono=50.0,
    booted=90000.0,
    load=3.0,
    cpus=8,
    memory=Memory(20 * GIB, 32 * GIB),
    oom_kills=4,
    pressure=(0.0, 12.0),
    rooms=(Room("/tmp", used=0.4, inodes=0.1, free=GIB),),
    kernel=(),
)


def bad(reading: HostReading, former: HostReading | None = None) -> dict[str, tuple[Verdict, str]]:
    found = judge_host(reading, former)
    return {f.check: (f.verdict, f.evidence) for f in found if f.verdict is not Verdict.PASS}


def test_this_machine_can_be_read() -> None:
    reader = HostReader("here", ("/tmp", "/dev/shm", "/proc/no-such-place"))
    reading = reader.read_host()
    assert reading.memory is not None and 0 < reading.memory.available <= reading.memory.total
    assert reading.oom_kills is not None and reading.cpus == os.cpu_count()
    tmp, _, nowhere = reading.rooms
    assert tmp.used is not None and 0 <= tmp.used <= 1 and tmp.free > 0
    assert (nowhere.used, nowhere.error) == (None, "No such file or directory")
    again = reader.read_host()
    assert again.mono > reading.mono
    assert "clock" not in bad(again, reading)
    assert bad(reading)["room:/proc/no-such-place"][0] is Verdict.UNKNOWN
    assert "GiB of memory available" in host_watch.summary(reading)


def test_healthy_host_passes_all_checks() -> None:
    assert bad(WELL) == bad(replace(WELL, wall=1010.0, mono=60.0), WELL) == {}


@pytest.mark.parametrize(
    ("change", "check", "verdict", "says"),
    [
        ({"memory": Memory(int(1.2 * GIB), 32 * GIB)}, "memory", Verdict.MONITOR, "1229 of 32768 MiB"),
        ({"memory": Memory(GIB // 10, 32 * GIB)}, "memory", Verdict.SUSPECT, "(0.3%)"),
        ({"memory": None}, "memory", Verdict.UNKNOWN, "cannot be read"),
        ({"pressure": (61.0, 0.0)}, "pressure", Verdict.MONITOR, "for memory 61%"),
        ({"pressure": None}, "pressure", Verdict.UNKNOWN, "no /proc/pressure"),
        ({"booted": 40.0}, "uptime", Verdict.MONITOR, "booted 40 s ago"),
        ({"rooms": (Room("/x", used=0.86, inodes=0.1),)}, "room:/x", Verdict.MONITOR, "86% of its space"),
        ({"rooms": (Room("/x", used=0.1, inodes=0.9),)}, "room:/x", Verdict.MONITOR, "90% of its inodes"),
        ({"rooms": (Room("/x", used=1.0, inodes=None),)}, "room:/x", Verdict.SUSPECT, "100% of its space used"),
        ({"rooms": (Room("/x", waited=3.0),)}, "room:/x", Verdict.UNKNOWN, "has not answered for 3 s"),
        ({"rooms": (Room("/x", waited=16.0),)}, "room:/x", Verdict.MONITOR, "has not answered for 16 s"),
        ({"kernel_trouble": "Operation not permitted"}, "kernel_log", Verdict.UNKNOWN, "not permitted"),
    ],
)
def test_states(change: dict[str, object], check: str, verdict: Verdict, says: str) -> None:
    found = bad(replace(WELL, **change))  # type: ignore[arg-type]
    assert list(found) == [check]
    assert found[check][0] is verdict and says in found[check][1]


def test_what_happened_since_the_former_reading() -> None:
    later = replace(WELL, wall=1003.0, mono=60.0, oom_kills=6)
    found = bad(later, WELL)
    assert found["oom_kill"] == (Verdict.MONITOR, "the kernel killed 2 processes for lack of memory in 10 s")
    assert found["clock"] == (Verdict.MONITOR, "the wall clock jumped by -7.0 s in 10 s")
    assert bad(later) == {}, "without a former reading nothing is known to have happened"


def test_hanging_file_system_blocks_only_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    requested, answer, real = [], threading.Event(), os.statvfs

    def hang(path: str) -> os.statvfs_result:
        requested.append(path)
        answer.wait(60)
        return real(path)

    monkeypatch.setattr(os, "statvfs", hang)
    room = RoomReader("/tmp")
    first, second = room.read(0.05), room.read(0.05)
    assert 0 < first.waited < second.waited and first.used is None
    assert requested == ["/tmp"]
    answer.set()
    assert room.read(10.0).used is not None


def finding(verdict: Verdict, check: str = "memory") -> Finding:
    return Finding(check, verdict, "n1", "words")


def tell(looks: list[Verdict], events: frozenset[str] = frozenset()) -> list[Verdict]:
    result: dict[str, Reported] = {}
    out = []
    for verdict in looks:
        result, news = changes(result, [finding(verdict)], events)
        out += [f.verdict for f in news]
    return out


P, M, S, U = Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT, Verdict.UNKNOWN


def test_worse_is_reported_at_once_and_better_once_it_lasts() -> None:
    assert tell([P, P, P]) == []
    assert tell([P, M, M, S, S]) == [M, S]
    assert tell([M, P, M, P, M, P, P, P, P]) == [M, P]
    assert tell([U, U, P, P, U]) == [U, P]
    assert tell([M, M], frozenset({"memory"})) == [M, M], "what happened again is news again"


def test_check_that_did_not_work_hides_no_other_result() -> None:
    assert worst([finding(U), finding(P)]) is P
    assert worst([finding(U), finding(S), finding(M)]) is S
    assert worst([]) is U
