"""Decides who is the operator of a run: a lease, which is renewed, and an epoch, which fences earlier operators.

An operator takes epoch n by creating the file `epochs/<n>` with O_EXCL, which only one process can do, also on NFS. An
operator that finds a higher epoch has been replaced and must stop at once. The lease shows whether an operator is
alive: on the same boot of the same host by its process, elsewhere by its renewals, timed by the observer's own clock.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from transom_cli.errors import OperatorAlive
from transom_cli.files import publish_text, refresh_directory
from transom_cli.layout import RunDir

RENEW = 5.0  # seconds between renewals
ANEW = 1.0  # seconds between two questions to the file server itself
LENGTH = 511  # bytes of the lease, without its newline
STALE = 15.0  # seconds without one, seen from another host, before the operator counts as gone


_held: set[tuple[Path, int]] = set()
"""Leases that this process holds now: run directory and epoch. It may outlive the operator of one of its runs."""


@dataclass(frozen=True)
class Holder:
    epoch: int
    host: str
    boot: str
    pid: int
    start: int  # start time of the process in clock ticks since boot: a recycled pid is somebody else
    renewals: int = 0
    released: bool = False

    def here(self) -> bool:
        return self.boot == _boot_id()

    def alive_here(self) -> bool:
        return _start_ticks(self.pid) == self.start


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def read_holder(run: RunDir) -> Holder | None:
    try:
        return Holder(**json.loads(run.lease.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def highest_epoch(run: RunDir) -> int:
    """Return the newest epoch. The lease counts too: a purge of old files may have deleted the epoch's own file."""
    holder = read_holder(run)
    known = holder.epoch if holder is not None else 0
    try:
        return max((int(p.name) for p in run.epochs.iterdir() if p.name.isdigit()), default=known)
    except OSError:
        return known


def operator_alive(run: RunDir, sleep: Callable[[float], None] = time.sleep, patience: float = STALE) -> Holder | None:
    """Return the living operator, or None. Takes up to `patience` seconds if the lease is from another host."""
    deadline = time.monotonic() + patience
    seen = read_holder(run)
    while True:
        now = read_holder(run)
        newest = highest_epoch(run)
        if now is not None and now.epoch == newest and now.released:
            return None
        if now is not None and now.epoch == newest and now.here():
            return now if now.alive_here() and not _forsaken(run, now) else None
        if newest == 0:
            return None
        if now is not None and seen is not None and now.epoch == newest and now.renewals != seen.renewals:
            return now
        if time.monotonic() >= deadline:
            return None  # an epoch whose operator never wrote its lease, or one that stopped renewing it
        sleep(0.2)


def _forsaken(run: RunDir, holder: Holder) -> bool:
    """Return whether this process held the lease and has given it up."""
    return holder.pid == os.getpid() and (run.path, holder.epoch) not in _held


def _overwrite(path: Path, text: str) -> None:
    """Replace a file's content by one of the same length, in place: a renewal costs a network file system one write."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.encode(), 0)
    finally:
        os.close(descriptor)


class Lease:
    """The lease of the operator of one epoch."""

    def __init__(self, run: RunDir, holder: Holder) -> None:
        self._run = run
        self._holder = holder
        self._next = run.epochs / str(holder.epoch + 1)
        self._renewed = time.monotonic()
        self._asked = float("-inf")  # when it was last asked for a newer epoch

    @property
    def epoch(self) -> int:
        return self._holder.epoch

    @classmethod
    def take(cls, run: RunDir, journal_epoch: int = 0) -> Lease:
        """Become the operator. journal_epoch: the newest in the journal. Raises OperatorAlive if there is one."""
        newest = highest_epoch(run)  # before asking who lives: who comes in between takes the number we would
        alive = operator_alive(run)
        if alive is not None:
            raise OperatorAlive(
                f"Run `{run.run_id}` has a live operator",
                f"process {alive.pid} on {alive.host}",
                f"Watch it with `transom attach {run.run_id}`.",
            )
        run.epochs.mkdir(mode=0o700, exist_ok=True)
        epoch = max(newest, journal_epoch) + 1
        try:
            os.close(os.open(run.epochs / str(epoch), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError as error:
            raise OperatorAlive(
                f"Another operator of run `{run.run_id}` has just started",
                hint=f"Watch it with `transom attach {run.run_id}`.",
            ) from error
        pid = os.getpid()
        lease = cls(run, Holder(epoch, socket.gethostname(), _boot_id(), pid, _start_ticks(pid) or 0))
        _held.add((run.path, epoch))  # first: who reads the lease of a process that does not hold it takes it
        lease._write()
        return lease

    def _text(self) -> str:
        """Return the file's content, which always has the same length."""
        return json.dumps(asdict(self._holder)).ljust(LENGTH) + "\n"

    def _write(self) -> None:
        publish_text(self._run.lease, self._text())

    def fenced(self) -> bool:
        """Return whether a newer operator exists, so that this one must stop. On NFS, it shows within a second."""
        if time.monotonic() - self._asked >= ANEW:
            self._asked = time.monotonic()
            refresh_directory(self._run.epochs)
        return self._next.exists()

    def renew(self) -> None:
        if time.monotonic() - self._renewed < RENEW:
            return
        self._holder = Holder(**{**asdict(self._holder), "renewals": self._holder.renewals + 1})
        self._renewed = time.monotonic()
        _overwrite(self._run.lease, self._text())

    def give_up(self) -> None:
        """Give the lease up: the run is over or the operator leaves, and the next one need not wait."""
        _held.discard((self._run.path, self.epoch))
        if not self.fenced():
            self._holder = Holder(**{**asdict(self._holder), "released": True})
            self._write()
