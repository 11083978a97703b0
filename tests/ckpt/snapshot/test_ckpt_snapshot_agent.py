"""The node's agent and its snapshot daemon, a real process: who ends when, and what is made durable without a rank."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ckpt_memory_rank import METADATA, Rank

from transom_cli.ckpt import fence
from transom_cli.ckpt.inventory import candidates, verify
from transom_cli.ckpt.snapshot.client import LINGER, agents_path, reach
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.rpc.errors import Failed, Unreachable
from transom_cli.rpc.local import connect
from transom_cli.supervise.agent.snapshot_daemon import SnapshotDaemon

SOON = 30.0  # seconds: reached only when something is broken


def wait_for(claim: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Node:
    """A node with an attempt's folder, a beats folder, and an agent's hand on the daemon there."""

    def __init__(self, root: Path) -> None:
        self.attempt = AttemptDir(root / "run" / "attempts" / "7.0")
        self.attempt.path.mkdir(parents=True)
        self.checkpoints = root / "checkpoints"
        self.beats = f"/dev/shm/transom-test-{os.getpid()}-{abs(hash(root)):x}"
        self.held = paths.enter(self.beats)
        self.said: list[str] = []
        self.agents: list[SnapshotDaemon] = []

    def agent(self) -> SnapshotDaemon:
        self.agents.append(SnapshotDaemon(self.beats, self.attempt.path, self.said.append))
        self.agents[-1].start()
        reach(agents_path(self.beats), SOON).close()
        wait_for(lambda: self.agents[-1]._client is not None, "the agent has not come to its daemon")
        return self.agents[-1]

    def rank(self, attempt: str = "7.0.0") -> Rank:
        return Rank(reach(agents_path(self.beats), SOON), self.checkpoints, attempt)

    def daemon(self) -> int:
        """Its pid, or 0."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            try:
                line.connect(agents_path(self.beats))
            except OSError:
                return 0
            return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def lose(self, agent: SnapshotDaemon) -> None:
        """The agent is killed: its connection ends, and it asks for nothing more."""
        agent._over.set()
        agent._thread.join()
        if agent._client is not None:
            agent._client.close()
            agent._client = None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for agent in made.agents:
        made.lose(agent)
    pid = made.daemon()
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.close(made.held)
    shutil.rmtree(made.beats, ignore_errors=True)


