"""scripts/setup.sh where it cannot help itself: it says what is missing, and changes nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def setup_with(tools: Path, **scripts: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script with nothing on PATH but `dirname` and the given scripts, by name."""
    (tools / "bin").mkdir()
    (tools / "scripts").mkdir()
    (tools / "bin" / "dirname").symlink_to(str(shutil.which("dirname")))
    for name, text in scripts.items():
        program = tools / "bin" / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    copy = shutil.copy(ROOT / "scripts" / "setup.sh", tools / "scripts")
    bash = str(shutil.which("bash"))
    env = {"PATH": str(tools / "bin")}
    return subprocess.run([bash, copy], capture_output=True, text=True, timeout=60, env=env)


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


def test_missing_packages_are_installed_through_sudo_without_questions(tmp_path: Path) -> None:
    """Ends with the install, made to fail here, so that nothing after it is tried."""
    sudo = 'echo "sudo $*" >&2; case "$*" in *" install "*) exit 7;; esac'
    done = setup_with(tmp_path, apt_get="exit 9", dpkg_query="exit 1", id="echo 1000", sudo=sudo)
    assert done.returncode == 7
    told = [line for line in done.stderr.splitlines() if line.startswith("sudo ")]
    quiet = "sudo env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -q -y"
    assert told[0] == f"{quiet} update"
    assert told[1].startswith(f"{quiet} install --no-install-recommends slurmctld slurmd ")
