"""Another user on the node takes the names of heartbeat directories before the run does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from processes import wait_for
from slurm_support import OrdinaryUser

from transom_cli.core.launcher import Launch, Nodes, Phase, Policy, State
from transom_cli.core.operator.state import State as RunState
from transom_cli.heartbeat import paths
from transom_cli.heartbeat.table import NodeTable, RankBeat, decode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.launcher.monitor import UNSEEN, BlindNodes
from transom_cli.view.node_state import BLIND_AFTER, Found, NodeSight, blind_nodes

ROOT = Path(__file__).parents[2]
WRAPPER = ROOT / "transom_cli" / "supervise" / "agent" / "rank_wrapper.py"
RANK = "import sys, time\nfrom transom_cli import beat\nbeat(7)\nsys.stdin.read()"


@dataclass
class Victim:
    """An attempt whose agent and rank find their heartbeat directory by themselves."""

    attempt: AttemptDir
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
        clean |= {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": "nodeX", "SLURM_PROCID": "0", "TMPDIR": "/tmp"}
        pipe = subprocess.PIPE
        self.started.append(
            subprocess.Popen([sys.executable, *words], env=clean, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        )
        return self.started[-1]

    def rank(self) -> subprocess.Popen[str]:
        return self.spawn(
            "-I", "-S", str(WRAPPER), "--attempt-dir", str(self.attempt.path), "--", sys.executable, "-c", RANK
        )

    def agent(self) -> subprocess.Popen[str]:
        return self.spawn(
            "-m", "transom_cli.supervise.agent.agent", "--attempt-dir", str(self.attempt.path), "--node", "nodeX"
        )

    def ranks(self) -> list[int]:
        """The steps in the node's table."""
        try:
            return [row.step for row in decode((self.attempt.nodes / "nodeX.beats").read_bytes()).ranks]
        except OSError:
            return [-2]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    made = Victim(RunDir(tmp_path / "run").attempt(12, 0))
    made.attempt.nodes.mkdir(parents=True)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    for path in paths.beats_dirs(str(made.attempt.path)):
        shutil.rmtree(path)


def take_name(attempt: AttemptDir, thief: OrdinaryUser) -> list[Path]:
    """As the other user, create the directory that the run would use, wherever it might look."""
    name = Path(paths.beats_dir(str(attempt.path), "nodeX")).name
    taken = [Path(base) / name for base in ("/dev/shm", "/tmp")]
    subprocess.run(["mkdir", "-m", "777", *map(str, taken)], user=thief.uid, group=thief.gid, check=True)
    return taken


def test_names_that_others_can_guess_are_not_used(victim: Victim, other_user: OrdinaryUser) -> None:
    taken = take_name(victim.attempt, other_user)  # before the launcher has chosen a suffix
    try:
        victim.attempt.beats_suffix.write_text("0123456789abcdef")
        victim.agent(), victim.rank()
        wait_for(lambda: victim.ranks() == [7])
        assert not any(list(path.iterdir()) for path in taken)
    finally:
        [path.rmdir() for path in taken]


def test_a_node_without_a_place_for_heartbeats_says_so(victim: Victim, other_user: OrdinaryUser) -> None:
    taken = take_name(victim.attempt, other_user)
    try:
        agent, rank = victim.agent(), victim.rank()
        findings = victim.attempt.findings("nodeX")
        wait_for(lambda: findings.exists() and b"heartbeats" in findings.read_bytes())
        found = json.loads(findings.read_text().splitlines()[0])
        assert (found["kind"], found["verdict"]) == ("host:heartbeats", "suspect")
        wait_for(lambda: victim.ranks() == [])
        assert agent.poll() is None, "logs, health and the end of a launch need the agent"
        assert rank.stdin is not None
        errors = rank.communicate("")[1].splitlines()
        assert rank.returncode == 0, "the training runs all the same"
        assert [line for line in errors if "no heartbeats from rank 0 on nodeX, so a hang is not detected" in line]
        assert not any(list(path.iterdir()) for path in taken), "nothing of ours is in a stranger's directory"
    finally:
        [path.rmdir() for path in taken]


def test_a_directory_in_which_others_can_rename_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o777)
    assert str(tmp_path) not in paths._bases()
    tmp_path.chmod(0o1777)
    assert str(tmp_path) in paths._bases()


def test_a_rank_that_cannot_write_its_own_table_says_so_once(tmp_path: Path) -> None:
    """Without an agent, each rank writes its table to the run directory."""
    attempt = RunDir(tmp_path / "run").attempt(12, 0)
    code = (
        "import os, sys, time; from transom_cli import beat; from transom_cli.heartbeat import local_table\n"
        "local_table.EVERY = 0.05; beat(1); os.rename(sys.argv[1], sys.argv[1] + '-gone'); time.sleep(0.5)\n"
        "beat(2); print('trained')"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    env |= {"TRANSOM_ATTEMPT_DIR": str(attempt.path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(attempt.nodes)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout == "trained\n" and done.stderr.count("no heartbeats from rank 0 on ") == 1
    assert done.stderr.count("\n") == 1


def beat(rank: int, launch: int) -> RankBeat:
    return RankBeat(rank, launch, 3, 4, 0.1, None, "step", 100, "R")


def test_the_launcher_journals_nodes_that_it_cannot_see(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[dict[str, object]] = []
    state = State(12, 0, Nodes(("a", "b"), 2, training=("a", "b")), 1, Policy())
    state = replace(state, phase=Phase.TRAINING, launch=Launch(1, tasks_seen=True))
    tables = [NodeTable("a", "12.0", 5, (beat(0, 1),)), NodeTable("b", "12.0", 5, (beat(1, 0),))]
    blind = BlindNodes(True, lambda kind, **fields: said.append({"type": kind, **fields}))
    for now in (0.0, UNSEEN - 1, UNSEEN, UNSEEN + 1):
        blind.look(state, tables, now)
    assert [(one["type"], one["nodes"]) for one in said] == [("blind", ("b",))], "once"
    assert "no heartbeats from b: a hang there is not detected" in capsys.readouterr().out
    blind.look(state, [tables[0], NodeTable("b", "12.0", 6, (beat(1, 1),))], UNSEEN + 2)
    assert said[-1]["nodes"] == ()


def test_status_warns_of_nodes_that_nobody_can_see() -> None:
    run = RunState()
    run = replace(run, job=replace(run.job, id=12, state="RUNNING", nodes=("a", "b")))
    seen = NodeSight(NodeTable("a", "12.0", 5, (beat(0, 0),)))
    refused = replace(seen, found=(Found("host:heartbeats", "suspect", "no place", -1),))
    cured = replace(seen, found=(*refused.found, Found("host:heartbeats", "pass", "a place again", -1)))
    later = BLIND_AFTER + 1
    assert blind_nodes(run, {"a": seen, "b": seen}, 0.0, later) == ""
    assert blind_nodes(run, {"a": seen}, 0.0, BLIND_AFTER - 1) == "", "it may still come up"
    assert blind_nodes(run, {"a": seen}, None, later) == "", "without a launcher nobody expects tables"
    assert blind_nodes(run, {"a": seen}, 0.0, later).startswith("b: no table from the agent")
    assert blind_nodes(run, {"a": cured, "b": refused}, 0.0, later) == "b: no place"
