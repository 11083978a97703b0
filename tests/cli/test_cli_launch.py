"""`transom launch` and `transom adopt` at a shell, and `transom run` inside a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.submit import prepare

SCRIPT = "#!/bin/bash\n#SBATCH -N 2\nmodule load cuda\nsrun hostname\nsrun -l \\\n  python train.py\n"


def transom(cwd: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    kept |= {"HOME": str(cwd), "TRANSOM_ROOT": str(cwd / "runs"), **env}
    argv = [sys.executable, "-m", "transom_cli", *words]
    return subprocess.run(argv, cwd=cwd, env=kept, capture_output=True, text=True, timeout=60, check=False)


def test_launch_outside_a_job_says_where_it_belongs(tmp_path: Path) -> None:
    done = transom(tmp_path, "launch", "--cpu-bind=cores", "python", "train.py")
    assert done.returncode == 2
    assert "`transom launch` runs inside a Slurm job's batch script" in done.stderr
    assert "transom run train.sbatch" in done.stderr and "Traceback" not in done.stderr


def test_adopt_writes_a_copy_and_shows_the_difference(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(SCRIPT)
    script.chmod(0o750)
    done = transom(tmp_path, "adopt", "train.sbatch")
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "train.transom.sbatch"
    assert "transom launch -l \\\n  python train.py\n" in copy.read_text() and script.read_text() == SCRIPT
    assert copy.stat().st_mode & 0o777 == 0o750
    assert "-srun -l \\" in done.stdout and "+transom launch -l \\" in done.stdout
    assert "line 4 is left as it is: hostname is no training" in done.stderr
    copy.write_text("mine")
    assert transom(tmp_path, "adopt", "train.sbatch").returncode == 2 and copy.read_text() == "mine"
    assert transom(tmp_path, "adopt", "train.sbatch", "--force").returncode == 0 and copy.read_text() != "mine"
    again = transom(tmp_path, "adopt", "train.transom.sbatch")
    assert again.returncode == 2 and "it uses `transom launch` already" in again.stderr


def test_run_names_the_word_to_change(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    done = transom(tmp_path, "run", "--dry-run", "train.sbatch")
    assert done.returncode == 0, done.stderr
    assert "note: train.sbatch, line 5: write `transom launch` in place of `srun`" in done.stderr
    assert done.stdout == SCRIPT, "and submits it as it is"


def test_spares_in_a_script_keep_the_job_alive_without_a_node(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SCRIPT.replace("srun -l", "transom launch --spares 1"))
    assert "--no-kill" in transom(tmp_path, "run", "--dry-run", "train.sbatch").stderr


def test_run_inside_a_job_says_what_follows(tmp_path: Path) -> None:
    inside = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"}
    done = transom(tmp_path, "run", "--dry-run", "--", "true", **inside)
    assert "note: this shell is in job 12: the run gets a job of its own" in done.stderr
    assert "warning: an operator that starts here ends with job 12" in done.stderr and "--operator job" in done.stderr
    done = transom(tmp_path, "run", "--dry-run", "--", "true", SLURM_JOB_ID="12")
    assert "warning" not in done.stderr, "salloc on a login node"


def test_run_takes_no_variables_of_the_job_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "PMI_RANK", "CUDA_VISIBLE_DEVICES")
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "NCCL_DEBUG")
    for name in (*outer, *kept):
        monkeypatch.setenv(name, "1")
    prepare.leave_outer_job()
    assert not any(name in os.environ for name in outer) and all(name in os.environ for name in kept)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    prepare.leave_outer_job()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1", "outside a job it is the user's own"


@pytest.mark.parametrize("given", ["2-4", "2:4"])
def test_a_range_of_nodes_is_one_to_shrink_in(tmp_path: Path, given: str) -> None:
    done = transom(tmp_path, "run", "--dry-run", "-N", given, "--", "true")
    assert done.returncode == 0, done.stderr
    assert "--nodes=4" in done.stdout and "--no-kill" in done.stdout, "a job without it ends with its first lost node"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("two", "`--nodes two` is not a number of nodes"),
        ("4-2", "`--nodes 4-2` has the larger number first\n\nhint: put the smaller number first: --nodes 2-4"),
        ("0", "`--nodes 0` is not a number of nodes"),
    ],
)
def test_what_is_no_number_of_nodes_is_refused(tmp_path: Path, given: str, words: str) -> None:
    done = transom(tmp_path, "run", "--dry-run", "-N", given, "--", "true")
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
