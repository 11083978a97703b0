"""The cheap checks, repeated: edges of states, what happened between two looks, a reader that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Reported, Verdict
from transom_cli.supervise.agent.monitor import Alarms
from transom_cli.supervise.agent.node_health import Watch, Watched, watched

NOW = {"value": 0}  # what the reader below reads
GATE = threading.Event()


def read(about: About) -> int:
    if NOW["value"] < 0:
        GATE.wait()
    if NOW["value"] == 99:
        raise OSError("no such file")
    return NOW["value"]


def judge(node: str, value: int, about: About, limits: object) -> tuple[Finding, ...]:
    verdict = Verdict.SUSPECT if value > 10 else Verdict.PASS
    return (Finding("level", verdict, node, f"at {value}", Remedy.AVOID, device="mlx5_0/1"),)


def changes(node: str, former: int, value: int, seconds: float, about: About, limits: object) -> tuple[Finding, ...]:
    grown = Verdict.FAIL if value > former else Verdict.PASS
    return (Finding("errors", grown, node, f"{value - former} more", Remedy.REPAIR),)


def overdue(node: str, waited: float, about: About) -> Finding:
    return Finding("level", Verdict.MONITOR, node, "it has not answered")


@dataclass(frozen=True)
class Nothing:
    pass


CHECK = Check(
    "made", f"{__name__}:read", judge, int, Nothing, 0.0, Tier.WATCH, ("level", "errors"), overdue, changes=None
)


class Seen:
    def __init__(self) -> None:
        self.news: list[Finding] = []
        self.looks = 0

    def __call__(self, news: Sequence[Finding]) -> None:
        self.news += news
        self.looks += 1

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not ready():
            assert time.monotonic() < deadline, self.news
            time.sleep(0.01)

    def after_looks(self, count: int) -> None:
        least = self.looks + count
        self.until(lambda: self.looks >= least)


@pytest.fixture
def seen() -> Seen:
    NOW["value"] = 0
    GATE.clear()
    return Seen()


def watch(seen: Seen, check: Check = CHECK, told: dict[str, Reported] | None = None, **changed: object) -> Watch:
    made = Watch("n1", replace(Watched(every=0.02), **changed), seen, told or {}, [check])  # type: ignore[arg-type]
    made.start()
    return made


def test_a_state_is_told_when_it_changes_and_not_again(seen: Seen) -> None:
    watching = watch(seen)
    seen.after_looks(3)
    assert seen.news == [], "a first pass is no news"
    NOW["value"] = 11
    seen.after_looks(4)
    assert [(f.check, f.verdict, f.device) for f in seen.news] == [("level", Verdict.SUSPECT, "mlx5_0/1")]
    NOW["value"] = 1
    seen.until(lambda: len(seen.news) > 1)
    assert seen.news[-1].verdict is Verdict.PASS
    watching.stop()


def test_what_happened_is_told_by_the_difference_of_two_looks(seen: Seen) -> None:
    NOW["value"] = 5
    watching = watch(seen, replace(CHECK, changes=changes))
    seen.after_looks(3)
    assert seen.news == [], "a total from before we looked is nobody's fault now"
    NOW["value"] = 7
    seen.until(lambda: bool(seen.news))
    seen.after_looks(3)
    assert [(f.check, f.evidence) for f in seen.news] == [("errors", "2 more")]
    watching.stop()


def test_a_reader_that_hangs_is_told_once_and_read_by_no_second_thread(seen: Seen, monkeypatch) -> None:
    monkeypatch.setattr("transom_cli.supervise.agent.node_health.PATIENCE", 0.01)
    NOW["value"] = -1
    watching = watch(seen)
    seen.until(lambda: bool(seen.news))
    seen.after_looks(5)
    assert [f.verdict for f in seen.news] == [Verdict.MONITOR]
    assert sum(t.name == "made" for t in threading.enumerate()) == 1
    NOW["value"] = 1
    GATE.set()
    seen.until(lambda: len(seen.news) > 1)
    watching.stop()


def test_a_reader_that_breaks_is_unknown_and_read_again(seen: Seen) -> None:
    NOW["value"] = 99
    watching = watch(seen)
    seen.until(lambda: bool(seen.news))
    assert [(f.check, f.verdict) for f in seen.news] == [("made", Verdict.UNKNOWN)]
    NOW["value"] = 12
    seen.until(lambda: len(seen.news) > 1)
    assert seen.news[-1].verdict is Verdict.SUSPECT
    watching.stop()


def test_what_is_off_is_not_told_and_without_a_pace_nothing_is_watched(seen: Seen) -> None:
    NOW["value"] = 12
    watching = watch(seen, off=frozenset(("level",)))
    seen.after_looks(3)
    watching.stop()
    assert seen.news == []
    watch(seen, every=0.0)
    assert watched("").every == 0.0 and watched("{").every == 0.0 and watched("[1]").every == 0.0
    said = watched('{"every": 30, "about": {"tier": "watch", "gpus": 8}, "off": ["x"], "limits": {"y": 1}}')
    assert (said.every, said.about.gpus, said.off, said.limits) == (30.0, 8, frozenset("x"), {"y": 1})


def test_alarms_are_what_speaks_against_the_node_itself() -> None:
    alarms = Alarms()
    alarms.add([
        Finding("memory", Verdict.SUSPECT, "n1", "1 % left"),  # the job's own doing, maybe
        Finding("swap", Verdict.MONITOR, "n1", "in use", Remedy.REPAIR),
        Finding("kernel", Verdict.UNKNOWN, "n1", "not allowed"),
    ])  # fmt: skip
    assert alarms.count == 0 and alarms.faults() == []
    alarms.add([Finding("ib_state", Verdict.SUSPECT, "n1", "down", Remedy.AVOID, "mlx5_0/1")])
    alarms.add([Finding("kernel", Verdict.FAIL, "n1", "Xid 79", Remedy.REBOOT)])
    assert alarms.count == 2
    assert [(f["check"], f["verdict"], f["device"]) for f in alarms.faults()] == [
        ("ib_state", "SUSPECT", "mlx5_0/1"), ("kernel", "FAIL", "")]  # fmt: skip
    for check in ("memory", "room:/tmp", "mount:/shared", "shm"):  # the job's own doing, or the file server's
        alarms.add([Finding(check, Verdict.SUSPECT, "n1", "full", Remedy.AVOID)])
    assert alarms.count == 2
    for n in range(200):
        alarms.add([Finding("kernel", Verdict.FAIL, "n1", f"Xid {n}")])
    assert alarms.count == 202 and len(alarms.faults()) == 50


def test_a_suspicion_of_long_ago_is_not_told_any_more() -> None:
    now = [0.0]
    alarms = Alarms(lambda: now[0])
    alarms.add([Finding("ib_link", Verdict.SUSPECT, "n1", "it went down", Remedy.AVOID, "mlx5_0/1")])
    alarms.add([Finding("gpu_ecc", Verdict.FAIL, "n1", "1 new", Remedy.RESET_GPU, "GPU-1")])
    now[0] = 599.0
    assert [f["check"] for f in alarms.faults()] == ["ib_link", "gpu_ecc"]
    now[0] = 601.0
    assert [f["check"] for f in alarms.faults()] == ["gpu_ecc"], "what is proven stays so"
