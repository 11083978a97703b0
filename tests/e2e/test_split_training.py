"""No training is split into several in silence: inherited variables, smaller worlds, nested launchers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from e2e.support import Person

pytestmark = pytest.mark.sandbox

LOOK = """
import json, os, sys
from transom_cli import beat
rank = os.environ["SLURM_PROCID"]
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
names += ("TORCHELASTIC_USE_AGENT_STORE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")
open(f"{sys.argv[1]}/{rank}.json", "w").write(json.dumps({name: os.environ.get(name) for name in names}))
beat(1)
"""
ANOTHER = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "SLURM_PROCID": "7",
    "SLURM_LOCALID": "7",
    "SLURM_JOB_ID": "99",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_ID": "0",
}
"""A shell inside another launch: of torchrun, within an interactive job."""


def test_variables_of_another_launch_do_not_reach_the_ranks(person: Person, short_dir: Path) -> None:
    (short_dir / "look.py").write_text(LOOK)
    (seen := short_dir / "seen").mkdir()
    person.env |= ANOTHER
    done = person.run("-N", "2", "--tasks-per-node", "2", "--", sys.executable, str(short_dir / "look.py"), str(seen))
    assert done.returncode == 0, done.stderr
    told = [json.loads((seen / f"{rank}.json").read_text()) for rank in range(4)]
    assert [(env["RANK"], env["WORLD_SIZE"]) for env in told] == [(str(rank), "4") for rank in range(4)]
    assert [(env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) for env in told] == [("0", "2"), ("1", "2")] * 2
    assert {env["MASTER_ADDR"] for env in told} == {"127.0.0.1"} and told[0]["MASTER_PORT"] != "1"
    assert {env["GROUP_RANK"] for env in told} == {env["TORCHELASTIC_USE_AGENT_STORE"] for env in told} == {None}
    assert {env["SLURM_JOB_ID"] for env in told} != {"99"} and [env["SLURM_PROCID"] for env in told] == list("0123")
    (note,) = (line for line in done.stderr.splitlines() if "set in this shell" in line)
    assert "RANK" in note and "WORLD_SIZE" in note and "MASTER_ADDR" in note and "not passed to the job" in note, note


@pytest.mark.long
def test_ranks_that_each_train_alone_end_the_run_at_the_first_heartbeat(person: Person, short_dir: Path) -> None:
    """The trainer sets the variables itself; a restart would only do it again."""
    split = short_dir / "split.py"
    changed = "import os\nos.environ.update(RANK='0', WORLD_SIZE='1')\n"
    split.write_text(f"{changed}from transom_cli import beat\nbeat(1)\n")
    done = person.run("-N", "2", "--", sys.executable, str(split))
    view = person.status(person.newest())
    assert done.returncode == 1 and view["phase"] == "failed" and view["starts"] == 0, (done.stderr, view)
    assert "do not form the world that was launched" in view["verdict"], view["verdict"]
    logs = "".join(path.read_text() for path in person.newest().attempts.glob("*/logs/*/rank-*.log"))
    assert "WORLD_SIZE=1, and transom launched 2 ranks" in logs, logs
    assert len(list(person.newest().attempts.glob("*/logs/*"))) == 1, "launched once"


def test_torchrun_as_the_command_becomes_the_ranks_that_it_would_start(person: Person) -> None:
    done = person.run("--dry-run", "-N", "2", "--", "torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert "`torchrun` is not run itself: Slurm starts 2 ranks on each node" in done.stderr
    assert "-- python -u train.py --lr 1" in done.stdout
    assert not person.root.exists() or not list(person.root.iterdir())


def test_command_may_start_ranks_itself_on_one_node(person: Person) -> None:
    done = person.run("--dry-run", "-N", "1", "--tasks-per-node", "1", "--", "torchrun", "--standalone", "train.py")
    assert done.returncode == 0, done.stderr
