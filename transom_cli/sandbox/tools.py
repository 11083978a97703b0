"""The distribution's programs that a sandbox consists of: where they are, how to run them, and how to unmount."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from transom_cli.errors import SlurmUnreachable, TransomError

# program -> Debian and Ubuntu package
SLURM_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "squeue": "slurm-client",
    "scancel": "slurm-client",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "munged": "munge",
}
ACCOUNTING_PACKAGES = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_STATUS = "transom sandbox status"
_MARIADB = {"mariadbd", "mariadb-install-db"}  # suitable for any release of Slurm
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # sbin is not in a user's PATH


def callers_path(first: str) -> str:
    """Return the caller's PATH, as its jobs get it, after `first`."""
    return os.pathsep.join([first, os.environ.get("PATH") or _SYSTEM_PATH])


def search_path(first: str = "") -> str:
    return os.pathsep.join(filter(None, [first, os.environ.get("PATH", ""), _SYSTEM_PATH]))


def find_tools(accounting: bool = False, home: str = "") -> dict[str, Path]:
    """Return the path of every needed program. Raises SlurmUnreachable with the packages to install.

    Args:
        home: a release, whose Slurm is used instead of this machine's.
    """
    wanted = {**SLURM_PACKAGES, **(ACCOUNTING_PACKAGES if accounting else {})}
    places = {name: f"{home}/bin" if home and name not in _MARIADB else search_path() for name in wanted}
    found = {name: shutil.which(name, path=places[name]) for name in wanted}
    missing = [name for name, path in found.items() if path is None]
    if missing and home and not _MARIADB & set(missing):
        raise SlurmUnreachable(
            f"The release of Slurm in {home} no longer exists",
            f"not found: {', '.join(missing)}",
            f"transom sandbox up --release {Path(home).name} --release-dir {Path(home).parent}",
        )
    if missing:
        packages = sorted({wanted[name] for name in missing})
        sudo = "" if os.geteuid() == 0 else "sudo "
        raise SlurmUnreachable(
            "Slurm is not installed on this machine" + (" with its accounting" if accounting else ""),
            f"not found: {', '.join(missing)} (Debian and Ubuntu packages: {', '.join(packages)})",
            f"{sudo}apt-get install --no-install-recommends {' '.join(packages)}",
        )
    return {name: Path(path) for name, path in found.items() if path is not None}


def run_tool(argv: Sequence[str], env: Mapping[str, str], *, cwd: Path, timeout_s: float = 30.0) -> str:
    """Run one program and return its stdout. Raises TransomError with the program's own message."""
    name = Path(argv[0]).name
    program = shutil.which(argv[0], path=os.pathsep.join(filter(None, [env.get("PATH", ""), _SYSTEM_PATH])))
    if program is None:
        raise SlurmUnreachable(f"`{name}` is not installed on this machine", hint="transom doctor")
    try:
        done = subprocess.run(
            [program, *argv[1:]], env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SlurmUnreachable(f"`{name}` did not answer within {timeout_s:.0f} s", hint=_STATUS) from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()
        raise TransomError(f"`{' '.join([name, *argv[1:]])}` failed (exit {done.returncode})", words, _STATUS)
    return done.stdout


def slurm_release(slurmctld: Path) -> tuple[int, int]:
    """Return (22, 5) for `slurm-wlm 22.05.8`. Raises SlurmUnreachable if it prints no version."""
    words = run_tool([str(slurmctld), "-V"], os.environ, cwd=Path("/"))
    found = re.search(r"(\d+)\.(\d+)", words)
    if found is None:
        raise SlurmUnreachable(
            "Slurm's version cannot be determined", f"`slurmctld -V` printed: {words.strip()!r}", "transom doctor"
        )
    return int(found[1]), int(found[2])


def fusermount() -> str | None:
    return shutil.which("fusermount3") or shutil.which("fusermount")


def unmount(where: Path) -> None:
    """Unmount lazily: open files stay usable until they are closed. Does nothing if nothing is mounted."""
    argv = ["umount", "--lazy"] if os.geteuid() == 0 else [fusermount() or "fusermount3", "-u", "-z"]
    subprocess.run([*argv, str(where)], check=False, capture_output=True)


def mounted_by_fuse(where: Path) -> bool:
    lines = Path("/proc/mounts").read_text().splitlines()
    return any(line.split()[1:3] == [str(where), "fuse"] for line in lines)
