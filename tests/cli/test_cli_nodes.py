"""`transom nodes`, and what a new run makes of it. Slurm's commands are scripts here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cli_support import transom

from transom_cli.health.history.files import HistoryFile, read_history
from transom_cli.health.history.records import Attempt, Isolation, Record, RunOver
from transom_cli.layout import RunDir
from transom_cli.supervise.operator.drain import reason

NOW = time.time()


class Desk:
    """A person with a history, and with a `scontrol` that reports n2 and n3."""

    def __init__(self, folder: Path, run: RunDir) -> None:
        self.run = run
        self.state = folder / "state"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "updates"
        self.ours = reason("xid: Xid 79", run.run_id)
        self.isolation = Isolation(
            NOW - 7200, run.run_id, str(run.path), "n2", "drained", None, "node_fault", "xid", "FAIL",
            "GPU has \x1b[31mfallen off the bus", "reboot", "GPU-5f2a", "1321021",
        )  # fmt: skip
        self.scontrol(
            f"NodeName=n2 State=IDLE+DRAIN NodeAddr=n2 Port=6818 Reason={self.ours} [ann@2026-01-01T00:00:00]"
        )

    def scontrol(self, *nodes: str, update: str = "exit 0") -> None:
        show = "\n".join(f"echo '{line}'" for line in nodes) if nodes else "echo 'Unable to contact slurm' >&2; exit 1"
        text = f'#!/bin/sh\nif [ "$1" = show ]; then\n{show}\nexit\nfi\necho "$@" >> "{self.log}"\n{update}\n'
        (self.bin / "scontrol").write_text(text)
        (self.bin / "scontrol").chmod(0o755)

    def record(self, *records: Record) -> None:
        HistoryFile(self.state / "nodes", "r").add(records)

    def transom(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {"TRANSOM_STATE_DIR": str(self.state), "PATH": f"{self.bin}:{os.environ['PATH']}"}
        return transom(*words, TRANSOM_ROOT=str(self.run.path.parent), **env)


@pytest.fixture
def desk(tmp_path: Path, run: RunDir) -> Desk:
    return Desk(tmp_path, run)


def test_nothing_isolated(desk: Desk) -> None:
    done = desk.transom("nodes")
    assert (done.returncode, done.stdout) == (0, "no node is isolated by your runs now\n"), done.stderr
    assert not desk.state.exists()


def test_the_screen_says_what_why_and_until_when(desk: Desk) -> None:
    slow = replace(desk.isolation, node="n3", how="excluded", until=NOW + 1800.5, check="gemm", verdict="SUSPECT")
    slow = replace(slow, serial="")
    desk.record(desk.isolation, slow)
    done = desk.transom("nodes")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.match(r"n2          drained 2h \d\dm ago, until lifted", lines[0])
    assert lines[1:6] == [
        r"  xid       GPU has \x1b[31mfallen off the bus (proven)",
        "  device    GPU-5f2a, serial 1321021",
        "  remedy    reboot",
        f"  run       {desk.run.run_id}",
        f"  slurm     idle, drained by ann: {desk.ours}",
    ]
    assert re.match(r"n3          excluded 2h \d\dm ago, ", lines[7]) and lines[7].endswith(" left")
    assert lines[8] == r"  gemm      GPU has \x1b[31mfallen off the bus (suspected)"
    assert lines[-1] == "  slurm     not a node of this cluster"


def test_json(desk: Desk) -> None:
    desk.record(desk.isolation)
    result = json.loads(desk.transom("nodes", "--json").stdout)
    (row,) = result["nodes"]
    assert (result["schema"], result["slurm"], result["repeat_offenders"]) == (1, "", [])
    assert (row["node"], row["how"], row["found"], row["serial"], row["ended"]) == (
        "n2",
        "drained",
        "xid",
        "1321021",
        "",
    )


def test_a_silent_slurm_is_said(desk: Desk) -> None:
    desk.scontrol()
    desk.record(desk.isolation)
    done = desk.transom("nodes")
    assert done.returncode == 0 and "n2 " in done.stdout and "  slurm " not in done.stdout
    assert "warning: Slurm does not answer" in done.stderr and "Unable to contact" in done.stderr


def test_what_has_ended_is_listed_on_request(desk: Desk) -> None:
    desk.scontrol("NodeName=n2 State=IDLE NodeAddr=n2 Port=6818")
    desk.record(desk.isolation, RunOver(NOW - 60, desk.run.run_id))
    assert "no node" in desk.transom("nodes").stdout, "resumed in Slurm, and its run is over"
    assert re.search(r"n2          drained 2h \d\dm ago, resumed", desk.transom("nodes", "--all").stdout)


def test_repeat_offenders_are_listed(desk: Desk) -> None:
    for i in range(20):
        blamed = ("n7",) if i < 4 else ()
        wall = NOW - 100 - i
        desk.record(
            *(Attempt(wall, "r", f"{i}.{n}", wall - 3600, (f"n{n}",), blamed if n == 7 else ()) for n in range(9))
        )
    done = desk.transom("nodes")
    result = "repeat offenders\n  n7        at fault in 4 attempts of 1 run in 20 h of use; 0.44 expected"
    assert result in done.stdout


@pytest.mark.parametrize(
    ("state", "update", "says"),
    [("DOWN+DRAIN", "resume", "Slurm: resumed"), ("DOWN*+DRAIN", "undrain", "no longer drained (it is down; once it")],
)
def test_lift_resumes_a_lost_node_only_if_it_responds_again(desk: Desk, state: str, update: str, says: str) -> None:
    desk.scontrol(f"NodeName=n2 State={state} NodeAddr=n2 Port=1 Reason={desk.ours} [ann@2026-01-01T00:00:00]")
    desk.record(desk.isolation)
    done = desk.transom("nodes", "--lift", "n2")
    assert done.returncode == 0 and says in done.stderr, done.stderr
    assert desk.log.read_text() == f"update nodename=n2 state={update}\n"


def test_a_lift_resumes_what_we_drained_and_asks_the_run(desk: Desk) -> None:
    desk.record(desk.isolation)
    done = desk.transom("nodes", "--lift", "n[2]")
    assert done.returncode == 0, done.stderr
    assert f"n2: your runs may use it again (notified: {desk.run.run_id}); Slurm: resumed" in done.stderr
    assert desk.log.read_text() == "update nodename=n2 state=undrain\n"
    (request,) = desk.run.requests.iterdir()
    assert json.loads(request.read_text())["nodes"] == ["n2"]
    assert "no node" in desk.transom("nodes").stdout


def test_a_lift_that_slurm_denies(desk: Desk) -> None:
    desk.scontrol(
        f"NodeName=n2 State=IDLE+DRAIN NodeAddr=n2 Port=6818 Reason={desk.ours} [root@2026-01-01T00:00:00]",
        update="echo 'slurm_update error: Invalid user id' >&2; exit 1",
    )
    desk.record(desk.isolation)
    done = desk.transom("nodes", "--lift", "n2")
    assert done.returncode == 13
    assert "n2: your runs may use it again, but Slurm may still drain it" in done.stderr
    assert "Invalid user id" in done.stderr
    assert "scontrol update nodename=n2 state=resume" in done.stderr
    result = json.loads(desk.transom("nodes", "--lift", "n2", "--json").stdout)
    assert result["error"]["kind"] == "not_permitted"


def test_a_lift_while_slurm_is_silent(desk: Desk) -> None:
    desk.scontrol()
    desk.record(desk.isolation)
    done = desk.transom("nodes", "--lift", "n2")
    assert done.returncode == 22 and "Unable to contact" in done.stderr
    assert len(read_history(desk.state / "nodes", NOW)) == 2


NOT_OURS = [
    ("n9", "not isolated by a run of yours: `n9`"),
    ("n[1", "not a list of nodes"),
    (",", "not a list of nodes"),
    ("a b", "not a list of nodes"),
]


@pytest.mark.parametrize(("nodes", "words"), NOT_OURS)
def test_a_lift_of_what_is_not_ours(desk: Desk, nodes: str, words: str) -> None:
    desk.record(desk.isolation)
    done = desk.transom("nodes", "--lift", nodes)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert len(read_history(desk.state / "nodes", NOW)) == 1 and not desk.log.exists()


def test_of_one_run_alone(desk: Desk) -> None:
    desk.record(desk.isolation, replace(desk.isolation, run="other", node="n3"))
    assert "n3" not in desk.transom("nodes", "--run", desk.run.run_id).stdout
    assert desk.transom("nodes", "--run", "nobody").returncode == 10
    assert desk.transom("nodes", "--lift", "n3", "--run", desk.run.run_id).returncode == 2


@pytest.mark.parametrize("own_script", [False, True])
def test_a_new_run_keeps_off_a_proven_fault_that_could_not_be_drained(
    desk: Desk, own_script: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --exclude=n[8-9]\ntrue\n")
    words = ("run", "--dry-run", *([str(script)] if own_script else ["-x", "n[8-9]", "--", "true"]))
    before = desk.transom(*words)
    assert before.returncode == 0 and "n2" not in before.stdout + before.stderr
    desk.record(replace(desk.isolation, how="excluded"), RunOver(NOW - 60, desk.run.run_id))
    done = desk.transom(*words)
    assert done.returncode == 0, done.stderr
    assert "--exclude=n[8-9],n2" in (done.stderr if own_script else done.stdout)
    assert r"note: n2 is excluded: xid: GPU has \x1b[31mfallen off the bus (found " in done.stderr
    assert "lift with `transom nodes --lift n2`" in done.stderr
    desk.scontrol("NodeName=n2 State=IDLE NodeAddr=n2 Port=6818")
    assert desk.transom("nodes", "--lift", "n2").returncode == 0
    assert "n2" not in desk.transom(*words).stderr


def test_a_history_that_cannot_be_read_stops_no_run(desk: Desk) -> None:
    desk.state.mkdir()
    (desk.state / "nodes").write_text("")
    done = desk.transom("run", "--dry-run", "--", "true")
    assert done.returncode == 0 and "warning: cannot read the history of nodes" in done.stderr
    refused = desk.transom("nodes")
    assert refused.returncode == 2 and "TRANSOM_STATE_DIR" in refused.stderr


@pytest.mark.long
def test_nodes_of_another_cluster_are_named_requested_there_and_excluded_only_there(desk: Desk) -> None:
    """sbatch refuses a whole job that excludes a node which its cluster does not have."""
    text = f"""#!/bin/sh
