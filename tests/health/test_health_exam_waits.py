"""What the head of an examination waits for, and for how long: a mute node once, a file system that hangs never."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from transom_cli.health import exam, examining, registry
from transom_cli.health.about import About, Tier
from transom_cli.health.crew import Message
from transom_cli.health.exam import Exam, Wishes
from transom_cli.health.examining import examine
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.node.run_dir import CHECK, token
from transom_cli.health.registry import of_tier
from transom_cli.health.report import Report
from transom_cli.health.summary import document


class Spoken:
    """A crew whose nodes answer pings, all but `mute`; a look is answered with what the run directory's check says."""

    over = False

    def __init__(self, *nodes: str, mute: str = "") -> None:
        self.nodes, self._mute, self.sent = nodes, mute, []
        self._said: deque[Message] = deque({"re": "here", "node": node} for node in nodes)

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        told = tuple(to or self.nodes)
        self.sent.append((message["do"], told))
        for node in told:
            if message["do"] == "ping" and node != self._mute:
                self._said.append({"re": "ping", "node": node, "n": message["n"], "wall": time.time()})
            if message["do"] == "look":
                wrote = {"path": "x", "found": "", "same": True, "wrote": True, "took": 0.0}
                self._said.append({"re": "look", "node": node, "check": CHECK, "reading": wrote, "seconds": 0.0})

    def receive(self, timeout: float) -> Message | None:
        return self._said.popleft() if self._said else None

    def gone(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self.over = True


@pytest.fixture(autouse=True)
def one_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "CHECKS", tuple(c for c in of_tier(Tier.QUICK) if c.name == CHECK))
    monkeypatch.setattr(exam, "LATE", 0.1)
    yield


def wishes(tier: Tier = Tier.QUICK, budget: float = 30.0, *, probe: bool = False, path: str = "") -> Wishes:
    return Wishes(About(tier=tier, token=token(path, "words") if path else ""), probe=probe, budget=budget)


def test_a_node_that_misses_a_ping_is_not_asked_again() -> None:
    crew = Spoken("a", "b", mute="b")
    examine(crew, wishes())
    assert [to for do, to in crew.sent if do == "ping"] == [("a", "b"), ("a",), ("a",)]


def test_a_run_directory_that_hangs_for_the_head_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(exam, "SEEN", 0.1)
    monkeypatch.setattr(examining, "FORGOTTEN", 0.1)
    monkeypatch.setattr(exam, "read_seen", lambda *_: go_on.wait(60.0) and ())
    monkeypatch.setattr(examining, "forget", lambda *_: go_on.wait(60.0))
    done: list[Report] = []
    wish = wishes(path=str(tmp_path / "t"))
    thread = threading.Thread(target=lambda: done.append(examine(Spoken("a", "b"), wish)), daemon=True)
    thread.start()
    thread.join(30.0)
    go_on.set()
    assert done, "it waits for the file system"
    told = {f.node: f for f in done[0].findings if "not seen by whoever examines" in f.evidence}
    assert {node: f.verdict for node, f in told.items()} == {"a": Verdict.MONITOR, "b": Verdict.MONITOR}


@pytest.mark.parametrize(("tier", "budget", "probe", "seconds"), [
    (Tier.DEEP, 300.0, True, exam.DEEP_PROBE),
    (Tier.DEEP, 40.0, True, 20.0),
    (Tier.DEEP, 300.0, False, 0.0),
    (Tier.QUICK, 30.0, True, 0.0),
])  # fmt: skip
def test_a_deep_look_leaves_the_probe_its_time(tier: Tier, budget: float, probe: bool, seconds: float) -> None:
    assert Exam(Spoken("a"), wishes(tier, budget, probe=probe))._kept_back() == seconds


def test_of_many_nodes_what_is_well_is_only_counted() -> None:
    found = (Finding("x", Verdict.PASS, "a", "well"), Finding("y", Verdict.FAIL, "b", "bad"))
    report = Report(("a", "b"), found, {}, {}, {})
    assert [f["check"] for f in document(report, 2)["findings"]] == ["y", "x"]
    few = document(report, 1)
    assert ([f["check"] for f in few["findings"]], few["passed"]) == (["y"], 1)
