"""`transom launch` in a script of the user's own: adopted, with an operator or alone, several job steps in one job."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.support import COMMAND, STEPS, Person, over, remembering

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

SLOW = 300.0  # seconds: four times torch is imported, each time on all nodes at once
pytestmark = [pytest.mark.sandbox, pytest.mark.long]

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=train-%j.out
module() {{ echo "module $*"; [ "$1" = load ] && export LOADED="$2"; }}   # as a login shell has it
module purge
module load cuda/12.4
set -e

# our own monitor
( while sleep 0.5; do echo "$SLURM_RESTART_COUNT $(date +%s)" >> monitor.log; done ) &
MONITOR=$!

srun --ntasks-per-node=1 hostname > hosts.txt
srun --cpu-bind=none --output=first-%t.out \\
    {first}                               # the first half
srun -n 2 {second}
kill $MONITOR
echo "finished with $LOADED" >> finished.txt
"""


def written(run: RunDir, restart: int = 0) -> list[dict[str, Any]]:
    """The journal of the only job's launchers in one start."""
    (path,) = run.attempts.glob(f"*.{restart}")
    return [json.loads(line) for line in (path / "launcher.jsonl").read_text().splitlines()]


def until(ready: Callable[[], bool], patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


@pytest.mark.timeout(3 * SLOW)
def test_adopted_script_survives_a_node_in_its_second_step(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    half = [*remembering(first, "--persist", "10")]
    half[half.index("--steps") + 1] = str(STEPS // 2)
    text = SCRIPT.format(first=shlex.join(half), second=shlex.join(remembering(second, "--persist", "10")))
    (person.cwd / "train.sbatch").write_text(text)
    adopted = person.transom("adopt", "train.sbatch")
    assert adopted.returncode == 0, adopted.stderr
    assert "line 14 is left as it is: hostname is no training" in adopted.stderr
    assert "+transom launch -n 2" in adopted.stdout and "-srun -n 2" in adopted.stdout

    run = person.start("train.transom.sbatch")
    person.wait(run, lambda v: v["step"] >= STEPS // 2 + 20, patience=SLOW)
    faults.kill_node(sandbox, "node2")
    view = person.wait(run, over, patience=SLOW)

    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 1)
    assert [x[0] for x in view["excluded"]] == ["node2"]
    assert second.read_text() == undisturbed and first.exists()
    assert (person.cwd / "finished.txt").read_text() == "finished with cuda/12.4\n"
    starts = {line.split()[0] for line in (person.cwd / "monitor.log").read_text().splitlines() if " " in line.strip()}
    assert "1" in starts, "the monitor runs again with the script"
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered" and "node2 lost" in incident["message"]
    steps = [(r["job_step"], r["status"]) for r in written(run, 1) if r["type"] == "job_step"]
    assert steps == [("1", "done"), ("2", "done")]
    assert [r["launch"] for r in written(run, 1) if r["type"] == "launch"] == [0, 1]
    resumed = (run.attempt(view["job_id"], 1).logs(1) / "rank-0.log").read_text()
    assert int(resumed.split("from step ")[1].partition(",")[0]) > STEPS // 2


ALONE = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=alone.out
trap 'exit 143' TERM
transom launch --name first {first} || exit 7
echo "between" >> told
code=0
transom launch --once --name second -- {second} || code=$?
echo "second: $code" >> told
transom launch --name third --checkpoints third {third} || echo "third: $?" >> told
transom launch --once --name first -- false && echo "first was skipped" >> told
"""


@pytest.mark.timeout(180)
def test_plain_sbatch_gets_a_launcher_without_an_operator(person: Person, sandbox: Sandbox) -> None:
    first = shlex.join((*COMMAND, "--steps", "8"))
    second = shlex.join((*COMMAND, "--steps", "25", "--end", "9", "--at", "14", "--rank", "1", "--launch", "1"))
    third = shlex.join((*COMMAND, "--steps", "8", "--end", "error", "--at", "1", "--always"))
    (person.cwd / "alone.sbatch").write_text(ALONE.format(first=first, second=second, third=third))
    env = {**os.environ, **person.env, "TRANSOM_ROOT": str(person.root), "TRANSOM_AUTO_BEAT": "false"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    submitted = subprocess.run(
        ["sbatch", "--parsable", "alone.sbatch"], env=env, cwd=person.cwd, capture_output=True, text=True, check=True
    )
    job_id = int(submitted.stdout)
    told = person.cwd / "told"
    until(lambda: told.exists() and "first was skipped" in told.read_text(), patience=90)
    assert told.read_text().splitlines() == ["between", "second: 0", "third: 1", "first was skipped"]
    (path,) = (p for p in person.root.iterdir() if p.is_dir())
    run = RunDir(path)
    out = (person.cwd / "alone.out").read_text()
    assert f"`transom attach {run.run_id}`" in out
    records = written(run)
    assert next((r["job_step"], r["launch"]) for r in records if r["type"] == "launch") == ("first", 0)
    launches = [r["launch"] for r in records if r["type"] == "launch"]
    assert launches == list(range(len(launches))) and len(launches) >= 4, "numbered on, and one relaunch in between"
    assert sandbox.slurm("squeue", "--me", "--noheader", "--format=%i").split() in ([], [str(job_id)])
    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, over)
    assert view["phase"] == "done", view


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tagged", [True, False], ids=["by-its-comment", "by-its-script"])
def test_requeued_job_of_plain_sbatch_finds_its_run(person: Person, sandbox: Sandbox, tagged: bool) -> None:
    """The requeue lets the launcher end its ranks; the next start continues in the same run directory."""
    train = shlex.join((*COMMAND, "--steps", "60", "--delay", "0.2"))
    (person.cwd / "again.sbatch").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --requeue --output=again.out --open-mode=append\n"
        f"trap 'exit 143' TERM\ntransom launch -- {train}\necho over >> over\n"
    )
    env = {**os.environ, **person.env, "TRANSOM_ROOT": str(person.root), "TRANSOM_AUTO_BEAT": "false"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    words = ["sbatch", "--parsable", *([] if tagged else ["--comment=ours"]), "again.sbatch"]
    job_id = subprocess.run(words, env=env, cwd=person.cwd, capture_output=True, text=True, check=True).stdout.strip()
    until(lambda: any(person.root.glob("*/checkpoints/step-10")) if person.root.exists() else False)
    sandbox.slurm("scontrol", "requeue", job_id)
    until(lambda: "JobState=PENDING" in sandbox.slurm("scontrol", "show", "job", job_id))
    sandbox.slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    until(lambda: (person.cwd / "over").exists(), patience=120)
    (path,) = (p for p in person.root.iterdir() if p.is_dir())
    assert sorted(p.name for p in (path / "attempts").iterdir()) == [f"{job_id}.0", f"{job_id}.1"]
    log = (path / "attempts" / f"{job_id}.1" / "logs" / "0" / "rank-0.log").read_text()
    assert int(log.split("from step ")[1].split()[0]) >= 10
    said = [
        json.loads(line) for line in (path / "attempts" / f"{job_id}.0" / "launcher.jsonl").read_text().splitlines()
    ]
    assert said[-1]["type"] == "outcome" and said[-1]["status"] == "stopped", "it outlived the shell's TERM"


@pytest.mark.timeout(SLOW + 100)
def test_script_saves_before_its_time_limit_and_continues(person: Person, tmp_path: Path) -> None:
    """Nothing in the script requests a warning of Slurm; the launcher knows when the time is up."""
    train = shlex.join(remembering(tmp_path / "final", "--delay", "0.5"))
    (person.cwd / "limit.sbatch").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1\ntrap 'exit 143' TERM\ntransom launch {train}\n"
    )
    run = person.start("limit.sbatch")
    view = person.wait(run, lambda v: v["starts"] == 1 and v["step"] > 0, patience=SLOW)
    (left,) = (r for r in written(run) if r["type"] == "outcome")
    assert left["status"] == "left" and "the time limit is near; step" in left["why"], left
    assert left["exit_code"] == 75
    log = (run.attempt(view["job_id"], 1).logs(0) / "rank-0.log").read_text()
    assert int(log.split("from step ")[1].split()[0]) > 0
    assert person.transom("stop", run.run_id).returncode == 0
