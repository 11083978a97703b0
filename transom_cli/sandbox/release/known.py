"""Which releases can be had, what is taken from each, and which Slurm in them transom knows. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import TransomError, UsageError

NATIVE = "native"  # what this machine itself has installed
KNOWN_SLURM = ((24, 11), (25, 11), (26, 5))  # releases whose text and plugins were tried
# Their programs are what a sandbox runs; all else that is fetched only serves these.
PROGRAM_PACKAGES = ("slurm-client", "slurmctld", "slurmd", "slurmdbd", "munge")
_COMMON = (*PROGRAM_PACKAGES, "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin", "patchelf")
_TO_BUILD_PYSLURM = ("libslurm-dev", "python3-dev", "python3-venv", "gcc", "libc6-dev")


@dataclass(frozen=True)
class Release:
    """``pyslurm``: the version on PyPI that builds against this release's Slurm; empty where none does."""

    name: str
    packages: tuple[str, ...]
    pyslurm: str = ""


RELEASES = {
    release.name: release
    for release in (
        Release("trixie", _COMMON),
        Release("forky", (*_COMMON, *_TO_BUILD_PYSLURM), pyslurm="25.11.2"),
    )
}


@dataclass(frozen=True)
class ReleaseHome:
    """Where a built release lies. It cannot be moved: its programs hold their libraries' full paths."""

    path: Path

    @property
    def root(self) -> Path:
        return self.path / "root"  # the unpacked packages

    @property
    def bin(self) -> Path:
        return self.path / "bin"  # links to the programs of PROGRAM_PACKAGES alone: a PATH with this hides nothing else

    @property
    def plugins(self) -> Path:
        return self.path / "plugins"  # a link to Slurm's plugins (PluginDir)

    @property
    def python(self) -> Path:
        return self.path / "venv" / "bin" / "python"  # has transom's own requirements and pyslurm


def find_release(name: str) -> Release:
    if name not in RELEASES:
        raise UsageError(f"There is no release {name!r}", f"known are {', '.join((NATIVE, *RELEASES))}")
    return RELEASES[name]


def check_folder(path: Path) -> None:
    """It goes into slurm.conf and into the programs' own search paths, neither of which has any quoting."""
    odd = "".join(sorted(set(re.sub(r"[A-Za-z0-9_./+@~-]", "", str(path)))))
    if odd:
        raise UsageError(
            f"Releases of Slurm cannot be kept in {path}",
            f"these characters are not possible in the path: {odd!r}",
            "transom sandbox up --release-dir /tmp/releases",
        )


def check_slurm(release: str, version: tuple[int, int]) -> None:
    """Refuse a Slurm that nobody has tried with transom: a Debian release that is not out yet moves on."""
    if version not in KNOWN_SLURM:
        known = ", ".join(f"{major}.{minor:02}" for major, minor in KNOWN_SLURM)
        raise TransomError(
            f"The Slurm of Debian {release} is {version[0]}.{version[1]:02} now, which this transom does not know",
            f"known are {known}",
            "run the tests on another release, or on this machine's own Slurm: --release native",
        )


def check_mirror(url: str) -> str:
    """The address of a Debian archive as it may stand in apt's sources.list."""
    if not re.fullmatch(r"(https?|file|copy|ftp)(\+[a-z]+)?:[A-Za-z0-9._~:/@%+-]+", url):
        raise UsageError(f"This is no address of a Debian mirror: {url!r}", hint="--mirror http://HOST/debian")
    return url
