"""The node's agent end to end: real ranks behind real wrappers, a real agent, and the table it writes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_for

from transom_cli.files import replace_text
from transom_cli.heartbeat import paths, step_breakdown
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.local_table import process
from transom_cli.heartbeat.table import NodeTable, RankBeat, decode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.agent.agent import Ranks

ROOT = Path(__file__).parents[2]
RANK = """
import sys, time
from transom_cli import beat
step = 0
while True:
    beat(step, loss=0.5)
    step += 1
    time.sleep(0.02)
"""


class Node:
    def __init__(self, tmp_path: Path) -> None:
        self.attempt: AttemptDir = RunDir(tmp_path / "run").attempt(12, 1)
        self.attempt.path.mkdir(parents=True)
        self.beats = tmp_path / "beats"
        self.path = self.attempt.nodes / "nodeX.beats"
        self.started: list[subprocess.Popen[str]] = []

    def spawn(self, *words: str, **env: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
        clean |= {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": "nodeX"}
        self.started.append(subprocess.Popen([sys.executable, *words], env=clean | env, text=True))
        return self.started[-1]

    def rank(self, number: int, code: str = RANK) -> subprocess.Popen[str]:
        wrapper = str(ROOT / "transom_cli" / "supervise" / "agent" / "rank_wrapper.py")
        where = ("--attempt-dir", str(self.attempt.path), "--node-beats-dir", str(self.beats))
        return self.spawn("-I", "-S", wrapper, *where, "--", sys.executable, "-c", code, SLURM_PROCID=str(number))

    def agent(self) -> subprocess.Popen[str]:
        where = ("--attempt-dir", str(self.attempt.path), "--beats-dir", str(self.beats), "--node", "nodeX")
        return self.spawn("-m", "transom_cli.supervise.agent.agent", *where)

    def table(self) -> NodeTable:
        return decode(self.path.read_bytes())

    def row(self, rank: int) -> RankBeat:
        return next(r for r in self.table().ranks if r.rank == rank)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for started in made.started:
        started.kill()
        started.wait()


PHASES = """
import time
from transom_cli import beat
for step in range(1000):
    with beat.phase("data"): time.sleep(0.02)
    beat(step, loss=float("nan"))
