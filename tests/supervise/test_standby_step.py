"""When the launcher keeps a standby step, and which launch takes it: a real process in place of srun."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transom_cli.core.launcher.standbys import Sites
from transom_cli.layout import RunDir
from transom_cli.supervise.agent.standby import REPORT
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher import standby
from transom_cli.supervise.launcher.group import Group
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.standby import SETTLED, TRIES, UNSAID, Standby
from transom_cli.supervise.launcher.training import TrainingStep, TrainingSteps

READS = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.open('a').write(sys.stdin.readline()); sys.exit(3)"
NODES = ("n1", "n2")


class Launcher:
    """A launcher with a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = folder / "read"
        self.program = [sys.executable, "-c", READS, str(self.read)]
        self.attempt = RunDir(folder).attempt(7, 0)
        self.attempt.path.mkdir(parents=True)
        self.attempt.modules.write_text("{}")
        self.allocation = Allocation(7, 0, (*NODES, "n3"))
        self.wanted: list[tuple[int, tuple[str, ...]]] = []
        self.journal: list[str] = []
        options = LaunchOptions(
            RunDir(folder), "srun", ("python", "x.py"), (sys.executable,), standby=True, recoverable=True,
            standby_reach="recoverable",
        )  # fmt: skip
        self.words: list[str] = []
        self.ready: dict[str, int] = {}
        self.ran_script: list[bool] = []
        self.took: list[int] = []
        self.standby = Standby(self.allocation, options, self.attempt, self._journal, self.took.append)
        self.now = 100.0
        self.sites = Sites()
        monkeypatch.setattr(launchplan, "training_argv", self._argv)
        monkeypatch.setattr(standby, "PATIENCE", 0.1)

    def _journal(self, _kind: str, **fields: Any) -> None:
        self.journal.append(fields["what"])
        self.words.append(fields["words"])
        self.ready = fields.get("ready", self.ready)

    def _argv(self, _allocation: Allocation, options: LaunchOptions, _attempt: object, launch: int,
              nodes: tuple[str, ...], **about: Any) -> list[str]:  # fmt: skip
        assert about["standby"] is True and bool(about["every"]) == (len(nodes) == 1)
        self.wanted.append((launch, nodes))
        self.ran_script.append(options.standby_runs_script)
        return self.program

    def look(self, launch: int = 0, nodes: tuple[str, ...] = NODES, after: float = 0.0) -> None:
        self.now += after
        self.standby.look(launch, nodes, "n1", self.now, self.sites)

    def say(self, rank: int, node: str, launch: int = 1, **about: str) -> None:
        """As the wrapper of a standby does, in the log of its step."""
        said = {"launch": launch, "rank": rank, "node": node, "at": "", "why": "", "failed": "", **about}
        with self.attempt.standby_log.open("a") as log:
            print("a module's own words", file=log)
            print(f"{REPORT}{json.dumps(said)}", file=log)


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    made = Launcher(tmp_path, monkeypatch)
    yield made
    made.standby.drop()


def group(launch: int, nodes: tuple[str, ...]) -> Group:
    return Group(launch, nodes, "n1", {"MASTER_ADDR": "n1", "MASTER_PORT": "5", "OTHER": "x"}, 5)


def until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_next_launch_on_the_same_nodes_takes_it(launcher: Launcher) -> None:
    launcher.look()
    launcher.look(after=SETTLED - 0.1)
    assert launcher.wanted == []
    launcher.look(after=0.1)
    launcher.look(after=60)
    assert launcher.wanted == [(1, NODES)]
    step = launcher.standby.form(group(1, NODES))
    assert step is not None and step.argv == launcher.program
    until(lambda: step.code == 3)
    assert launcher.read.read_text() == '{"MASTER_ADDR": "n1", "MASTER_PORT": "5"}\n'
    assert launcher.journal == ["started", "used"]
    launcher.look(1, after=0.0)
    launcher.look(1, after=SETTLED)
    assert launcher.wanted == [(1, NODES), (2, NODES)]


