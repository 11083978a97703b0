"""What a health run waits for, and for how long: a mute node once, a file system that hangs never."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from transom_cli.health import run
from transom_cli.health.check import About, Tier
from transom_cli.health.checks.run_dir import RUN_DIR, token
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.protocol import Message
from transom_cli.health.registry import of_tier
from transom_cli.health.report import Report, document
from transom_cli.health.run import HealthRequest, HealthRun, Waits, check_nodes


class Spoken:
    """A transport whose nodes, all but `mute`, answer pings and the run directory's check."""

    over = False

    def __init__(self, *nodes: str, mute: str = "") -> None:
        self.nodes, self._mute, self.sent = nodes, mute, []
        self._said: deque[Message] = deque({"re": "here", "node": node} for node in nodes)

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        result = tuple(to or self.nodes)
        self.sent.append((message["do"], result))
        for node in result:
            if message["do"] == "ping" and node != self._mute:
                self._said.append({"re": "ping", "node": node, "n": message["n"], "wall": time.time()})
            if message["do"] == "read":
                wrote = {"path": "x", "found": "", "same": True, "wrote": True, "took": 0.0}
                self._said.append({"re": "read", "node": node, "check": RUN_DIR, "reading": wrote, "seconds": 0.0})

    def receive(self, timeout: float) -> Message | None:
        return self._said.popleft() if self._said else None

    def gone(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self.over = True


WAITS = Waits(transfer=0.1, visible=0.1, remove=0.1)


def wishes(tier: Tier = Tier.QUICK, budget: float = 30.0, *, probe: bool = False, path: str = "") -> HealthRequest:
    about = About(tier=tier, token=token(path, "words") if path else "")
    checks = tuple(c for c in of_tier(Tier.QUICK) if c.name == RUN_DIR)
    return HealthRequest(about, probe=probe, budget=budget, waits=WAITS, checks=checks)


def test_node_that_misses_a_ping_gets_no_more_pings() -> None:
    crew = Spoken("a", "b", mute="b")
    check_nodes(crew, wishes())
    assert [to for do, to in crew.sent if do == "ping"] == [("a", "b"), ("a",), ("a",)]


def test_run_directory_that_hangs_here_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(run, "read_missing", lambda *_: go_on.wait(60.0) and ())
    monkeypatch.setattr(run, "remove_files", lambda *_: go_on.wait(60.0))
    done: list[Report] = []
    wish = wishes(path=str(tmp_path / "t"))
    thread = threading.Thread(target=lambda: done.append(check_nodes(Spoken("a", "b"), wish)), daemon=True)
    thread.start()
    thread.join(30.0)
    go_on.set()
    assert done, "it waits for the file system"
    result = {f.node: f for f in done[0].findings if "this host cannot see" in f.evidence}
    assert {node: f.verdict for node, f in result.items()} == {"a": Verdict.MONITOR, "b": Verdict.MONITOR}


@pytest.mark.parametrize(("tier", "budget", "probe", "seconds"), [
    (Tier.DEEP, 300.0, True, run.DEEP_PROBE),
    (Tier.DEEP, 40.0, True, 20.0),
    (Tier.DEEP, 300.0, False, 0.0),
    (Tier.QUICK, 30.0, True, 0.0),
])  # fmt: skip
def test_deep_run_reserves_time_for_the_probe(tier: Tier, budget: float, probe: bool, seconds: float) -> None:
    assert HealthRun(Spoken("a"), wishes(tier, budget, probe=probe))._reserved() == seconds


def test_passes_of_many_nodes_are_only_counted() -> None:
    found = (Finding("x", Verdict.PASS, "a", "well"), Finding("y", Verdict.FAIL, "b", "bad"))
    report = Report(("a", "b"), found, {}, {}, {})
    assert [f["check"] for f in document(report, 2)["findings"]] == ["y", "x"]
    few = document(report, 1)
    assert ([f["check"] for f in few["findings"]], few["passed"]) == (["y"], 1)
