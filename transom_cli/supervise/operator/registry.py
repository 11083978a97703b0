"""The runs that a user's operator process on this host operates: one file each, in the user's state folder.

`transom run` adds a file, with the environment from which the run's jobs are submitted. The process removes it when the
run is over. So a process that died is replaced by another one that continues all of its runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import transom_cli
from transom_cli.files import listed, make_private, publish_text
from transom_cli.health.history.files import history_dir
from transom_cli.layout import RunDir
from transom_cli.start import ours_alone

PATIENCE = 2.0  # seconds for another process that only tests the lock
_PLACES = ("HOME", "XDG_CONFIG_HOME")  # where settings and secrets are read


def operator_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this user's operator process on this host, for this installation of transom."""
    code = (str(Path(transom_cli.__file__).resolve()), transom_cli.__version__, str(Path(sys.prefix).resolve()))
    key = zlib.crc32("\0".join((*code, *(environ.get(name, "") for name in _PLACES))).encode(errors="surrogateescape"))
    return history_dir(environ).parent / "operators" / f"{socket.gethostname()}-{key:08x}"


@dataclass(frozen=True)
class Shell:
    """What sbatch passes on to a job from where it is called. umask: -1 is this process's own."""

    environ: Mapping[str, str]
    umask: int = -1

    @classmethod
    def here(cls) -> Shell:
        mask = os.umask(0o077)
        os.umask(mask)
        return cls(dict(os.environ), mask)


@dataclass(frozen=True)
class Entry:
    """A registered run. name: of its file. stamp: changes when it is registered again."""

    name: str
    run: RunDir
    shell: Shell
    stamp: int


class Registry:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self._lock: int | None = None

    def make(self) -> bool:
        """Create the folder. False if other users can change what is in it."""
        make_private(self._runs)
        return ours_alone(str(self._runs))

    @property
    def log(self) -> Path:
        """What the process itself says; what it says about a run is in the run's operator.log."""
        return self.folder / "operator.log"

    def add(self, run: RunDir, shell: Shell, *, again: bool = True) -> str:
        """Register a run whose jobs are submitted as from this shell, and return the name of its entry.

        Args:
            again: replace the entry of a run that is registered.
        """
        path = str(run.path.absolute())
        name = f"{run.run_id}-{zlib.crc32(path.encode(errors='surrogateescape')):08x}.json"
        if not again and (self._runs / name).exists():
            return name
        self._refusal(name).unlink(missing_ok=True)
        publish_text(self._runs / name, json.dumps({"run": path, **asdict(shell)}))
        return name

    def remove(self, name: str) -> None:
        for path in (self._runs / name, self._refusal(name)):
            path.unlink(missing_ok=True)

    def refuse(self, name: str, why: str) -> None:
        """Record why the run is not operated, for the command that registered it."""
        publish_text(self._refusal(name), why)

    def refusal(self, name: str) -> str:
        """Return why a run is not operated, or ""."""
        try:
            return self._refusal(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def answered(self, name: str) -> bool:
        """Return whether the process has finished with this run, or refused it."""
        return self._refusal(name).exists() or not (self._runs / name).exists()

    def _refusal(self, name: str) -> Path:
        return self._runs / f"{name}.refused"

    def changed(self) -> int:
        """Return a number that changes when a run is registered or removed."""
        try:
            return self._runs.stat().st_mtime_ns
        except OSError:
            return 0

    def names(self) -> list[str]:
        return [path.name for path in listed(self._runs) if path.suffix == ".json"]

    def entries(self) -> Iterator[Entry]:
        """Yield the registered runs. A damaged file is skipped: only its run is not continued."""
        for name in self.names():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                stamp = (self._runs / name).stat().st_mtime_ns
                data = json.loads((self._runs / name).read_text(encoding="utf-8"))
                environ = {sys.intern(key): sys.intern(value) for key, value in data["environ"].items()}
                yield Entry(name, RunDir(Path(data["run"])), Shell(environ, int(data["umask"])), stamp)

    def lock(self) -> bool:
        """Become the process that operates these runs. False if there is one."""
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + PATIENCE
        while not _locked(handle):
            if time.monotonic() > deadline:
                os.close(handle)
                return False
            time.sleep(0.05)
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._lock = handle
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def process(self) -> int | None:
        """Return the ID of the process that operates these runs, or None if there is none."""
        try:
            handle = os.open(self.folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _locked(handle, fcntl.LOCK_SH):
                return None
            return int(os.read(handle, 20) or b"0")
        except ValueError:
            return 0
        finally:
            os.close(handle)


def _locked(handle: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take the lock if it is free. True also where locks do not work: two processes share runs by their leases."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
