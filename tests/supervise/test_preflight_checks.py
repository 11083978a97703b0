"""What the launcher asks of an examination, and what becomes of its findings."""

from __future__ import annotations

import json
import queue
import sys
import threading
from pathlib import Path

from transom_cli.core.events import NodeFault
from transom_cli.core.launcher import CheckNodes, Event, FaultsFound, NodesChecked
from transom_cli.health.check import HealthOptions, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.report import Report
from transom_cli.health.run import HealthRequest
from transom_cli.heartbeat.table import NodeTable
from transom_cli.layout import RunDir
from transom_cli.supervise.launcher.node_monitor import AT_ONCE, FaultMonitor
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions, agent_argv
from transom_cli.supervise.launcher.preflight import NodeChecks

NODES = ("n1", "n2")
ALLOCATION = Allocation(7, 1, NODES, gpus=4, since=1000.0)


class Case:
    def __init__(self, path: Path, report: Report | Exception) -> None:
        self.run = RunDir(path / "run")
        self.attempt = self.run.attempt(7, 1)
        self.attempt.path.mkdir(parents=True)
        self.run.checkpoints.mkdir()
        self.options = LaunchOptions(
            self.run, "srun", ("true",), (sys.executable,), checkpoints=self.run.checkpoints,
            health=HealthOptions(preflight="quick", deep_budget=99.0, off=("load",), limits=(("x", 2.0),)),
        )  # fmt: skip
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.asked: list[tuple[int, tuple[str, ...], HealthRequest]] = []
        self._report = report

    def examine(self, job_id: int, nodes: tuple[str, ...], wishes: HealthRequest) -> Report:
        self.asked.append((job_id, nodes, wishes))
        if isinstance(self._report, Exception):
            raise self._report
        return self._report

    def check(self, order: CheckNodes) -> Event:
        examining = NodeChecks(ALLOCATION, self.options, self.attempt, self.inbox, {}, self.examine)
        examining.check(order)
        return self.inbox.get(timeout=10)


def report(*findings: Finding) -> Report:
    return Report(NODES, findings, {}, {}, {"all": 2.5})


def test_bad_findings_become_faults_and_all_of_them_a_file(tmp_path: Path) -> None:
    fail = Finding("gpu_rows", Verdict.FAIL, "n2", "row remap\x1b[31m failed", Remedy.REPAIR, "GPU-1", "165")
    odd, well = Finding("swap", Verdict.MONITOR, "n1", "in use"), Finding("memory", Verdict.PASS, "n1", "enough")
    unknown = Finding("mounts", Verdict.UNKNOWN, "n1", "no answer")
    case = Case(tmp_path, report(well, odd, unknown, fail))
    heard = case.check(CheckNodes("preflight", NODES, "quick"))
    assert isinstance(heard, NodesChecked)
    assert heard.faults == (NodeFault("n2", "gpu_rows", "FAIL", "row remap\\x1b[31m failed", "repair", "GPU-1", "165"),)
    assert heard.words.startswith("2 nodes checked in 2.5 s, n2 bad (gpu_rows: row remap")
    assert "1 finding to monitor, 1 check without a result" in heard.words
    kept = json.loads((case.attempt.health / "preflight.json").read_text())
    assert kept["worst"] == "fail" and [f["check"] for f in kept["findings"]] == [
        "gpu_rows",
        "swap",
        "mounts",
        "memory",
    ]


def test_what_is_asked_is_about_this_attempt(tmp_path: Path) -> None:
    case = Case(tmp_path, report())
    case.check(CheckNodes("preflight", NODES, "quick"))
    case.check(CheckNodes("l1", ("n2",), "deep"))
    (job, nodes, quick), (_, suspects, deep) = case.asked
    assert (job, nodes, suspects) == (7, NODES, ("n2",))
    assert (quick.about.tier, quick.budget, deep.about.tier, deep.budget) == (Tier.QUICK, 30.0, Tier.DEEP, 99.0)
    assert (quick.about.gpus, quick.devices, quick.about.since) == (4, 4, 1000.0)
    assert quick.off == {"load"} and quick.limits == (("x", 2.0),)
    assert str(case.attempt.path) in quick.about.folders and str(case.run.checkpoints) in quick.about.folders
    path, words = quick.about.token.split("\n")
    assert Path(path).read_text() == words and words not in deep.about.token


def test_an_examination_that_breaks_speaks_against_nobody(tmp_path: Path) -> None:
    heard = Case(tmp_path, RuntimeError("ours")).check(CheckNodes("preflight", NODES, "quick"))
    assert isinstance(heard, NodesChecked) and heard.faults == () and "ours" in heard.words


def test_agents_share_the_jobs_gpus_only_where_there_are_any(tmp_path: Path) -> None:
    case = Case(tmp_path, report())
    argv = agent_argv(ALLOCATION, case.options, case.attempt)
    assert "--gres=none" not in argv
    said = json.loads(argv[argv.index("--watch") + 1])
    assert said["about"]["gpus"] == 4 and said["off"] == ["load"] and said["limits"] == {"x": 2.0}
    assert "--gres=none" in agent_argv(Allocation(7, 1, NODES), case.options, case.attempt)


FAULT = {"node": "elsewhere", "check": "kernel", "verdict": "FAIL", "evidence": "Xid 79\x1b]0;", "remedy": "reboot"}


class Agent:
    """Answers when it is let to."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.answers, self.asked, self.go = list(answers), 0, threading.Event()

    def __call__(self, node: str) -> dict[str, object]:
        self.asked += 1
        assert self.go.wait(10)
        return self.answers.pop(0)


def tables(alarms: int) -> dict[str, NodeTable]:
    return {"n1": NodeTable("n1", "7.1", 1, (), alarms=alarms), "n2": NodeTable("n2", "7.1", 1, ())}


def test_an_agent_is_asked_once_for_what_its_table_tells_of_and_speaks_for_its_own_node() -> None:
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    agent = Agent({"ok": True, "faults": [FAULT, {"verdict": "PASS"}, 7]})
    watch = FaultMonitor(inbox, agent)
    watch.look(tables(0), 1.0)
    assert agent.asked == 0
    for at in (2.0, 9.0):
        watch.look(tables(1), at)
    agent.go.set()
    heard = inbox.get(timeout=10)
    assert isinstance(heard, FaultsFound)
    assert heard.faults == (NodeFault("n1", "kernel", "FAIL", "Xid 79\\x1b]0;", "reboot"),)
    assert agent.asked == 1


def test_not_all_nodes_are_asked_at_once() -> None:
    """A shared file system that hangs is told of by all of them together."""
    agent = Agent(*[{"ok": True, "faults": []}] * 100)
    watch = FaultMonitor(queue.SimpleQueue(), agent)
    many = {f"n{n}": NodeTable(f"n{n}", "7.1", 1, (), alarms=1) for n in range(100)}
    watch.look(many, 1.0)
    assert len(watch._busy) == AT_ONCE
    agent.go.set()
    at = 1.0
    while agent.asked < 100:
        at += 10.0
        watch.look(many, at)
        threading.Event().wait(0.01)
    assert agent.asked == 100


def test_an_agent_that_does_not_answer_is_asked_again_later() -> None:
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    agent = Agent({"error": "no answer"}, {"ok": True, "faults": [FAULT]})
    agent.go.set()
    watch = FaultMonitor(inbox, agent)
    watch.look(tables(1), 1.0)
    while watch._busy:
        threading.Event().wait(0.01)
    watch.look(tables(1), 2.0)
    assert agent.asked == 1
    watch.look(tables(1), 7.0)
    assert isinstance(inbox.get(timeout=10), FaultsFound)