case "$*" in
"show config") echo "ClusterName = bern";;
"--clusters=alps show node"*) echo "NodeName=n2 State=IDLE+DRAIN Reason={desk.ours} [ann@2026-01-01T00:00:00]";;
"show node"*) echo "NodeName=n3 State=IDLE";;
*) echo "Invalid user id" >&2; exit 1;;
esac
"""
    (desk.bin / "scontrol").write_text(text)
    excluded = replace(desk.isolation, how="excluded")
    gone = replace(excluded, node="n4", cluster="bern")
    desk.record(replace(excluded, cluster="alps"), gone, replace(excluded, node="n3", cluster="bern"))
    desk.record(RunOver(NOW - 60, desk.run.run_id))
    listed = desk.transom("nodes").stdout
    assert f"run       {desk.run.run_id}, on cluster alps" in listed and "cluster bern" not in listed
    assert f"idle, drained by ann: {desk.ours}" in listed
    done = desk.transom("run", "--dry-run", "--", "true")
    assert "--exclude=n3\n" in done.stdout, "n2 is another cluster's, and n4 is gone"
    lifted = desk.transom("nodes", "--lift", "n2")
    assert lifted.returncode == 13
    assert "hint: An administrator can resume it: scontrol -M alps update nodename=n2 state=resume" in lifted.stderr