@pytest.mark.parametrize(("launch", "nodes"), [(1, ("n1", "n3")), (1, ("n2", "n1")), (2, NODES)])
def test_another_launch_or_other_nodes_end_it(
    launcher: Launcher, launch: int, nodes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "PATIENCE", 60.0)  # the program may need long to start
    launcher.look()
    launcher.look(after=SETTLED)
    assert launcher.standby.form(group(launch, nodes)) is None
    until(lambda: launcher.read.exists())
    assert launcher.read.read_text() == "", "its tasks were not let go"


def test_standby_knows_that_its_training_may_be_entered_again(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaunchOptions, "recovers", True)
    code = f"import os, pathlib; pathlib.Path({str(launcher.read)!r}).write_text(os.environ['TRANSOM_RECOVERABLE'])"
    launcher.program = [sys.executable, "-c", code]
    launcher.look()
    launcher.look(after=SETTLED)
    until(lambda: launcher.read.exists() and launcher.read.read_text() == "1")


def test_one_that_has_ended_is_not_taken_and_replaced_a_few_times(launcher: Launcher) -> None:
    launcher.program = [sys.executable, "-c", ""]
    launcher.look()
    for _ in range(200):
        launcher.look(after=SETTLED)
        time.sleep(0.02)
        if launcher.journal.count("ended") == TRIES:
            break
    for _ in range(5):
        launcher.look(after=SETTLED)
    assert launcher.journal == ["started", "ended"] * TRIES
    assert launcher.standby.form(group(1, NODES)) is None


def test_none_is_started_before_the_modules_are_known_nor_across_jobs(launcher: Launcher) -> None:
    launcher.attempt.modules.unlink()
    launcher.look()
    launcher.look(after=60)
    launcher.attempt.modules.write_text("{}")
    launcher.allocation.borrowed["n2"] = 8
    launcher.look(after=60)
    assert launcher.wanted == []
    del launcher.allocation.borrowed["n2"]
    launcher.look(after=60)
    assert launcher.wanted == [(1, NODES)]


def test_spare_holds_standbys_that_become_the_ranks_of_the_node_that_it_replaces(launcher: Launcher) -> None:
    launcher.sites = Sites(("n3",), (("n4", "it is being drained"),))
    launcher.look()
    launcher.look(after=SETTLED)
    launcher.look(after=SETTLED)
    assert launcher.wanted == [(1, NODES), (1, ("n3",))]
    assert launcher.ran_script == [True, False], "the ranks of a spare are not known"
    assert launcher.words == ["n4: it is being drained", "for launch 1", "for launch 1 on spare n3"]
    step = launcher.standby.form(group(1, ("n3", "n2")))
    assert isinstance(step, TrainingSteps) and step.nodes == (*NODES, "n3")
    until(lambda: step.code == 3)
    until(lambda: launcher.read.read_text().count("\n") == 2)  # one of the two may end first
    said = [json.loads(line) for line in launcher.read.read_text().splitlines()]
    assert [one["TRANSOM_HOSTS"] for one in said] == ["n3,n2"] * 2
    assert sorted(one["TRANSOM_ONLY"] for one in said) == ["0", "1"]
    assert launcher.words[-1] == "the ranks of launch 1 were not ready yet, but had begun; rank 0 on spare n3"


def test_standby_of_a_spare_takes_the_lost_rank_alone(launcher: Launcher) -> None:
    launcher.program = [sys.executable, "-c", READS, str(launcher.read)]
    launcher.sites = Sites(("n3",))
    launcher.look()
    launcher.look(after=SETTLED)
    launcher.say(1, "n3")
    launcher.say(0, "n1")
    launcher.say(1, "n2", why="it has too little memory")
    launcher.look(after=2)
    assert launcher.words[-1] == "1 of 2 for launch 1; 1 of 1 on spare n3; rank 1: it has too little memory"
    published = json.loads(launcher.attempt.standbys.read_text())
    assert (published["ranks"], published["nodes"]) == (3, {"n3": 1, "n1": 1})
    step = launcher.standby.form(Group(1, ("n1", "n3"), "n1", {}, 5, lost=(1,)))
    assert isinstance(step, TrainingStep) and step.nodes == ("n3",)
    assert launcher.words[-1] == "rank 1 of launch 1 was ready; rank 1 on spare n3"
    until(lambda: step.code == 3)
    assert any("TRANSOM_HOSTS" in line for line in launcher.read.read_text().splitlines())