def ended(pid: int) -> bool:
    """Or a zombie, whose parent is this very process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.long
def test_an_agent_that_is_started_again_finds_the_holder_and_what_it_holds(node: Node) -> None:
    first = node.agent()
    rank = node.rank()
    rank.save(5, b"abc" * 5000)
    rank.line.close()
    pid = node.daemon()
    node.lose(first)
    second = node.agent()
    assert node.daemon() == pid
    told = second.newest()["newest"]
    assert told == [{"directory": str(node.checkpoints), "step": 5, "durable": False}]


def test_the_newest_step_of_a_dead_rank_is_made_durable(node: Node) -> None:
    agent = node.agent()
    rank = node.rank()
    for step in (4, 5):
        rank.save(step, bytes([step]) * 100_000)
    rank.line.close()
    assert agent.rescue(str(node.checkpoints), 5, "7.0.1", 20.0) == {"state": "done", "trouble": ""}
    (found,) = candidates(node.checkpoints)
    assert found.step == 5 and verify(found).good
    assert (found.path / "__0_0.distcp").read_bytes() == bytes([5]) * 100_000
    assert (found.path / ".metadata").read_bytes() == METADATA
    assert agent.newest()["newest"][0]["durable"] is True  # type: ignore[index]
    assert agent.rescue(str(node.checkpoints), 5, "7.0.1", 20.0)["state"] == "done", "a second time"


def test_a_launch_that_never_came_to_a_checkpoint_does_not_fence_its_predecessor_off(node: Node) -> None:
    """The launcher asks in the name of the newest launch: what an earlier one left in memory is still the newest."""
    agent = node.agent()
    node.rank("7.0.0").save(5, b"abc" * 5000)
    node.checkpoints.mkdir(exist_ok=True)
    fence.take(node.checkpoints, "7.0.1")
    assert agent.rescue(str(node.checkpoints), 5, "7.0.1", 20.0)["state"] == "done"
    fence.take(node.checkpoints, "8.0.0")  # another attempt
    node.rank("7.0.2").save(6, b"abc" * 5000)
    answer = agent.rescue(str(node.checkpoints), 6, "7.0.2", 20.0)
    assert answer["state"] == "failed" and "8.0.0 has taken over" in str(answer["trouble"])


def test_old_checkpoints_stay_where_no_rank_has_said_how_many_to_keep(node: Node) -> None:
    agent = node.agent()
    rank = node.rank()
    for step in (4, 5, 6):
        rank.save(step, bytes([step]) * 100_000)
        assert agent.rescue(str(node.checkpoints), step, "7.0.0", 20.0)["state"] == "done"
    assert [c.step for c in candidates(node.checkpoints)] == [6, 5, 4]


def test_what_cannot_be_done_is_said(node: Node) -> None:
    agent = node.agent()
    with pytest.raises(Failed):
        agent.rescue(str(node.checkpoints), 5, "7.0.0", 20.0)
    rank = node.rank()
    rank.save(5, b"abc" * 5000)
    assert agent.rescue(str(node.checkpoints), 7, "7.0.0", 20.0)["trouble"] == "its record is not here"
    (node.checkpoints).write_text("in the way")
    assert "Not a directory" in str(agent.rescue(str(node.checkpoints), 5, "7.0.0", 20.0)["trouble"])
    agent.end()
    with pytest.raises(Unreachable):
        agent.newest()


def test_a_holder_that_dies_is_replaced_and_that_is_said_once(node: Node) -> None:
    agent = node.agent()
    for times in (1, 2):
        before = node.daemon()
        os.kill(before, signal.SIGKILL)
        wait_for(lambda old=before: node.daemon() not in (0, old), "no new daemon")
        wait_for(lambda: agent._client is not None and not agent._client.gone(), "the agent has not come to it")
        assert len(node.said) == times
    assert all(line.startswith("this node's snapshot daemon has died; restarting it") for line in node.said)


def test_the_holder_ends_with_its_agent(node: Node) -> None:
    agent = node.agent()
    pid = node.daemon()
    node.rank().save(5, b"abc" * 5000)
    agent.end()
    wait_for(lambda: ended(pid), "the daemon lives on")
    assert node.said == []


def test_the_holder_ends_when_the_outcome_stands_though_its_agent_is_gone(node: Node) -> None:
    node.lose(node.agent())
    pid, rank = node.daemon(), node.rank()
    os.kill(pid, signal.SIGTERM)  # Slurm's, to all of a step: it is not for the daemon
    rank.save(5, b"abc" * 5000)
    node.attempt.outcome.write_text("{}")
    wait_for(lambda: ended(pid), "the daemon lives on")


@pytest.mark.long
def test_the_holder_ends_when_the_run_is_removed(node: Node) -> None:
    node.lose(node.agent())
    pid, rank = node.daemon(), node.rank()
    node.attempt.path.rename(node.attempt.path.with_name("removed"))  # at once: the daemon may write into it
    rank.save(5, b"abc" * 5000)
    wait_for(lambda: ended(pid), "the daemon lives on")


@pytest.mark.long
def test_the_holder_ends_when_nobody_has_come_for_a_while(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINGER, "0.5")
    agent = node.agent()
    pid = node.daemon()
    rank = node.rank()
    rank.save(5, b"abc" * 5000)
    rank.line.close()
    time.sleep(3.0)
    assert not ended(pid), "its agent is there"
    node.lose(agent)
    wait_for(lambda: ended(pid), "the daemon lives on")


def test_a_holder_alone_keeps_the_beats_folder_until_it_ends(node: Node) -> None:
    """Else another attempt's agent on this node would sweep the socket away."""
    node.lose(node.agent())
    os.close(node.held)
    try:
        assert not paths.discard(node.beats)
        node.attempt.outcome.write_text("{}")
        wait_for(lambda: not Path(node.beats).exists(), "the folder stays behind")
    finally:
        node.held = os.open("/", os.O_RDONLY)


def test_what_the_holder_says_is_in_the_agents_log(node: Node) -> None:
    agent = node.agent()
    Path(f"{agents_path(node.beats)}.log").write_text("transom: step 5: a word\nhalf")
    wait_for(lambda: node.said == ["snapshot daemon: step 5: a word"], str(node.said))
    connect(agents_path(node.beats)).close()
    assert not agent._client.gone()  # type: ignore[union-attr]
