"""A real agent beside real ranks: what it says of its node when it is asked, and what it writes down unasked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_ranks import ROOT, WRAPPER, wait_for

from transom_cli.health.finding import Finding, Verdict
from transom_cli.heartbeat.table import RankBeat, decode
from transom_cli.layout import RunDir
from transom_cli.rpc import secret
from transom_cli.rpc.client import Client, Failed
from transom_cli.supervise.agent import monitor as monitor_module
from transom_cli.supervise.agent.monitor import Monitor

NODE = "nodeX"
FAILING = "from transom_cli import beat\nbeat(3)\nraise ValueError('mine')\n"


class Node:
    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "run")
        self.attempt = self.run.attempt(12, 0)
        self.attempt.logs(0).mkdir(parents=True)
        self.beats = folder / "beats"
        secret.make(self.run.secret)
        self.attempt.peers.write_text('{"allowed": ["127.0.0.1"], "nodes": {}}')
        self.started: list[subprocess.Popen[bytes]] = []

    def spawn(self, words: list[str], log: Path, **more: str) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM"))}
        env |= {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": NODE, **more}
        with log.open("ab") as out:
            self.started.append(subprocess.Popen(words, env=env, stdout=out, stderr=out))
        return self.started[-1]

    def agent(self) -> int:
        """Its pid, once it answers."""
        words = [sys.executable, "-m", "transom_cli.supervise.agent.agent", "--attempt-dir", str(self.attempt.path)]
        words += ["--beats-dir", str(self.beats), "--node", NODE]
        pid = self.spawn(words, self.attempt.path / "agents.log").pid
        wait_for(lambda: self.endpoint().get("pid") == pid)
        return pid

    def rank(self, number: int, code: str, name: str = "", *flags: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", str(WRAPPER), "--attempt-dir", str(self.attempt.path)]
        words += ["--node-beats-dir", str(self.beats), *flags, "--", sys.executable, "-c", code]
        log = self.attempt.logs(0) / (name or f"rank-{number}.log")
        return self.spawn(words, log, SLURM_PROCID=str(number))

    def endpoint(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            return dict(json.loads(self.attempt.endpoint(NODE).read_text()))
        return {}

    def call(self, name: str, **arguments: object) -> dict[str, Any]:
        port, key = self.endpoint()["port"], secret.read(self.run.secret)
        with Client.connect("127.0.0.1", port, key, f"12.0/{NODE}", 20.0) as client:
            return client.call(name, 20.0, **arguments)

    def found(self, kind: str) -> list[dict[str, Any]]:
        try:
            lines = self.attempt.findings(NODE).read_text().splitlines()
        except OSError:
            return []
        return [record for record in map(json.loads, lines) if record["kind"].startswith(kind)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for started in made.started:
        started.kill()
        started.wait()


def test_a_probe_tells_how_the_host_is(node: Node) -> None:
    node.agent()
    wait_for(lambda: node.call("probe")["health"]["age"] is not None)
    told = node.call("probe")
    assert told["node"] == NODE and len(told["load"]) == 3
    assert told["health"]["verdict"] in ("pass", "monitor", "suspect", "fail")
    assert "of memory available" in told["health"]["words"] and str(node.attempt.path) in told["health"]["words"]


def test_the_log_of_a_rank_that_failed(node: Node) -> None:
    node.agent()
    node.rank(4, "print('step 1')").wait()
    node.rank(5, FAILING).wait()
    wait_for(lambda: node.found("log:"))
    (found,) = node.found("log:")
    assert (found["kind"], found["words"], found["rank"], found["launch"]) == (
        "log:user_code",
        "ValueError: mine",
        5,
        0,
    )
    wait_for(lambda: len(decode((node.attempt.nodes / f"{NODE}.beats").read_bytes()).ranks) == 2)
    told = node.call("logs", launch=0)
    assert told["names"] == ["rank-4.log", "rank-5.log"]
    assert told["last"] == {"rank-4.log": "step 1", "rank-5.log": "ValueError: mine"}
    assert [(hit["rule"], hit["file"]) for hit in told["hits"]] == [("python-exception", "rank-5.log")]
    other = node.call("logs", launch=7)
    assert (other["names"], other["hits"], other["last"]) == ([], [], {}), "not of this launch"
    with pytest.raises(Failed, match=r"launch is .*, not int"):
        node.call("logs", launch="../../etc/passwd")


def test_under_torchrun_the_nodes_own_log(node: Node) -> None:
    node.agent()
    node.rank(2, "raise ValueError('mine')", "node-2.log", "--torchrun").wait()
    told = node.call("logs", launch=0)
    assert (told["names"], told["last"]) == (["node-2.log"], {"node-2.log": "ValueError: mine"})


def test_an_agent_that_hangs_makes_place_for_the_next(node: Node) -> None:
    first = node.agent()
    os.kill(first, signal.SIGSTOP)
    assert node.agent() != first
    assert node.started[0].wait() == -signal.SIGKILL
    assert node.call("probe")["node"] == NODE


def test_a_process_that_has_a_former_agents_number_is_left_alone(node: Node) -> None:
    stranger = node.spawn(["sleep", "600"], node.attempt.path / "x")
    start = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
    node.attempt.nodes.mkdir()
    node.attempt.endpoint(NODE).write_text(json.dumps({"port": 1, "pid": stranger.pid, "start": start}))
    node.agent()
    assert stranger.poll() is None


def test_what_cannot_be_written_waits_and_the_oldest_make_place(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "NEWS", 3)
    monitor = Monitor(node.attempt, NODE, str(node.beats), tuple)
    for n in range(5):
        monitor._news.add([Finding("memory", Verdict.MONITOR, NODE, f"reading {n}")])
        with pytest.raises(FileNotFoundError):  # as long as the run directory is not there
            monitor._write()
    node.attempt.nodes.mkdir()
    monitor._write()
    found = node.found("host:")
    assert [record["words"] for record in found] == ["reading 2", "reading 3", "reading 4"]
    assert [record.get("skipped") for record in found] == [2, None, None]


def test_of_a_launch_that_was_over_before_a_look_what_somebody_asked_for_is_told(node: Node) -> None:
    logs = node.attempt.logs(0)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "rank-3.log").write_text("Traceback (most recent call last):\nValueError: mine\n")
    node.attempt.nodes.mkdir(parents=True, exist_ok=True)
    launch = [0]
    row = lambda: (RankBeat(3, launch[0], 1, 1, 0.0, None, "step", 0, "S"),)  # noqa: E731
    monitor = Monitor(node.attempt, NODE, str(node.beats), row)
    assert monitor.cause(0)["names"] == ["rank-3.log"]
    launch[0] = 1
    monitor._write()
    (found,) = node.found("log:")
    assert (found["kind"], found["words"]) == ("log:user_code", "ValueError: mine")
    assert (found["rank"], found["launch"]) == (3, 0)


def test_what_a_trainer_prints_of_hardware_is_not_told_against_its_node(node: Node) -> None:
    """The log is the user's to write: it may be examined, but proves nothing."""
    node.agent()
    xid = "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    code = f'import sys; print("[ 8123.110022] {xid}"); print("kernel: {xid}"); sys.exit("{xid}")'
    node.rank(5, code).wait()
    wait_for(lambda: node.found("log:gpu_hardware"))
    assert {record["verdict"] for record in node.found("log:")} <= {"monitor", "suspect"}
    assert node.call("faults")["faults"] == []
