"""Fetch a release's packages, unpack them into a folder, and make their programs run there, as an ordinary user.

Nothing is installed and no maintainer script runs. apt gets its own state without installed packages, so that it
resolves all dependencies, and uses the Debian mirror and the fetch settings of this machine's apt.

Each program gets the full path of its own loader and libraries (ELF interpreter and DT_RPATH, with patchelf). Unlike
LD_LIBRARY_PATH, this affects only the program itself: what a Slurm job runs is the machine's own again. There is no
chroot, no mount, and no root.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.errors import TransomError, UsageError, printable
from transom_cli.sandbox.release.known import PROGRAM_PACKAGES, Release, ReleaseFailed

_PATIENCE_S = 1800.0  # for one program: a mirror may be slow


@dataclass(frozen=True)
class Building:
    """The build of a release: where it writes, how it runs programs, and how it reports progress.

    Attributes:
        scratch: emptied when the build ends.
        log: keeps the output of all programs.
        lock: the builder's lock, as an open file. The programs inherit it: one that survives a killed builder still
            writes.
    """

    scratch: Path
    log: Path
    say: Callable[[str], None]
    lock: int | None = None

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a program. Raises TransomError with the end of its output."""
        with self.log.open("ab", buffering=0) as log:
            log.write(f"+ {' '.join(argv)}\n".encode())
            self._ended(argv, self._start(argv, env, stdout=log, stderr=log))

    def pipe(self, first: Sequence[str], second: Sequence[str]) -> None:
        """Run `first | second`."""
        with self.log.open("ab", buffering=0) as log:
            source = self._start(first, stdout=subprocess.PIPE, stderr=log)
            assert source.stdout is not None
            with source.stdout:
                sink = self._start(second, stdin=source.stdout, stdout=log, stderr=log)
            self._ended(second, sink)
            self._ended(first, source)

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, stdin: Any = subprocess.DEVNULL, **out: Any
    ) -> subprocess.Popen[bytes]:
        held = (self.lock,) if self.lock is not None else ()
        try:
            return subprocess.Popen(argv, env={**os.environ, **(env or {})}, stdin=stdin, pass_fds=held, **out)
        except FileNotFoundError as error:
            raise ReleaseFailed(f"`{argv[0]}` is not installed on this machine", str(error)) from error

    def _ended(self, argv: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        try:
            code = process.wait(timeout=_PATIENCE_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            what = f"`{Path(argv[0]).name}` did not end within {_PATIENCE_S / 60:.0f} minutes"
            raise TransomError(what, hint=f"less {self.log}") from error
        if code != 0:
            words = self.log.read_text(errors="replace").splitlines()[-5:]
            raise TransomError(
                f"`{Path(argv[0]).name}` failed (exit {code})", "\n".join(map(printable, words)), f"less {self.log}"
            )


KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TARGETS = [
    "apt-get",
    "indextargets",
    "--format",
    "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)",
    "Created-By: Packages",
]


def host_mirror() -> str:
    """Return the Debian mirror of this machine's apt. Raises UsageError if it has none."""
    found = debian_archive(_words(_TARGETS))
    if not found:
        raise UsageError(
            "This machine's apt has no Debian mirror",
            "`apt-get indextargets` lists no archive with origin and label Debian (run `apt-get update` first?)",
            "transom sandbox up --release NAME --mirror http://HOST/debian",
        )
    return found


def debian_archive(targets: str) -> str:
    """Return the first archive of Debian itself in apt's list (origin|label|component|address), or ""."""
    rows = (line.split("|", 3) for line in targets.splitlines() if line.count("|") >= 3)
    found = (
        uri for origin, label, component, uri in rows if (origin, label, component) == ("Debian", "Debian", "main")
    )
    return next(found, "")


def host_settings() -> str:
    """Return how this machine's apt fetches (proxies, certificates, timeouts), in the syntax of apt.conf."""
    lines = _words(["apt-config", "dump"]).splitlines()
    return "\n".join(line for line in lines if line.startswith("Acquire::"))


def _words(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    except FileNotFoundError as error:
        raise TransomError(
            "Another release of Slurm needs apt, which this machine does not have", str(error), "--release native"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ReleaseFailed(f"`{argv[0]}` did not end within 60 s") from error
    return done.stdout


_MERGED = ("bin", "sbin", "lib", "lib64")  # links into usr/, as in every current Debian
_NOT_NEEDED = ("doc", "man", "locale", "info", "lintian", "bash-completion")  # of usr/share


def fetch(building: Building, release: Release, url: str) -> list[Path]:
    """Download the release's packages and their dependencies; return the files, sorted by name."""
    apt = building.scratch / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "etc/parts"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    if not KEYRING.exists():
        raise TransomError(
            "Debian's keys are not installed, so its packages cannot be verified",
            f"there is no {KEYRING}",
            "apt-get install debian-archive-keyring",
        )
    (apt / "etc" / "sources.list").write_text(f"deb [signed-by={KEYRING}] {url} {release.name} main\n")
    (apt / "etc" / "apt.conf").write_text(_apt_conf(apt))
    env = {"APT_CONFIG": str(apt / "etc" / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
    building.run(["apt-get", "--quiet", "--error-on=any", "update"], env)
    building.run(["apt-get", "--quiet", "--yes", "--download-only", "install", *release.packages], env)
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _apt_conf(apt: Path) -> str:
    """Return an apt.conf that replaces the machine's settings, except those for fetching."""
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
        "APT::Sandbox::User": "",  # apt's own user may have no access to the folder
        "Acquire::Check-Valid-Until": "false",  # mirrors of an unreleased Debian lag; signatures are still verified
        "Acquire::Languages": "none",
    }
    return "\n".join([host_settings(), *(f'{key} "{value}";' for key, value in own.items()), ""])


def unpack(building: Building, archives: Iterable[Path], root: Path) -> None:
    """Unpack without owners and setuid bits, which a sandbox does not need."""
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
        program.rename(
            program.with_name(program.name.removesuffix("-wlm"))
        )  # the names that Debian's alternatives would give


def link_programs(archives: Sequence[Path], root: Path, into: Path) -> None:
    """Create links in `into` to the programs of Slurm and munge."""
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
        raise ReleaseFailed(
            "The packages contain no Slurm in the expected place", f"no libslurmfull.so under {root}/usr/lib"
        )
    return found.parent


def remove_tree(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


_HOLDING_PROGRAMS = ("usr/bin", "usr/sbin", "usr/libexec", "usr/lib/gcc")
_ELF = b"\x7fELF"
_LOADERS = b"/lib64/ld-linux", b"/lib/ld-linux"


def relocate(building: Building, root: Path, plugins: Path) -> None:
    """Make the programs in `root` use the release's loader and libraries.

    Args:
        plugins: beside the libraries of the release; contains libslurmfull.so.
    """
    libraries = plugins.parent
    loader = next(libraries.glob("ld-linux*.so.*"), None)
    if loader is None:
        raise ReleaseFailed("The packages contain no loader in the expected place", f"no ld-linux*.so.* in {libraries}")
    tool = root / "usr" / "bin" / "patchelf"
    patchelf = [str(loader), "--library-path", str(libraries), str(tool)]
    for program in _programs(root):
        if program == tool:
            continue
        # In two steps, the libraries' path first: otherwise patchelf 0.18 writes a Python that crashes.
        building.run([*patchelf, "--force-rpath", "--set-rpath", f"{libraries}:{plugins}", str(program)])
        building.run([*patchelf, "--set-interpreter", str(loader), str(program)])


def _programs(root: Path) -> Iterator[Path]:
    """Yield dynamically linked programs, recognised by the loader's path in their first kilobytes."""
    for folder in _HOLDING_PROGRAMS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_symlink() or not path.is_file() or not path.stat().st_mode & 0o100:
                continue
            with path.open("rb") as file:
                head = file.read(4096)
            if head.startswith(_ELF) and any(name in head for name in _LOADERS):
                yield path
