"""The known releases, their packages, and the Slurm versions in them that transom supports. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import TransomError, UsageError

NATIVE = "native"  # the Slurm that is installed on this machine
KNOWN_SLURM = ((24, 11), (25, 11), (26, 5))  # releases whose output and plugins were tested
# A sandbox runs the programs of these; everything else only supports them.
PROGRAM_PACKAGES = ("slurm-client", "slurmctld", "slurmd", "slurmdbd", "munge")
_COMMON = (*PROGRAM_PACKAGES, "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin", "patchelf")
_TO_BUILD_PYSLURM = ("libslurm-dev", "python3-dev", "python3-venv", "gcc", "libc6-dev")


class ReleaseFailed(TransomError):
    advice = "use the Slurm of this machine: transom sandbox up --release native"


@dataclass(frozen=True)
class Release:
    """A Debian release. pyslurm: the version on PyPI that builds with its Slurm, "" if there is none."""

    name: str
    packages: tuple[str, ...]
    pyslurm: str = ""


RELEASES = {
    release.name: release
    for release in (Release("trixie", _COMMON), Release("forky", (*_COMMON, *_TO_BUILD_PYSLURM), pyslurm="25.11.2"))
}


@dataclass(frozen=True)
class ReleaseHome:
    """The folder of a built release. It cannot be moved: its programs contain the full paths of their libraries."""

    path: Path

    @property
    def root(self) -> Path:
        return self.path / "root"  # the unpacked packages

    @property
    def bin(self) -> Path:
        return (
            self.path / "bin"
        )  # links only to the programs of PROGRAM_PACKAGES, so that it hides nothing else in PATH

    @property
    def plugins(self) -> Path:
        return self.path / "plugins"  # a link to Slurm's plugins (PluginDir)

    @property
    def python(self) -> Path:
        return self.path / "venv" / "bin" / "python"  # with transom's requirements and pyslurm


def find_release(name: str) -> Release:
    if name not in RELEASES:
        raise UsageError(f"Unknown release {name!r}", f"known: {', '.join((NATIVE, *RELEASES))}")
    return RELEASES[name]


def check_folder(path: Path) -> None:
    """Check the path for slurm.conf and for the programs' search paths, which have no quoting."""
    odd = "".join(sorted(set(re.sub(r"[A-Za-z0-9_./+@~-]", "", str(path)))))
    if odd:
        raise UsageError(
            f"Releases of Slurm cannot be stored in {path}",
            f"the path cannot contain these characters: {odd!r}",
            "transom sandbox up --release-dir /tmp/releases",
        )


def check_slurm(release: str, version: tuple[int, int]) -> None:
    """Refuse a Slurm that was not tested with transom: an unreleased Debian changes its packages."""
    if version not in KNOWN_SLURM:
        known = ", ".join(f"{major}.{minor:02}" for major, minor in KNOWN_SLURM)
        raise TransomError(
            f"The Slurm of Debian {release} is now {version[0]}.{version[1]:02}, which this transom does not support",
            f"supported: {known}",
            "use another release, or this machine's own Slurm: --release native",
        )


def check_mirror(url: str) -> str:
    """Return the address of a Debian archive if it is valid in apt's sources.list."""
    if not re.fullmatch(r"(https?|file|copy|ftp)(\+[a-z]+)?:[A-Za-z0-9._~:/@%+-]+", url):
        raise UsageError(f"Not a valid address of a Debian mirror: {url!r}", hint="--mirror http://HOST/debian")
    return url
