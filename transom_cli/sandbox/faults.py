"""Real faults in a sandbox: what dies, hangs or fills up here really does. And how to undo them all."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.sandbox import belonging, procs
from transom_cli.sandbox.cluster import Sandbox, wait_until
from transom_cli.sandbox.fault_disk import fill_disk, free_disk, small_disk
from transom_cli.sandbox.fault_nodes import (
    cont_controller,
    cont_node,
    kill_controller,
    kill_node,
    restore_node,
    start_controller,
    stop_controller,
    stop_node,
)
from transom_cli.sandbox.fault_ranks import cont_rank, kill_rank, slow_rank, slowed, stop_rank, unslow_rank

__all__ = [
    "Active",
    "active",
    "cont_controller",
    "cont_node",
    "cont_rank",
    "fill_disk",
    "free_disk",
    "heal",
    "kill_controller",
    "kill_node",
    "kill_rank",
    "restore_node",
    "slow_rank",
    "small_disk",
    "start_controller",
    "stop_controller",
    "stop_node",
    "stop_rank",
    "unslow_rank",
]


@dataclass(frozen=True)
class Active:
    """A fault that is there now, and the words after `transom sandbox fault` that undo it."""

    what: str
    undo: str


def active(sb: Sandbox) -> list[Active]:
    """The faults that can be undone, as the processes and mounts show them: nobody's memory is asked."""
    found: list[Active] = []
    down: set[str] = set()
    for daemon in sb.daemons():
        is_node = daemon.name in sb.node_names
        if is_node and daemon.state != "running":
            down.add(daemon.name)
        if daemon.state == "dead":
            undo = f"restore-node {daemon.name}" if is_node else "heal"
            undo = "start-controller" if daemon.name == "slurmctld" else undo
            found.append(Active(f"{daemon.name} is dead", undo))
        elif daemon.state == "stopped":
            undo = f"cont-node {daemon.name}" if is_node else "cont-controller"
            found.append(Active(f"{daemon.name} is stopped", undo))
    slow = slowed(sb)
    for job, rank in slow:
        found.append(Active(f"rank {rank} of job {job} is slowed", f"unslow-rank --job {job} {rank}"))
    stopped = {
        (proc.environ["SLURM_JOB_ID"], proc.environ.get("RANK") or proc.environ.get("SLURM_PROCID", "?"))
        for proc in belonging.of_sandbox(sb.cluster)
        if proc.state in "Tt"
        and belonging.is_job_process(proc, sb.cluster)
        and belonging.node_of(proc, sb.cluster) not in down
    }
    for job_text, rank_text in sorted(stopped - {(str(job), str(rank)) for job, rank in slow}):
        found.append(
            Active(f"rank {rank_text} of job {job_text} is stopped", f"cont-rank --job {job_text} {rank_text}")
        )
    found += [Active(f"{disk} is a small disk", f"free-disk --unmount {disk}") for disk in sb.disks()]
    return found


def heal(sb: Sandbox) -> None:
    """Undo everything: all daemons run, no job is left, every node is idle and undrained."""
    for job, rank in slowed(sb):
        unslow_rank(sb, job, rank)
    for disk in sb.disks():
        free_disk(sb, Path(disk), unmount=True)
    for proc in belonging.of_sandbox(sb.cluster):
        if proc.state in "Tt":
            procs.signal_one(proc.ident, signal.SIGCONT)
    dead = [d.name for d in sb.daemons() if d.state == "dead" and d.name in sb.node_names]
    for name in sb.daemon_names:
        if name not in dead:
            sb.start(name)
    sb.wait_answer()
    for name in dead:
        # Slurm must hear of the death first: it would keep the node's jobs completing for a minute more.
        sb.slurm("scontrol", "update", f"nodename={name}", "state=down", "reason=dead in the sandbox")
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
