"""Against a real sbatch: it reads #SBATCH lines as we do, and rendered scripts survive it whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.errors import UsageError
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.submit.directives import _sbatch_lines, read_directives
from transom_cli.submit.render import render_script
from transom_cli.submit.script import inspect_script

pytestmark = pytest.mark.sandbox

READ_ALIKE = [
    r"#SBATCH --comment=a\\\"b -N1 --job-name=\#x # -N2",
    "#SBATCH --job-name=a\\ -N1",
    r"""#SBATCH --comment='it\'s' --job-name="q\"\\\$" """,
    "#SBATCH -J a#b -N2",
    "#SBATCH\t-J\ttabs\n\n \t# comment\n#SBATCH -HN1",
    " #SBATCH -N2\n# SBATCH -N2\n#sbatch -N2\n##SBATCH -N2",
    "#SBATCH -N1\ntrue\n#SBATCH -N2",
    "#SBATCH --no-req --exclusive -k --mem 100",
    '#SBATCH --comment="a hetjob b" -J "x : y"',
    "#SBATCH --job-name=ends\\",
    "#SBATCH -N1 '' --job-name=unread",
    "#SBATCH --job-name=\u00a0a",
]
REFUSED_ALIKE = ['#SBATCH -J "open', "#SBATCH -n1 : -n2", "#PBS -J 0-1", "true\n#PBS -t 0-1"]


def dry(
    sandbox: Sandbox, env: dict[str, str], folder: Path, body: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    script = folder / "s.sh"
    script.write_text(f"#!/bin/sh\n{body}\ntrue\n")
    argv = ["sbatch", "-vvv", "--test-only", script]
    return script, subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("body", READ_ALIKE)
def test_directives_are_split_as_by_sbatch(
    sandbox: Sandbox, slurm_env: dict[str, str], tmp_path: Path, body: str
) -> None:
    script, said = dry(sandbox, slurm_env, tmp_path, body)
    theirs = re.findall(r'Found in script, argument "(.*)"', said.stderr)
    assert [word for _, words in _sbatch_lines(script.read_text()) for word in words] == theirs, said.stderr
    name = re.search(r"^sbatch: job-name +: (.*)$", said.stderr, re.MULTILINE)
    assert (inspect_script(script.read_text()).job_name or None) == (name[1] if name else None)


@pytest.mark.parametrize("body", REFUSED_ALIKE)
def test_what_we_refuse_is_what_sbatch_sees(
    sandbox: Sandbox, slurm_env: dict[str, str], tmp_path: Path, body: str
) -> None:
    script, said = dry(sandbox, slurm_env, tmp_path, body)
    assert said.returncode != 0 or re.search(r"^sbatch: array +: ", said.stderr, re.MULTILINE), said.stderr
    with pytest.raises(UsageError):
        inspect_script(script.read_text())


def test_a_rendered_script_runs_with_every_value_whole(
    sandbox: Sandbox, slurm_env: dict[str, str], short_dir: Path
) -> None:
    run_dir = short_dir / 'it\'s "a" #run 100%j $HOME'
    run_dir.mkdir()
    stub = run_dir / "py thon"
    fields = "[sys.argv[1:], os.getcwd(), os.environ['SLURM_JOB_NAME'], os.environ['SLURM_NTASKS_PER_NODE']]"
    stub.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps({fields}))\n")
    stub.chmod(0o755)
    command = ["python", "two\nlines", "it's", '"q"', "$HOME", ""]
    flags = {
        "name": "job \"x\" 'y' \\z",
        "launch.python": str(stub),
        "job.gpus_per_node": 2,
        "job.nodes": 2,
        "job.chdir": str(run_dir),
        "job.time": "5",
        "job.sbatch": ["--mail-user=a b", "--overcommit"],
    }
    text = render_script(load(None, flags, site=None, user=Path("/nonexistent")), run_dir, command)
    assert len(read_directives(text)) == 12
    (run_dir / "job.sbatch").write_text(text)
    submitted = subprocess.run(
        ["sbatch", "--parsable", run_dir / "job.sbatch"], env=slurm_env, capture_output=True, text=True, timeout=60
    )
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    log = run_dir / f"slurm-{job}.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.read_text().endswith("\n")):
        time.sleep(0.1)
    assert log.exists(), (sorted(run_dir.iterdir()), sandbox.slurm("scontrol", "show", "job", job))
    argv, folder, name, tasks = json.loads(log.read_text())
    assert argv[argv.index("--") + 1 :] == command and str(run_dir) in argv
    assert (folder, name, tasks) == (str(run_dir), flags["name"], "2")
    shown = sandbox.slurm("scontrol", "show", "job", job)
    assert "Requeue=1" in shown and "NumNodes=2" in shown and "gpu" in shown