def test_standbys_of_a_spare_end_when_it_is_none_any_more(launcher: Launcher) -> None:
    launcher.program = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    launcher.sites = Sites(("n3",))
    launcher.look()
    launcher.look(after=SETTLED)
    launcher.sites = Sites()
    launcher.look(after=1)
    assert launcher.journal == ["started", "started", "ended"]
    assert launcher.standby.form(group(1, ("n1", "n3"))) is None


AT = "before the call of train in train.py, line 9"


def test_the_journal_says_how_many_are_ready_and_where_they_wait(launcher: Launcher) -> None:
    launcher.program = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    launcher.look()
    launcher.look(after=SETTLED)
    launcher.say(0, "n1", at=AT)
    launcher.say(0, "n1", launch=7)
    launcher.look(after=2)
    assert launcher.journal == ["started"], "another one may follow soon"
    launcher.say(1, "n2", at=AT)
    launcher.look(after=2)
    launcher.look(after=2)
    assert launcher.journal == ["started", "ready"]
    assert launcher.words[-1] == f"2 of 2 for launch 1, waiting {AT}"
    assert launcher.ready == {"n1": 1, "n2": 1}
    published = json.loads(launcher.attempt.standbys.read_text())
    assert (published["launch"], published["ranks"], published["nodes"]) == (1, 2, launcher.ready)
    assert launcher.standby.form(Group(1, NODES, "n1", {}, 5, lost=(1,))) is not None
    assert launcher.words[-1] == f"rank 1 of launch 1 was ready, waiting {AT}"
    assert not launcher.attempt.standbys.exists()


def test_one_that_says_nothing_is_not_waited_for_and_was_not_ready(launcher: Launcher) -> None:
    launcher.program = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    launcher.look()
    launcher.look(after=SETTLED)
    launcher.say(0, "n1", why="module x comes from elsewhere")
    launcher.look(after=2)
    launcher.look(after=UNSAID)
    assert launcher.words[-1] == "0 of 2 for launch 1; rank 0: module x comes from elsewhere"
    assert launcher.standby.form(group(1, NODES)) is not None
    assert launcher.words[-1] == "the ranks of launch 1 were not ready yet, but had begun"


def test_no_script_runs_beforehand_after_one_has_failed(launcher: Launcher) -> None:
    launcher.look()
    launcher.look(after=SETTLED)
    for rank, node in enumerate(NODES):
        launcher.say(rank, node, failed="its script has ended: ValueError: no data")
        launcher.say(rank, node)
    launcher.look(after=2)
    assert launcher.words[1:] == [
        "2 of 2 for launch 1; rank 0: its script has ended: ValueError: no data (1 more like it)",
        "a script has ended before it was a rank",
    ]
    assert launcher.journal[-1] == "only import from now on"
    assert launcher.standby.form(group(1, NODES)) is not None
    launcher.look(1)
    launcher.look(1, after=SETTLED)
    assert launcher.ran_script == [True, False]


@pytest.mark.parametrize("steps", [True, False])
def test_no_script_runs_beforehand_after_a_launch_of_such_ranks_has_not_stepped(
    launcher: Launcher, steps: bool
) -> None:
    launcher.look()
    launcher.look(after=SETTLED)
    assert launcher.standby.form(group(1, NODES)) is not None
    if steps:
        launcher.look(1)
    launcher.look(2)
    launcher.look(2, after=SETTLED)
    assert launcher.ran_script == [True, steps]


def test_which_runs_keep_standbys(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"standby": True}
    for about, kept in [
        ({}, True),
        ({"standby": False}, False),
        ({"auto_beat": False}, False),
        ({"within": ("apptainer", "exec")}, False),
        ({"foreign": "out/*.pt"}, False),
        ({"observe": True}, False),
    ]:
        options = LaunchOptions(RunDir(tmp_path), "srun", ("python", "x.py"), ("python",), **{**plain, **about})
        assert options.keeps_standby is kept, about
    assert not LaunchOptions(RunDir(tmp_path), "torchrun", ("x.py",), ("python",), standby=True).keeps_standby
