"""Fetch a release's packages and unpack them into a folder, as an ordinary user may: nothing is installed.

apt is given a state of its own in which no package is installed, so that it resolves everything; no maintainer script
runs, and nothing is mounted.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.sandbox.release import mirror
from transom_cli.sandbox.release.building import Building
from transom_cli.sandbox.release.known import PROGRAM_PACKAGES, Release

_MERGED = ("bin", "sbin", "lib", "lib64")  # links into usr/, as in every Debian of today
_NOT_NEEDED = ("doc", "man", "locale", "info", "lintian", "bash-completion")  # of usr/share


def fetch(building: Building, release: Release, url: str) -> list[Path]:
    """Download the release's packages with all that these depend on; the files, by name."""
    apt = building.scratch / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "etc/parts"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    if not mirror.KEYRING.exists():
        raise TransomError(
            "Debian's keys are not on this machine, so its packages cannot be checked",
            f"there is no {mirror.KEYRING}",
            "apt-get install debian-archive-keyring",
        )
    (apt / "etc" / "sources.list").write_text(f"deb [signed-by={mirror.KEYRING}] {url} {release.name} main\n")
    (apt / "etc" / "apt.conf").write_text(_apt_conf(apt))
    env = {"APT_CONFIG": str(apt / "etc" / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
    building.run(["apt-get", "--quiet", "--error-on=any", "update"], env)
    building.run(["apt-get", "--quiet", "--yes", "--download-only", "install", *release.packages], env)
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _apt_conf(apt: Path) -> str:
    """This file is read first: of the machine's own settings only those stay that are named in it."""
    own = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": f"{apt}/etc/parts",
        "Dir::Etc::sourcelist": f"{apt}/etc/sources.list",
        "Dir::Etc::sourceparts": f"{apt}/etc/parts",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": f"{apt}/etc/parts",
        "Dir::State": str(apt),
        "Dir::State::lists": f"{apt}/lists",
        "Dir::State::status": f"{apt}/status",
        "Dir::Cache": f"{apt}/cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",  # the folder may be one that apt's own user cannot enter
        "Acquire::Check-Valid-Until": "false",  # mirrors of a release in the making lag; its signatures are checked
        "Acquire::Languages": "none",
    }
    return "\n".join([mirror.host_settings(), *(f'{key} "{value}";' for key, value in own.items()), ""])


def unpack(building: Building, archives: Iterable[Path], root: Path) -> None:
    """Unpack without owners and setuid bits: these programs serve a sandbox, nobody's login."""
    (root / "usr").mkdir(parents=True)
    for name in _MERGED:
        (root / "usr" / name).mkdir()
        (root / name).symlink_to(f"usr/{name}")
    excluded = [f"--exclude=./usr/share/{name}" for name in _NOT_NEEDED]
    for archive in archives:
        building.pipe(
            ["dpkg-deb", "--fsys-tarfile", str(archive)],
            ["tar", "--extract", f"--directory={root}", "--keep-directory-symlink", "--no-same-owner",
             "--no-same-permissions", *excluded],
        )  # fmt: skip
    for program in [*(root / "usr" / "bin").glob("*-wlm"), *(root / "usr" / "sbin").glob("*-wlm")]:
        program.rename(program.with_name(program.name.removesuffix("-wlm")))  # what Debian's alternatives would link


def link_programs(archives: Sequence[Path], root: Path, into: Path) -> None:
    """Links in `into` to the programs of Slurm and munge."""
    into.mkdir()
    for archive in archives:
        if archive.name.partition("_")[0] not in PROGRAM_PACKAGES:
            continue
        listed = subprocess.run(["dpkg-deb", "--contents", str(archive)], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            path = line.split(" -> ")[0].split()[-1]
            name = Path(path).name.removesuffix("-wlm")
            if path.startswith(("./usr/bin/", "./usr/sbin/")) and not path.endswith("/"):
                (into / name).symlink_to(root / Path(path).parent / name)


def find_plugins(root: Path) -> Path:
    found = next((root / "usr" / "lib").glob("*/slurm-wlm/libslurmfull.so"), None)
    if found is None:
        raise TransomError("The packages hold no Slurm as it is known", f"no libslurmfull.so under {root}/usr/lib")
    return found.parent


def remove_tree(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
