"""A health run in one Slurm step when Slurm cannot start all tasks; `srun` is a fake program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from health_made import PATH, well_check

from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Verdict
from transom_cli.health.report import Report
from transom_cli.health.run import HealthRequest, check_job

REPO = Path(__file__).resolve().parents[2]
# Refuses node2 as often as it is told to, as srun does: no task starts anywhere then. Else it starts one a node here.
SRUN = """#!{python}
import os, subprocess, sys
from pathlib import Path
refusals = Path(os.environ["REFUSALS"])
nodes = next(w for w in sys.argv if w.startswith("--nodelist=")).partition("=")[2].split(",")
if "node2" in nodes and int(refusals.read_text()):
    refusals.write_text(str(int(refusals.read_text()) - 1))
    print("srun: error: Task launch for StepId=1.0 failed on node node2: Socket timed out", file=sys.stderr)
    sys.exit(1)
argv = [sys.executable, "-m", "transom_cli.health.node_worker", "--node"]
tasks = [subprocess.Popen([*argv, node], stdin=subprocess.PIPE) for node in nodes]
for line in sys.stdin.buffer:
    for task in tasks:
        task.stdin.write(line)
        task.stdin.flush()
for task in tasks:
    task.stdin.close()
    task.wait()
"""


@pytest.fixture
def refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{PATH}:{REPO}")
    monkeypatch.setenv("REFUSALS", str(tmp_path / "refusals"))
    return tmp_path / "refusals"


def checked() -> tuple[Report, dict[str, Verdict]]:
    wish = HealthRequest(About(tier=Tier.QUICK), probe=False, budget=30.0, checks=(well_check(),))
    report = check_job(1, ("node1", "node2"), wish)
    return report, {f.node: f.verdict for f in report.findings if f.check in ("well", "answer")}


@pytest.mark.parametrize("times", [0, 1])
def test_single_failed_start_suspects_no_node(refusals: Path, times: int) -> None:
    refusals.write_text(str(times))
    assert checked()[1] == {"node1": Verdict.PASS, "node2": Verdict.PASS}


def test_node_that_twice_starts_no_task_is_suspected_and_the_others_are_checked(refusals: Path) -> None:
    refusals.write_text("9")
    report, verdicts = checked()
    assert verdicts == {"node1": Verdict.PASS, "node2": Verdict.SUSPECT}
    (found,) = [f for f in report.findings if f.check == "answer"]
    assert "Socket timed out" in found.evidence and report.nodes == ("node1", "node2")
    assert refusals.read_text() == "7", "asked twice, and not again"
