"""Real faults in a sandbox: what dies or hangs here really dies or hangs, and Slurm is told nothing."""

from __future__ import annotations

import signal

from transom_cli.errors import TransomError, UsageError
from transom_cli.sandbox import belonging, procs
from transom_cli.sandbox.cluster import Sandbox, wait_until


def kill_node(sb: Sandbox, node: str) -> int:
    """The machine dies: slurmd, slurmstepds and all job processes on it, at once. Returns how many processes died.

    As on a dead machine nothing is reported. Unlike there, the kernel closes
    the connections of the dead, so their peers learn of it sooner; `stop_node` is the silent death.
    """
    _known(sb, node)
    return procs.freeze_then_kill(lambda: belonging.on_node(sb.cluster, node))


def stop_node(sb: Sandbox, node: str) -> int:
    """The machine hangs: every process on it is stopped, its connections stay open and silent. How many."""
    _known(sb, node)
    stopped: set[procs.Ident] = set()
    while new := [p.ident for p in belonging.on_node(sb.cluster, node) if p.ident not in stopped]:
        for ident in new:
            procs.signal_one(ident, signal.SIGSTOP)
        stopped.update(new)
    return len(stopped)


def cont_node(sb: Sandbox, node: str) -> int:
    """Undo `stop_node`."""
    _known(sb, node)
    found = belonging.on_node(sb.cluster, node)
    return sum(procs.signal_one(proc.ident, signal.SIGCONT) for proc in found)


def restore_node(sb: Sandbox, node: str, *, undrain: bool = False) -> None:
    """The machine is back: its slurmd runs, and Slurm may use it again if Slurm itself had marked it down.

    A drain (a person's or transom's) stays, unless ``undrain``.
    """
    _known(sb, node)
    cont_node(sb, node)
    sb.start(node)

    def back() -> bool:
        word = next(row.state for row in sb.nodes() if row.name == node)
        if word.startswith("down") or (undrain and word.startswith("drain")):
            # both words can hold at once: `resume` clears the two of them, `undrain` only a drain
            sb.slurm("scontrol", "update", f"nodename={node}", "state=resume")
            return False
        return not word.endswith("*")

    if not wait_until(back, 60.0, every_s=0.3):
        sb.wait_nodes([node])


def heal(sb: Sandbox) -> None:
    """Undo everything: all daemons run, no job is left, every node is idle and undrained."""
    for proc in belonging.of_sandbox(sb.cluster):
        if proc.state in "Tt":
            procs.signal_one(proc.ident, signal.SIGCONT)
    for name in sb.daemon_names:
        sb.start(name)

    def no_jobs() -> bool:
        jobs = sb.slurm("squeue", "-h", "-a", "-o", "%A").split()
        if jobs:
            sb.slurm("scancel", *jobs)
            for job in jobs:  # at once, where a process would sit out KillWait
                for proc in belonging.of_job(sb.cluster, int(job)):
                    procs.signal_one(proc.ident, signal.SIGKILL)
        return not jobs

    for node in sb.node_names:
        restore_node(sb, node, undrain=True)
    if not wait_until(no_jobs, 60.0, every_s=0.3):
        raise TransomError("Jobs are left in the sandbox", sb.slurm("squeue"), "transom sandbox down, then up")
    sb.wait_nodes(sb.node_names, only_idle=True)


def _known(sb: Sandbox, node: str) -> None:
    if node not in sb.node_names:
        raise UsageError(f"The sandbox has no node {node!r}", f"its nodes: {', '.join(sb.node_names)}")
