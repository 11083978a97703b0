""".ci/run with everything it calls made up: a release that cannot be made fails nothing, and is told last."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

RUN = Path(__file__).resolve().parent.parent / ".ci" / "run"
MADE = 'case "$*" in *--obtain*) echo built;; *--read*) echo "| 26.05 | kept |";; esac'
HANGS = 'case "$*" in *--obtain*forky) sleep 300 & echo $! > child; wait;; esac'


def run_ci(tree: Path, make: str = "", python: str = MADE, **changed: int) -> subprocess.CompletedProcess[str]:
    """In a tree of its own. `make`, `python`: what stands in their place, as sh; `changed`: settings of the script."""
    text = RUN.read_text()
    for name, value in changed.items():
        text = re.sub(rf"^{name}=\d+", f"{name}={value}", text, flags=re.MULTILINE)
    make = f'shift\necho "make $*"\n{make}'
    for path, script in {"bin/make": make, ".venv/bin/python": python}.items():
        write(tree / path, f"#!/bin/sh\n{script}\n")
    write(tree / ".ci" / "run", text)
    env = {**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run([tree / ".ci" / "run"], capture_output=True, text=True, timeout=120, env=env)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)


def test_releases_are_made_beside_the_rest_and_tried_last(tmp_path: Path) -> None:
    done = run_ci(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.removeprefix("make ") for line in done.stdout.splitlines() if line.startswith("make ")] == [
        "setup", "check", "demo", "test-slurm RELEASES=forky", "test-slurm RELEASES=trixie"
    ]  # fmt: skip
    assert done.stdout.splitlines()[-2] == "| 26.05 | kept |", "nothing is missing"


def test_a_release_that_cannot_be_made_fails_nothing_and_is_told_last(tmp_path: Path) -> None:
    done = run_ci(tmp_path, python='case "$*" in *--obtain*forky) echo "no mirror"; exit 1;; esac')
    assert done.returncode == 0 and "RELEASES=forky" not in done.stdout and "RELEASES=trixie" in done.stdout
    *_, told, reason, end = done.stdout.splitlines()
    assert told == "ci: NOT TRIED on forky: it was not made (exit 1; 124: not within 720 s)"
    assert reason == "ci: no mirror" and end.startswith("ci: passed")


def test_a_release_without_pyslurm_is_tried_and_that_is_told(tmp_path: Path) -> None:
    done = run_ci(tmp_path, python='case "$*" in *--obtain*forky) echo "forky: without pyslurm: no index";; esac')
    assert done.returncode == 0 and "RELEASES=forky" in done.stdout
    assert done.stdout.splitlines()[-2] == "ci: forky: without pyslurm: no index"


def test_a_making_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    done = run_ci(tmp_path, python=HANGS, MAKING_LIMIT=1)
    assert done.returncode == 0 and "ci: NOT TRIED on forky: it was not made (exit 124" in done.stdout
    assert ended(int((tmp_path / "child").read_text()))


def test_where_too_much_time_is_over_releases_are_left_out(tmp_path: Path) -> None:
    done = run_ci(tmp_path, make="sleep 0.4", LAST_START=0)
    assert done.returncode == 0 and "RELEASES=" not in done.stdout
    assert re.search(r"ci: NOT TRIED on trixie: \d+ s were over when its turn came, more than 0", done.stdout)


def test_a_contract_that_is_broken_fails(tmp_path: Path) -> None:
    done = run_ci(tmp_path, make='[ "$1" != test-slurm ]')
    assert done.returncode == 1 and "ci: passed" not in done.stdout


def test_a_check_that_fails_ends_the_making_too(tmp_path: Path) -> None:
    done = run_ci(tmp_path, '[ "$1" != check ] || { while [ ! -s child ]; do sleep 0.1; done; exit 2; }', HANGS)
    assert done.returncode == 2 and ended(int((tmp_path / "child").read_text()))


def ended(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
