"""Processes on this machine, and which of them belong to a sandbox.

A process is identified by (PID, start time), so that a recycled PID is never mistaken for an old process. Everything is
read from /proc (proc(5)). Zombies count as dead: if PID 1 does not reap them, they remain and hold nothing.

Daemons are started with a mark in their environment (`MARK`, and `MARK_NODE` for a node's slurmd), which a slurmstepd
inherits from its slurmd. Slurm gives every job process SLURM_CLUSTER_NAME and SLURMD_NODENAME. The cluster's name is
unique to one sandbox, so two sandboxes on one machine never affect each other. Processes that a job starts with an
empty environment are found through their parents and sessions (`with_families`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Ident:
    """One process, uniquely until the next reboot. start: clock ticks after boot."""

    pid: int
    start: int


@dataclass(frozen=True)
class Proc:
    ident: Ident
    ppid: int
    session: int
    state: str  # proc(5): R, S, D, T (stopped), Z (zombie), ...
    comm: str
    environ: Mapping[str, str] = field(default_factory=dict)  # as at exec; empty if we may not read it

    @property
    def pid(self) -> int:
        return self.ident.pid


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read(pid: int, *, with_environ: bool = False) -> Proc | None:
    """Return the live process `pid`, or None if there is none (or only a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    comm, _, rest = stat.partition("(")[2].rpartition(")")  # comm may contain spaces and parentheses
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
    """Return every live process with its environment."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = (read(pid, with_environ=True) for pid in pids)
    return {proc.pid: proc for proc in found if proc is not None}


def alive(ident: Ident) -> bool:
    proc = read(ident.pid)
    return proc is not None and proc.ident == ident


def signal_one(ident: Ident, signum: int) -> bool:
    """Send a signal to exactly this process. Returns False if it no longer exists."""
    if not alive(ident):
        return False
    try:
        os.kill(ident.pid, signum)
    except ProcessLookupError:
        return False
    return True


def signal_all(family: list[Proc], signum: int) -> int:
    """Signal each process; return the PID of the first."""
    for proc in family:
        signal_one(proc.ident, signum)
    return family[0].pid


def with_families(procs: Mapping[int, Proc], roots: Iterable[Proc]) -> list[Proc]:
    """Return `roots`, their descendants, and all members of their sessions.

    Sessions find processes that were orphaned inside a job: their parent died, so PID 1 adopted them.
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
    """Return `root` first, then its children, their children, ..."""
    order = [root]
    for parent in order:
        order += [proc for proc in procs.values() if proc.ppid == parent.pid]
    return order


def caller_and_ancestors() -> set[int]:
    """Return the PIDs that must never be signalled, regardless of their environment."""
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        proc = read(pid)
        pid = proc.ppid if proc else 0
    return pids


def freeze_then_kill(collect: Callable[[], list[Proc]], *, timeout_s: float = 20.0) -> int:
    """Stop everything that `collect` finds and kill it when all of it is stopped, until nothing is found.

    Stopping first has two reasons: nothing can escape by forking, and a dying slurmstepd cannot report to the
    controller. Children are killed before their parents: the kernel wakes the stopped members of an orphaned process
    group (SIGHUP, SIGCONT), and an srun that wakes ends its step on other nodes, which a dead machine would not do.
    Returns the number of killed processes.
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


def command_of(proc: Proc) -> list[str]:
    """Return the words of its command line; none once it has ended."""
    return [os.fsdecode(word) for word in _read(proc.pid, "cmdline").split(b"\0")[:-1]]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _environ(pid: int) -> dict[str, str]:
    raw = _read(pid, "environ")
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


MARK = "TRANSOM_SANDBOX"
MARK_NODE = "TRANSOM_SANDBOX_NODE"


def is_job_process(proc: Proc, cluster: str) -> bool:
    env = proc.environ
    return env.get("SLURM_CLUSTER_NAME") == cluster and "SLURMD_NODENAME" in env and "SLURM_JOB_ID" in env


def is_slurmstepd(proc: Proc) -> bool:
    return proc.comm == "slurmstepd"


def node_of(proc: Proc, cluster: str) -> str | None:
    """Return the sandbox node of a process, by its environment, or None if that does not say."""
    if proc.environ.get(MARK) == cluster:
        return proc.environ.get(MARK_NODE)
    if is_job_process(proc, cluster):
        return proc.environ["SLURMD_NODENAME"]
    return None


def on_node(cluster: str, node: str) -> list[Proc]:
    """Return slurmd, slurmstepds, and all job processes of one node."""
    procs = snapshot()
    return _without_caller(_with_relatives(procs, [proc for proc in procs.values() if node_of(proc, cluster) == node]))


def of_sandbox(cluster: str) -> list[Proc]:
    """Return every process of a sandbox."""
    procs = snapshot()
    roots = [p for p in procs.values() if p.environ.get(MARK) == cluster or is_job_process(p, cluster)]
    return _without_caller(_with_relatives(procs, roots))


def of_job(cluster: str, job_id: int) -> list[Proc]:
    """Return a job's processes on all nodes: batch script, sruns, tasks and their children; not the slurmstepds."""
    procs = snapshot()
    mine = str(job_id)
    roots = [p for p in procs.values() if is_job_process(p, cluster) and p.environ["SLURM_JOB_ID"] == mine]
    return _without_caller([p for p in _with_relatives(procs, roots) if not is_slurmstepd(p)])


def _with_relatives(procs: Mapping[int, Proc], roots: list[Proc]) -> list[Proc]:
    """Add families, and the slurmstepd above a job process (it may have lost its mark)."""
    above = [
        procs[proc.ppid] for proc in roots if proc.ppid in procs and is_slurmstepd(procs[proc.ppid])
    ]  # fmt: skip
    return with_families(procs, [*roots, *above])


def _without_caller(found: list[Proc]) -> list[Proc]:
    us = caller_and_ancestors()
    return [proc for proc in found if proc.pid not in us]
