"""Build a release in its folder, once, by one builder at a time; optionally with pyslurm.

`built.json` is written last. Without it, the folder is from an interrupted build and is rebuilt.

pyslurm gets a Python of the release, since this machine's Python cannot load the release's libraries. pyslurm has
the version numbers of Slurm and refuses to build with another release, which it recognises in slurm_version.h. The
release before the newest one builds nevertheless, with the changed names restored on the compiler's command line.
"""

import fcntl
import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError
from transom_cli.files import publish_text
from transom_cli.sandbox.release import packages
from transom_cli.sandbox.release.known import (
    Release,
    ReleaseFailed,
    ReleaseHome,
    check_folder,
    check_mirror,
    check_slurm,
    find_release,
)
from transom_cli.sandbox.release.packages import Building, relocate
from transom_cli.sandbox.tools import slurm_release

_CFLAGS = (
    "-w",
    "-DSLURM_BACKWARD_COMPAT",  # Slurm's own switch: job ids as plain numbers
    "-Dslurm_free_ctl_conf=slurm_free_conf",
    "-DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2007",
)


def build(building: Building, home: ReleaseHome, plugins: Path, version: str) -> None:
    """Create `home.python`. Takes a minute; fetches from the package index that pip is configured for."""
    usr = home.root / "usr"
    venv = home.python.parent.parent
    pip_wheel = next((usr / "share" / "python-wheels").glob("pip-*.whl"), None)
    if pip_wheel is None:
        raise ReleaseFailed("The packages contain no pip", f"no pip-*.whl in {usr}/share/python-wheels")
    building.run([str(usr / "bin" / "python3"), "-m", "venv", "--without-pip", str(venv)])
    pip = [str(home.python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-input"]
    building.run([*pip, "--no-index", "--no-deps", str(pip_wheel)], {"PYTHONPATH": str(pip_wheel)})
    requirements = [text for text in importlib.metadata.requires("transom-cli") or () if "extra ==" not in text]
    building.run([*pip, *requirements])
    env = {
        "PATH": f"{usr / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "CC": f"gcc --sysroot={home.root}",
        "CFLAGS": " ".join(_CFLAGS),
        "LDFLAGS": f"--sysroot={home.root}",
        "SLURM_INCLUDE_DIR": str(_headers(building.scratch / "include", usr / "include" / "slurm", version)),
        "SLURM_LIB_DIR": str(plugins),
    }
    building.run([*pip, "--no-binary", "pyslurm", f"pyslurm=={version}"], env)
    building.run([str(home.python), "-c", "import pyslurm"], {"PYSLURM_DISABLE_AUTO_INIT": "1"})


def _headers(into: Path, real: Path, version: str) -> Path:
    """Copy Slurm's headers, with pyslurm's version where its setup looks for it but the compiler does not."""
    (into / "slurm").mkdir(parents=True)
    for header in real.glob("*.h"):
        if header.name != "slurm_version.h":
            (into / "slurm" / header.name).symlink_to(header)
    major, minor, micro = (int(part) for part in version.split("."))
    guard = f"#if 0\n#define SLURM_VERSION_NUMBER 0x{major:02x}{minor:02x}{micro:02x}\n#endif\n"
    (into / "slurm" / "slurm_version.h").write_text((real / "slurm_version.h").read_text() + guard)
    return into


_MARKER = "built.json"
_SCHEMA = 1  # increase it when folders that an earlier transom built must be rebuilt
_FREE_MB = 1200


@dataclass(frozen=True)
class Obtained:
    """A built release. why_no_pyslurm: "" if it has pyslurm, or is not meant to have it."""

    home: ReleaseHome
    slurm: str
    why_no_pyslurm: str = ""


def default_folder() -> Path:
    """Return `$TRANSOM_SANDBOX_RELEASES`, else `transom/releases` in the user's cache (root: /var/cache)."""
    folder = os.environ.get("TRANSOM_SANDBOX_RELEASES")
    cache = os.environ.get("XDG_CACHE_HOME") or ("/var/cache" if os.geteuid() == 0 else "~/.cache")
    return Path(folder or f"{cache}/transom/releases").expanduser().absolute()


def obtain(name: str, folder: Path, say: Callable[[str], None], url: str = "") -> Obtained:
    """Return the release in `folder`; build it if needed. `say` gets progress messages.

    If only pyslurm cannot be built, return the release without it; the next call tries again. Raises UsageError,
    NotPermitted, or TransomError with the output of the program that failed.
    """
    release = find_release(name)
    home = ReleaseHome(folder / name)
    check_folder(home.path)
    try:
        os.umask(os.umask(0o077) | 0o022)  # others must not be able to replace programs that are run from here
        home.path.mkdir(parents=True, exist_ok=True)
        done = _read_marker(home)
        _check_owner(home.path, bool(done))
        if done and (done["pyslurm"] or not release.pyslurm):
            return Obtained(home, done["slurm"])
        if done and home.path.stat().st_uid != os.geteuid():
            return Obtained(home, done["slurm"], f"root built {home.path} without it")
        with _one_builder(home.path, say) as lock, _scratch(home, say, lock) as building:
            return _obtain_locked(building, release, home, url)
    except OSError as error:
        raise ReleaseFailed(f"Cannot build Debian {name} in {home.path}", str(error)) from error


def find_built(name: str, folder: Path) -> ReleaseHome | None:
    """Return the release in `folder`, with or without pyslurm, if it is built. Builds nothing."""
    home = ReleaseHome(folder / find_release(name).name)
    return home if _read_marker(home) else None


def _obtain_locked(building: Building, release: Release, home: ReleaseHome, url: str) -> Obtained:
    done = _read_marker(home)  # another process may have built it while we waited
    began = time.monotonic()
    if not done:
        done = _build(building, release, home, url)
        building.say(f"built in {time.monotonic() - began:.0f} s")
    if not release.pyslurm or done["pyslurm"]:
        return Obtained(home, done["slurm"])
    building.say(f"building pyslurm {release.pyslurm} for Slurm {done['slurm']} (about a minute)")
    packages.remove_tree(home.path / "venv")
    try:
        build(building, home, home.plugins.resolve(), release.pyslurm)
    except TransomError as error:
        return Obtained(home, done["slurm"], "; ".join(filter(None, (error.what, error.why, error.hint))))
    _write_marker(home, done | {"pyslurm": release.pyslurm})
    building.say(f"with pyslurm: {time.monotonic() - began:.0f} s in all")
    return Obtained(home, done["slurm"])


def _build(building: Building, release: Release, home: ReleaseHome, url: str) -> dict[str, str]:
    for entry in home.path.iterdir():
        if entry not in (building.scratch, building.log, home.path / "lock"):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    free_mb = shutil.disk_usage(home.path).free // 2**20
    if free_mb < _FREE_MB:
        raise TransomError(
            f"Too little space for Debian {release.name} in {home.path}",
            f"{free_mb} MiB are free, {_FREE_MB} MiB are needed",
            "transom sandbox up --release-dir D   (a folder on another file system)",
        )
    building.say(f"fetching Slurm of Debian {release.name} into {home.path}")
    archives = packages.fetch(building, release, check_mirror(url) if url else packages.host_mirror())
    building.say(f"unpacking {len(archives)} packages")
    packages.unpack(building, archives, home.root)
    packages.link_programs(archives, home.root, home.bin)
    plugins = packages.find_plugins(home.root)
    home.plugins.symlink_to(plugins)
    relocate(building, home.root, plugins)
    version = slurm_release(home.bin / "slurmctld")
    check_slurm(release.name, version)
    done = {"slurm": f"{version[0]}.{version[1]:02}", "pyslurm": ""}
    _write_marker(home, done)
    return done


def _read_marker(home: ReleaseHome) -> dict[str, str]:
    """Return what was built and still exists: a cache may have been cleared partially.

    Empty if nothing was built, or not completely, or under another path.
    """
    try:
        raw = json.loads((home.path / _MARKER).read_text())
        if raw["schema"] == _SCHEMA and raw["path"] == str(home.path) and (home.bin / "slurmctld").exists():
            return {"slurm": raw["slurm"], "pyslurm": raw["pyslurm"] if home.python.exists() else ""}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}


def _write_marker(home: ReleaseHome, done: dict[str, str]) -> None:
    document = {"schema": _SCHEMA, "path": str(home.path), **done}
    publish_text(home.path / _MARKER, json.dumps(document) + "\n", private=True)
    (home.path / _MARKER).chmod(0o644)


def _check_owner(path: Path, built: bool) -> None:
    """Refuse programs that another user could change. Of others' builds, only root's is used."""
    owner = path.stat().st_uid
    if owner != os.geteuid() and not (built and owner == 0):
        raise NotPermitted(
            f"Cannot build a release of Slurm in {path}",
            f"it belongs to user ID {owner}, and this is user ID {os.geteuid()}",
            "transom sandbox up --release-dir D   (a folder of your own)",
        )


@contextmanager
def _one_builder(path: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the builder's lock. The kernel releases it when its holder and all its programs have died."""
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building in {path}; waiting for it")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _scratch(home: ReleaseHome, say: Callable[[str], None], lock: int) -> Iterator[Building]:
    scratch = home.path / "scratch"
    packages.remove_tree(scratch)
    scratch.mkdir()
    try:
        yield Building(scratch, home.path / "build.log", say, lock)
    finally:
        packages.remove_tree(scratch)
