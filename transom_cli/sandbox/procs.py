"""Processes on this machine, by (pid, start time), so that a recycled pid is never mistaken for an old one.

Read from /proc (proc(5)). Zombies count as dead: where pid 1 does not reap,
they stay for ever and hold nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Ident:
    """One process for all time (until reboot). ``start`` is in clock ticks after boot."""

    pid: int
    start: int


@dataclass(frozen=True)
class Proc:
    ident: Ident
    ppid: int
    session: int
    state: str  # proc(5): R, S, D, T (stopped), Z (zombie), ...
    comm: str
    environ: Mapping[str, str] = field(default_factory=dict)  # as at exec; empty when not ours to read

    @property
    def pid(self) -> int:
        return self.ident.pid


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read(pid: int, *, with_environ: bool = False) -> Proc | None:
    """The live process ``pid``, or None when there is none (or only its zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    comm, _, rest = stat.partition("(")[2].rpartition(")")  # comm may itself hold spaces and brackets
    fields = rest.split()
    if not fields or fields[0] in "ZXx":
        return None
    return Proc(
        ident=Ident(pid, int(fields[19])),
        ppid=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        comm=comm,
        environ=_environ(pid) if with_environ else {},
    )


def snapshot() -> dict[int, Proc]:
    """Every live process with its environment."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = (read(pid, with_environ=True) for pid in pids)
    return {proc.pid: proc for proc in found if proc is not None}


def alive(ident: Ident) -> bool:
    proc = read(ident.pid)
    return proc is not None and proc.ident == ident


def signal_one(ident: Ident, signum: int) -> bool:
    """Send a signal to exactly this process; False when it is gone already."""
    if not alive(ident):
        return False
    try:
        os.kill(ident.pid, signum)
    except ProcessLookupError:
        return False
    return True


def signal_all(family: list[Proc], signum: int) -> int:
    """Signal each; the pid of the first."""
    for proc in family:
        signal_one(proc.ident, signum)
    return family[0].pid


def with_families(procs: Mapping[int, Proc], roots: Iterable[Proc]) -> list[Proc]:
    """``roots`` and all that grew from them: descendants, and members of a session that any of them is in.

    Sessions catch what was orphaned inside a job (its parent died, so it hangs under pid 1).
    """
    members = {proc.pid: proc for proc in roots}
    grew = True
    while grew:
        sessions = {proc.session for proc in members.values()}
        new = {
            pid: proc
            for pid, proc in procs.items()
            if pid not in members and (proc.ppid in members or proc.session in sessions)
        }
        members.update(new)
        grew = bool(new)
    return list(members.values())


def descendants(procs: Mapping[int, Proc], root: Proc) -> list[Proc]:
    """``root`` first, then its children, their children, ..."""
    order = [root]
    for parent in order:
        order += [proc for proc in procs.values() if proc.ppid == parent.pid]
    return order


def caller_and_ancestors() -> set[int]:
    """Never to be signalled by us, whatever their environment says."""
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        proc = read(pid)
        pid = proc.ppid if proc else 0
    return pids


def freeze_then_kill(collect: Callable[[], list[Proc]], *, timeout_s: float = 20.0) -> int:
    """Stop everything that ``collect`` finds, kill it once all of it stands still, until nothing is found.

    Stopping first matters twice: nothing can fork its way out, and a dying
    slurmstepd gets no chance to report to the controller. Children die before their parents: the
    kernel wakes the stopped members of a process group that becomes orphaned (SIGHUP, SIGCONT), and an srun that wakes
    ends its step on other nodes, which a dead machine would not. Returns how many died.
    """
    deadline = time.monotonic() + timeout_s
    killed: set[Ident] = set()
    while time.monotonic() < deadline:
        frozen: dict[Ident, Proc] = {}
        while new := [proc for proc in collect() if proc.ident not in frozen]:
            for proc in new:
                with contextlib.suppress(PermissionError):
                    signal_one(proc.ident, signal.SIGSTOP)
                frozen[proc.ident] = proc
        if not frozen:
            return len(killed)
        for proc in _children_first(frozen.values()):
            signal_one(proc.ident, signal.SIGKILL)
        killed |= frozen.keys()
        _wait_gone(frozen.keys(), deadline)
    raise TimeoutError(f"still alive after SIGKILL: {sorted(proc.pid for proc in collect())}")


def _children_first(found: Collection[Proc]) -> list[Proc]:
    parents = {proc.pid: proc.ppid for proc in found}

    def depth(pid: int) -> int:
        seen: set[int] = set()
        while pid in parents and pid not in seen:
            seen.add(pid)
            pid = parents[pid]
        return len(seen)

    return sorted(found, key=lambda proc: depth(proc.pid), reverse=True)


def _wait_gone(idents: Set[Ident], deadline: float) -> None:
    while any(alive(ident) for ident in idents) and time.monotonic() < deadline:
        time.sleep(0.01)


def _environ(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
