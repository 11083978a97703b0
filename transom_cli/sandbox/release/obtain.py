"""A release in its folder: built once, used ever after, by one builder at a time.

`built.json` is written last: without it the folder is what an interrupted building left, and is made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError
from transom_cli.sandbox.release import mirror, packages, pyslurm
from transom_cli.sandbox.release.building import Building
from transom_cli.sandbox.release.known import (
    Release,
    ReleaseHome,
    check_folder,
    check_mirror,
    check_slurm,
    find_release,
)
from transom_cli.sandbox.release.relocate import relocate
from transom_cli.sandbox.state import write_private
from transom_cli.sandbox.tools import slurm_release

_MARKER = "built.json"
_SCHEMA = 1  # counts up when a folder that an earlier transom built would not do any more
_FREE_MB = 1200


@dataclass(frozen=True)
class Obtained:
    """``why_no_pyslurm``: empty where it is there, or where the release has none by design."""

    home: ReleaseHome
    slurm: str
    why_no_pyslurm: str = ""


def default_folder() -> Path:
    """`$TRANSOM_SANDBOX_RELEASES`, else `transom/releases` in the cache: the user's, or for root /var/cache."""
    asked = os.environ.get("TRANSOM_SANDBOX_RELEASES")
    cache = os.environ.get("XDG_CACHE_HOME") or ("/var/cache" if os.geteuid() == 0 else "~/.cache")
    return Path(asked or f"{cache}/transom/releases").expanduser().absolute()


def obtain(name: str, folder: Path, say: Callable[[str], None], url: str = "") -> Obtained:
    """The release in `folder`, built if it is not there. `say` is told what takes its time.

    Without pyslurm where only that cannot be had; the next call tries again. Raises UsageError, NotPermitted or
    TransomError with the words of the program that failed.
    """
    release = find_release(name)
    home = ReleaseHome(folder / name)
    check_folder(home.path)
    try:
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
        raise TransomError(f"Cannot build Debian {name} in {home.path}", str(error)) from error


def find_built(name: str, folder: Path) -> ReleaseHome | None:
    """The release in `folder`, with or without pyslurm, if it is there: nothing is built, nor tried again."""
    home = ReleaseHome(folder / find_release(name).name)
    return home if _read_marker(home) else None


def _obtain_locked(building: Building, release: Release, home: ReleaseHome, url: str) -> Obtained:
    done = _read_marker(home)  # another may have built it while we waited
    began = time.monotonic()
    if not done:
        done = _build(building, release, home, url)
        building.say(f"built in {time.monotonic() - began:.0f} s")
    if not release.pyslurm or done["pyslurm"]:
        return Obtained(home, done["slurm"])
    building.say(f"building pyslurm {release.pyslurm} for Slurm {done['slurm']} (about a minute)")
    packages.remove_tree(home.path / "venv")
    try:
        pyslurm.build(building, home, home.plugins.resolve(), release.pyslurm)
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
    archives = packages.fetch(building, release, check_mirror(url) if url else mirror.host_mirror())
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
    """What was built there and is still: a cache may have been cleared in part, its small files last.

    Empty where nothing was built, or not to its end, or under another path.
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
    write_private(home.path / _MARKER, json.dumps(document) + "\n")
    (home.path / _MARKER).chmod(0o644)


def _check_owner(path: Path, built: bool) -> None:
    """Programs that another user could change are not run: of others, only what root has built is used."""
    owner = path.stat().st_uid
    if owner != os.geteuid() and not (built and owner == 0):
        raise NotPermitted(
            f"Cannot build a release of Slurm in {path}",
            f"it belongs to user id {owner}, and this is user id {os.geteuid()}",
            "transom sandbox up --release-dir D   (a folder of your own)",
        )


@contextmanager
def _one_builder(path: Path, say: Callable[[str], None]) -> Iterator[int]:
    """The kernel drops the lock when its holder dies, however it dies, and all that it had started."""
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another is building in {path}; waiting for it")
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
