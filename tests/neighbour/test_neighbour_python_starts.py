"""What the automatic heartbeats cost a Python that is no rank: a loader worker, pip, a small tool."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.heartbeat import paths

FILE_CALLS = 15  # to find and read one compiled file in one more folder
CHILD = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', {code!r}], capture_output=True).stdout)"
WAITS = "import sys; print([type(one).__name__ for one in sys.meta_path].count('_Import'))"


def environment(tmp_path: Path, *, hook: bool) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_", "PYTHON"))}
    return {**clean, "TRANSOM_BEAT_DIR": str(tmp_path), "PYTHONPATH": paths.AUTO_BEAT_PATH if hook else str(tmp_path)}


def python(tmp_path: Path, *words: str, hook: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    made = environment(tmp_path, hook=hook) | env
    done = subprocess.run([sys.executable, *words], env=made, capture_output=True, text=True, check=True)
    return done


def imported(tmp_path: Path, *, hook: bool) -> set[str]:
    lines = python(tmp_path, "-X", "importtime", "-c", "pass", hook=hook).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines}


def test_a_python_start_imports_nothing_more(tmp_path: Path) -> None:
    assert imported(tmp_path, hook=True) - imported(tmp_path, hook=False) <= {"sitecustomize"}


def test_later_imports_do_not_look_into_its_folder(tmp_path: Path) -> None:
    assert paths.AUTO_BEAT_PATH not in python(tmp_path, "-c", "import sys; print(sys.path)").stdout
    assert python(tmp_path, "-c", CHILD.format(code=WAITS)).stdout == "b'1\\n'\n", "children still load it"


def test_children_of_a_rank_that_steps_wait_for_no_optimizer(tmp_path: Path) -> None:
    assert python(tmp_path, "-c", WAITS, TRANSOM_RANK_PID="7:1", SLURM_JOB_ID="7").stdout == "0\n"
    assert python(tmp_path, "-c", WAITS, TRANSOM_RANK_PID="7:1", SLURM_JOB_ID="8").stdout == "1\n", "a job it submitted"
    again = "import os, sys; os.environ['TRANSOM_RANK_PID'] = f':{os.getpid()}'; "
    again += f"os.execv(sys.executable, ['p', '-c', {WAITS!r}])"
    assert python(tmp_path, "-c", again).stdout == "1\n", "a rank that replaces itself by exec sends heartbeats again"


def test_a_python_start_makes_few_more_file_calls(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    compileall.compile_dir(paths.AUTO_BEAT_PATH, quiet=2)  # as pip does
    counts = []
    for hook in (False, True):
        log = tmp_path / f"calls-{hook}"
        command = [strace, "-f", "-e", "trace=file,desc", "-o", str(log), sys.executable, "-c", "pass"]
        done = subprocess.run(command, env=environment(tmp_path, hook=hook), capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"strace cannot trace here: {done.stderr}")
        calls = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines() if str(tmp_path) not in line]
        counts.append(sum(call.startswith(("open", "newfstatat", "stat", "access", "readlink")) for call in calls))
    assert counts[1] - counts[0] <= FILE_CALLS, counts
