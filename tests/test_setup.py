"""scripts/setup.sh where it cannot help itself: it says what is missing, and changes nothing."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def setup_with(tools: Path, *, answer: str | None = None, **scripts: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script with nothing on PATH but `dirname` and the given scripts, by name.

    answer: typed at a terminal; None: there is none. A script named in capitals is a variable instead.
    """
    (tools / "bin").mkdir()
    (tools / "scripts").mkdir()
    (tools / "bin" / "dirname").symlink_to(str(shutil.which("dirname")))
    for name, text in scripts.items():
        if name.isupper():
            continue
        program = tools / "bin" / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    copy = shutil.copy(ROOT / "scripts" / "setup.sh", tools / "scripts")
    bash = str(shutil.which("bash"))
    env = {"PATH": str(tools / "bin")} | {name: text for name, text in scripts.items() if name.isupper()}
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        stdin = subprocess.DEVNULL if answer is None else theirs
        return subprocess.run([bash, copy], stdin=stdin, capture_output=True, text=True, timeout=60, env=env)
    finally:
        os.close(ours), os.close(theirs)


def test_without_apt_the_missing_programs_are_named(tmp_path: Path) -> None:
    done = setup_with(tmp_path)
    assert done.returncode == 1
    assert "error: Not found on this machine: " in done.stderr
    assert "sbatch" in done.stderr
    assert "hint: only Debian and Ubuntu are set up automatically" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_without_root_and_sudo_the_command_for_an_admin_is_told(tmp_path: Path) -> None:
    installed = 'case "$*" in *munge*|*slurmd) echo installed;; *) exit 1;; esac'
    done = setup_with(tmp_path, apt_get="exit 9", dpkg_query=installed, id="echo 1000")
    assert done.returncode == 1
    missing = "slurmctld slurm-client slurm-wlm-basic-plugins slurmdbd mariadb-server fuse3 gcc libc6-dev python3-venv"
    assert f"error: Packages are missing, and there is no sudo to install them: {missing}" in done.stderr
    assert f"hint: ask an admin to run `apt-get install -y --no-install-recommends {missing}`" in done.stderr
    assert not (tmp_path / ".venv").exists()


SUDO = 'echo "sudo $*" >&2; case "$*" in *" install "*) exit 7;; esac'  # ends with the install, made to fail here
MISSING = {"apt_get": "exit 9", "dpkg_query": "exit 1", "sudo": SUDO}


@pytest.mark.parametrize("agreed", [{"YES": "1"}, {"CI": "1"}, {"answer": "y"}], ids=str)
def test_missing_packages_are_listed_and_installed_through_sudo(tmp_path: Path, agreed: dict[str, str]) -> None:
    done = setup_with(tmp_path, id="echo 1000", **MISSING, **agreed)  # type: ignore[arg-type]
    assert done.returncode == 7
    assert "setup:   slurmctld slurmd slurm-client" in done.stderr
    assert "the packages start services of their own: munge and mariadb" in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("sudo ")]
    quiet = "sudo env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -q -y"
    assert said[0] == f"{quiet} update"
    assert said[1].startswith(f"{quiet} install --no-install-recommends slurmctld slurmd ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [("n", "Nothing was installed."), ("", "Nothing was installed."), (None, "no terminal to ask")],
)
def test_nothing_is_installed_with_sudo_unless_somebody_agrees(
    tmp_path: Path, answer: str | None, message: str
) -> None:
    done = setup_with(tmp_path, answer=answer, id="echo 1000", **MISSING)
    assert done.returncode == 1 and message in done.stderr
    assert "hint: " in done.stderr and "make setup YES=1" in done.stderr
    assert "sudo env" not in done.stderr


def test_root_without_a_terminal_needs_no_answer(tmp_path: Path) -> None:
    """A container or a CI machine without a standard input."""
    done = setup_with(tmp_path, id="echo 0", env=SUDO, **MISSING)
    assert done.returncode == 7
    assert "setup:   slurmctld slurmd" in done.stderr


def test_interrupted_installation_ends_and_tries_nothing_else(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    pip = '*" install "*) echo "pip $*" >&2; kill -INT $PPID; exit 2'  # as pip does after Ctrl-C
    python.write_text(f'#!/bin/sh\ncase "$*" in *find_spec*) exit 1;; {pip};; esac\n')
    python.chmod(0o755)
    tools = {"cksum": "echo 1", "readlink": "echo 2", "cat": "exit 1"}
    done = setup_with(tmp_path, apt_get="exit 9", dpkg_query="echo installed", **tools)  # type: ignore[arg-type]
    assert done.returncode == 130 and "setup: interrupted; `make setup` continues" in done.stderr
    assert done.stderr.count(" install torch") == 1, done.stderr