"""


@pytest.mark.long
def test_what_a_rank_spends_its_steps_on(node: Node) -> None:
    node.rank(3, PHASES)
    node.agent()
    path = node.attempt.spent("nodeX")
    wait_for(lambda: path.exists() and step_breakdown.decode(path.read_text()).ranks[0].step > 0)
    told = step_breakdown.decode(path.read_text())
    (rank,) = told.ranks
    assert (told.node, told.attempt, rank.rank) == ("nodeX", "12.1", 3)
    assert 0.02 * rank.step <= rank.seconds["data"] <= rank.at - rank.began
    assert rank.loss is not None and math.isnan(rank.loss) and rank.loss_step == rank.step


def test_the_table_of_two_ranks_through_stop_continue_and_end(node: Node) -> None:
    node.rank(0)
    second = node.rank(1)
    agent = node.agent()
    wait_for(
        lambda: node.path.exists() and len(node.table().ranks) == 2 and all(r.step > 0 for r in node.table().ranks)
    )
    first_look = node.table()
    assert (first_look.node, first_look.attempt, first_look.closed) == ("nodeX", "12.1", False)
    assert all(r.loss == 0.5 and r.phase == "step" and r.proc in "RSD" for r in first_look.ranks)
    assert node.path.stat().st_mode & 0o777 == 0o600

    os.kill(node.row(1).pid, signal.SIGSTOP)
    wait_for(lambda: node.row(1).proc == "T")
    stopped = node.table()
    wait_for(lambda: node.table().seq >= stopped.seq + 2)
    assert node.row(1).age > 1.0 > node.row(0).age, "the silence of one rank grows, the other goes on"
    assert node.row(1).step == stopped.ranks[1].step

    os.kill(node.row(1).pid, signal.SIGCONT)
    wait_for(lambda: node.row(1).step > stopped.ranks[1].step)
    os.kill(node.row(1).pid, signal.SIGKILL)
    assert second.wait() == -signal.SIGKILL
    wait_for(lambda: node.row(1).proc == "X")
    assert node.row(1).phase == "step", "killed is not done"

    agent.terminate()
    assert agent.wait() == 0
    assert node.table().closed and node.row(0).proc in "RSD"
    assert node.beats.is_dir(), "a rank still holds it"


def test_agent_told_to_end_removes_its_directory_after_the_last_rank(node: Node) -> None:
    node.rank(0, "from transom_cli import beat; beat(3)").wait()
    agent = node.agent()
    wait_for(lambda: node.path.exists() and node.table().ranks)
    assert (node.row(0).phase, node.row(0).proc, node.row(0).step) == ("done", "X", 3)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(agent.pid, number)  # meant for the trainers of the job
    seq = node.table().seq
    wait_for(lambda: node.table().seq > seq)
    agent.terminate()
    assert agent.wait() == 0
    assert not node.beats.exists()


@pytest.mark.long
def test_agent_told_to_end_waits_for_a_living_launcher(node: Node) -> None:
    attempt = node.attempt
    attempt.launcher_alive.write_text("0\n")
    agent = node.agent()
    wait_for(lambda: node.path.exists())
    agent.terminate()
    for sign in range(1, 18):  # beyond the seconds after which a launcher counts as silent
        time.sleep(0.2)
        replace_text(attempt.launcher_alive, f"{sign}\n")
        assert agent.poll() is None
    attempt.outcome.write_text("{}")
    assert agent.wait() == 0


@pytest.mark.long
def test_agent_told_to_end_does_not_wait_for_a_silent_launcher(node: Node) -> None:
    node.attempt.launcher_alive.write_text("7\n")
    agent = node.agent()
    wait_for(lambda: node.path.exists())
    agent.terminate()
    assert agent.wait() == 0


@pytest.mark.long
def test_an_agent_that_was_stopped_and_continued_stays(node: Node) -> None:
    agent = node.agent()
    wait_for(node.path.exists)
    for _ in range(3):
        os.kill(agent.pid, signal.SIGSTOP)
        time.sleep(0.7)  # longer than it waits for a signal
        os.kill(agent.pid, signal.SIGCONT)
        time.sleep(0.5)
    time.sleep(3.0)
    assert agent.poll() is None
    before = node.table().seq
    wait_for(lambda: node.table().seq > before)


def test_second_agent_continues_the_sequence(node: Node) -> None:
    first = node.agent()
    wait_for(lambda: node.path.exists() and node.table().seq >= 2)
    first.kill()
    first.wait()
    seq = node.table().seq
    node.agent()
    wait_for(lambda: node.table().seq > seq)


def test_it_ends_when_the_run_directory_has_vanished(node: Node) -> None:
    agent = node.agent()
    wait_for(node.path.exists)
    node.attempt.path.rename(node.attempt.path.with_name("gone"))
    assert agent.wait() == 0


def test_it_ends_with_its_parent(node: Node) -> None:
    words = ["--attempt-dir", str(node.attempt.path), "--beats-dir", str(node.beats), "--node", "nodeX"]
    command = [sys.executable, "-m", "transom_cli.supervise.agent.agent", *words]
    parent = node.spawn("-c", f"import subprocess; p = subprocess.Popen({command!r}); print(p.pid); p.wait()")
    wait_for(node.path.exists)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    agent = int(children.read_text().split()[0])
    parent.kill()
    parent.wait()
    wait_for(lambda: process(agent)[0] in "XZ")


def test_an_attempt_directory_that_the_node_cannot_see(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.attempt.path.rmdir()
    assert node.agent().wait() == 14
    message = f"transom: run directory {node.attempt.path} is not visible on node nodeX: No such file or directory\n"
    assert capfd.readouterr().err == message


def test_shared_heartbeat_directory_is_refused(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.beats.mkdir(mode=0o755)
    assert node.agent().wait() == 1
    message = f"transom: no heartbeats from node nodeX: {node.beats} is not a private folder of this user\n"
    assert capfd.readouterr().err == message


def test_the_outcome_of_the_attempt_ends_it(node: Node) -> None:
    agent = node.agent()
    wait_for(node.path.exists)
    node.attempt.outcome.write_text("{}")
    assert agent.wait() == 0
    assert node.table().closed


def test_ranks_of_an_older_launch_are_left_out(tmp_path: Path) -> None:
    for rank, launch in ((0, 1), (1, 0)):
        os.close(rec.create(str(tmp_path / f"rank-{rank}"), rec.Record(rank, launch, time.monotonic_ns())))
    (tmp_path / "rank-2").write_bytes(b"nonsense")
    assert [(r.rank, r.launch, r.proc) for r in Ranks(str(tmp_path)).look()] == [(0, 1, "?")]


def test_files_of_launches_before_the_last_are_removed(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for launch in range(12):
        os.close(rec.create(f"{folder}/rank-0", rec.Record(0, launch, time.monotonic_ns())))
        for name in (paths.request_file(folder, launch), f"{paths.listen_prefix(folder, launch)}0"):
            Path(name).touch()
        Path(f"{paths.flight_prefix(folder, launch)}0").touch()
        paths.mark_torchrun(folder, launch, "0")
    for name in ("memory", "memory.lock", "flush-x", "other-1"):
        (tmp_path / name).touch()
    assert [row.launch for row in Ranks(folder).look()] == [11]
    left = sorted(path.name for path in tmp_path.iterdir())
    kept = [f"{kind}-{n}{end}" for n in (10, 11) for kind, end in (("flight", "-0"), ("flush", ""), ("listen", "-0"))]
    kept += ["torchrun-10-0", "torchrun-11-0", "rank-0", "memory", "memory.lock", "flush-x", "other-1"]
    assert left == sorted(kept)


def test_reused_pid_counts_as_gone(tmp_path: Path) -> None:
    record = rec.Record(0, 0, time.monotonic_ns(), child=os.getpid())
    os.close(rec.create(str(tmp_path / "rank-0"), record))
    ranks = Ranks(str(tmp_path))
    assert ranks.look()[0].proc in "RS"
    ranks._born[0, os.getpid()] -= 1  # the process that was seen first had started earlier
    assert ranks.look()[0].proc == "X"
    record.launch = 1
    os.close(rec.create(str(tmp_path / "rank-0"), record))
    assert ranks.look()[0].proc in "RS", "in the next launch it is the rank's number in its own right"


def test_sweep_removes_the_dead_and_keeps_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_bases", lambda: [str(tmp_path)])
    dead, living, ours, other = (
        paths.beats_dir(a, n) for a, n in (("/r/1.0", "x"), ("/q/1.0", "x"), ("/r/3.0", "x"), ("/r/1.0", "y"))
    )
    held = [paths.enter(path) for path in (dead, living, ours, other)]
    Path(dead, "rank-0").write_text("")
    for fd in (held[0], held[2], held[3]):
        os.close(fd)
    assert paths.sweep("x", keep=ours) == [dead]
    assert sorted(str(p) for p in tmp_path.iterdir()) == sorted([living, ours, other])


def test_name_taken_by_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    monkeypatch.setattr(paths, "_bases", lambda: [str(first), str(second)])
    name = Path(paths.beats_dir("/run/1.0", "x")).name
    (first / name).symlink_to(second)
    assert paths.beats_dir("/run/1.0", "x") == str(second / name)
    with pytest.raises(PermissionError):
        paths.enter(str(first / name))
