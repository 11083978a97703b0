"""Which ranks the kernel killed for lack of memory, by recorded lines of its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from transom_cli.health.checks.kernel import KernelLog
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.agent.kernel_kills import NEAR, RECENT, KernelKills
from transom_cli.supervise.agent.logs import NodeLogs
from transom_cli.supervise.root_cause import examine

RECORD = "6,{number},900000000,-;{text}\n"
CGROUP = (
    "Memory cgroup out of memory: Killed process {pid} (python) total-vm:1959224kB, anon-rss:710192kB, "
    "file-rss:96404kB, shmem-rss:4108kB, UID:0 pgtables:2000kB oom_score_adj:0"
)
NODE = "Out of memory: Killed process {pid} (python) total-vm:91234kB, anon-rss:81234kB, file-rss:0kB"
OLD = "Killed process {pid} (python), UID 1000, total-vm:91234kB, anon-rss:81234kB, file-rss:0kB"
WORKER = (
    'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n'
    "RuntimeError: DataLoader worker (pid 4799) is killed by signal: Killed. \n"
)


class Node:
    """node1 with the ranks 0 (PID 4710) and 1 (PID 4711), and its kernel log."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = RunDir(tmp_path / "run")
        self.attempt: AttemptDir = self.run.attempt(7, 0)
        self.now = 1000.0
        self._kernel = tmp_path / "kernel"
        self._kernel.write_text(RECORD.format(number=1, text=CGROUP.format(pid=4711)))  # of an earlier job
        self.kills = KernelKills("node1", KernelLog(str(self._kernel)), lambda: self.now)
        self.logs = NodeLogs(self.attempt, str(tmp_path / "beats"), None, self.kills)
        self.rows = [RankBeat(rank, 0, 5, 5, 0.0, None, "step", 4710 + rank, "S") for rank in (0, 1)]
        self.attempt.logs(0).mkdir(parents=True)
        self.attempt.exits(0).mkdir(parents=True)
        for rank in (0, 1):
            self.log(rank, "step 5 loss 3.1\n")

    def log(self, rank: int, text: str) -> None:
        (self.attempt.logs(0) / f"rank-{rank}.log").write_text(text)

    def says(self, *lines: str) -> None:
        with self._kernel.open("a") as file:
            file.writelines(RECORD.format(number=n, text=line) for n, line in enumerate(lines, 2))

    def ended(self, rank: int, wall: float, **more: object) -> None:
        record = {"rank": rank, "pid": 4710 + rank, "signal": 9, "code": None, "wall": wall, **more}
        (self.attempt.exits(0) / f"rank-{rank}.json").write_text(json.dumps(record))

    def cause(self, rows: Sequence[RankBeat] | None = None) -> tuple[str, str, str]:
        """Return category, line and place of the cause, as the launcher gets them from this node's agent."""
        answer = json.loads(json.dumps(self.logs.cause(0, self.rows if rows is None else rows, 3.0)[0]))
        found = examine("k", self.run, self.attempt, 1, 5.0, [answer])
        return found.category, found.line, found.where


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("line", [CGROUP, NODE, OLD])
def test_rank_that_the_kernel_killed_has_its_line_as_the_cause(node: Node, line: str) -> None:
    node.says("python invoked oom-killer: gfp_mask=0xcc0", line.format(pid=4711))
    node.ended(1, 1000.5)
    assert node.cause() == ("host_oom", f"node1 kernel: {line.format(pid=4711)}"[:300], "rank-1.kernel.log")


def test_the_line_outlives_the_agent_for_the_operator(node: Node) -> None:
    node.says(CGROUP.format(pid=4711))
    node.ended(1, 1000.5)
    node.cause()
    assert examine("k", node.run, node.attempt, 1, 5.0).category == "host_oom"


def test_line_about_another_process_is_no_evidence(node: Node) -> None:
    node.says(CGROUP.format(pid=47111), CGROUP.format(pid=99), f"python[4711]: {CGROUP.format(pid=4711)}")
    node.ended(1, 1000.5)
    assert node.cause()[0] == "unknown"
    assert not (node.attempt.logs(0) / "rank-1.kernel.log").exists()


def test_line_from_before_the_agent_began_is_no_evidence(node: Node) -> None:
    node.ended(1, 1000.5)
    assert node.cause()[0] == "unknown"


def test_line_from_another_time_than_the_end_of_the_rank_is_no_evidence(node: Node) -> None:
    node.says(CGROUP.format(pid=4711))
    node.logs.look(node.rows)
    node.ended(1, node.now + NEAR + 1)
    assert node.cause()[0] == "unknown"


def test_line_counts_for_a_while_if_the_rank_left_no_exit_record(node: Node) -> None:
    node.says(CGROUP.format(pid=4711))
    node.logs.look(node.rows)
    node.now += RECENT - 1
    assert node.cause()[0] == "host_oom"
    (node.attempt.logs(0) / "rank-1.kernel.log").unlink()
    node.now += 2
    assert node.cause()[0] == "unknown"


def test_worker_that_the_ranks_log_names_counts_as_the_rank(node: Node) -> None:
    node.log(1, WORKER)
    node.says(CGROUP.format(pid=4799))
    node.ended(1, 1000.5, code=1, signal=None)
    category, line, where = node.cause()
    assert (category, where) == ("host_oom", "rank-1.kernel.log") and "Killed process 4799 " in line


def test_process_that_waited_in_a_shell_is_known_by_its_heartbeats(node: Node) -> None:
    node.says(CGROUP.format(pid=4799))
    node.ended(1, 1000.5, code=137, signal=None)
    assert node.cause()[0] == "unknown"
    assert node.cause([node.rows[0], node.rows[1]._replace(pid=4799)])[0] == "host_oom"


def test_without_access_to_the_kernel_log_the_other_logs_are_read(node: Node, tmp_path: Path) -> None:
    node.logs = NodeLogs(node.attempt, "", None, KernelKills("node1", KernelLog(str(tmp_path / "missing"))))
    assert node.cause()[:2] == ("unknown", "")
