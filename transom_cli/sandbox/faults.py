"""Real faults in a sandbox, the list of active ones, and how to undo them all."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.errors import TransomError, UsageError
from transom_cli.files import replace_text
from transom_cli.sandbox import processes, sites
from transom_cli.sandbox.cluster import Sandbox, wait_until
from transom_cli.sandbox.fault_clock import clock_env as clock_env
from transom_cli.sandbox.fault_clock import jump_clock as jump_clock
from transom_cli.sandbox.fault_clock import offsets
from transom_cli.sandbox.fault_clock import reset_clock as reset_clock
from transom_cli.sandbox.fault_disks import cont_disk as cont_disk
from transom_cli.sandbox.fault_disks import fill_disk as fill_disk
from transom_cli.sandbox.fault_disks import free_disk as free_disk
from transom_cli.sandbox.fault_disks import fresh_files as fresh_files
from transom_cli.sandbox.fault_disks import late_files as late_files
from transom_cli.sandbox.fault_disks import readonly_disk as readonly_disk
from transom_cli.sandbox.fault_disks import served
from transom_cli.sandbox.fault_disks import share_disk as share_disk
from transom_cli.sandbox.fault_disks import small_disk as small_disk
from transom_cli.sandbox.fault_disks import stall_disk as stall_disk
from transom_cli.sandbox.fault_disks import unshare_disk as unshare_disk
from transom_cli.sandbox.fault_disks import writable_disk as writable_disk
from transom_cli.sandbox.fault_processes import cont_agent as cont_agent
from transom_cli.sandbox.fault_processes import cont_controller as cont_controller
from transom_cli.sandbox.fault_processes import cont_launcher as cont_launcher
from transom_cli.sandbox.fault_processes import cont_node as cont_node
from transom_cli.sandbox.fault_processes import cont_rank as cont_rank
from transom_cli.sandbox.fault_processes import kill_agent as kill_agent
from transom_cli.sandbox.fault_processes import kill_controller as kill_controller
from transom_cli.sandbox.fault_processes import kill_launcher as kill_launcher
from transom_cli.sandbox.fault_processes import kill_node as kill_node
from transom_cli.sandbox.fault_processes import kill_rank as kill_rank
from transom_cli.sandbox.fault_processes import restore_node as restore_node
from transom_cli.sandbox.fault_processes import slow_rank as slow_rank
from transom_cli.sandbox.fault_processes import slowed
from transom_cli.sandbox.fault_processes import start_controller as start_controller
from transom_cli.sandbox.fault_processes import stop_agent as stop_agent
from transom_cli.sandbox.fault_processes import stop_controller as stop_controller
from transom_cli.sandbox.fault_processes import stop_launcher as stop_launcher
from transom_cli.sandbox.fault_processes import stop_node as stop_node
from transom_cli.sandbox.fault_processes import stop_rank as stop_rank
from transom_cli.sandbox.fault_processes import unslow_rank as unslow_rank


@dataclass(frozen=True)
class Active:
    """An active fault, and the arguments of `transom sandbox fault` that undo it."""

    what: str
    undo: str


def corrupt(sb: Sandbox, node: str, fault: dict[str, Any]) -> None:
    """Make guarded trainings compute wrong on a node from now on. fault: arguments of `transom_cli.inject.Fault`."""
    if node not in sb.node_names:
        raise UsageError(f"The sandbox has no node {node!r}", f"its nodes: {', '.join(sb.node_names)}")
    replace_text(sb.corruptions, json.dumps([*_corruptions(sb), {**fault, "node": node}]))


def uncorrupt(sb: Sandbox, node: str = "") -> None:
    """Undo `corrupt`; "": on all nodes."""
    replace_text(sb.corruptions, json.dumps([one for one in _corruptions(sb) if node not in ("", one["node"])]))


def _corruptions(sb: Sandbox) -> list[dict[str, Any]]:
    return json.loads(sb.corruptions.read_text()) if sb.corruptions.exists() else []


def active(sb: Sandbox) -> list[Active]:
    """Return the active faults that can be undone, from processes and mounts rather than from records."""
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
    found += _stopped(sb, down, {(str(job), str(rank)) for job, rank in slow})
    found += [Active(f"{disk} is a small disk", f"free-disk --unmount {disk}") for disk in sb.disks()]
    alive = served(sb)
    found += [Active(*_disk_words(disk, alive.get(disk, "dead"))) for disk in sb.mounts()]
    for folder, how in sb.late().items():
        found.append(Active(f"the nodes see {folder} late ({how} s)", f"fresh-files {folder}"))
    for node in sorted({one["node"] for one in _corruptions(sb)}):
        found.append(Active(f"{node} computes wrong", f"uncorrupt {node}"))
    for host, wrong in offsets(sb).items():
        if wrong:
            found.append(Active(f"the clock of {host} is wrong by {wrong:+g} s", f"reset-clock --host {host}"))
    return found


def _stopped(sb: Sandbox, down: set[str], slow: set[tuple[str, str]]) -> list[Active]:
    """Return the stopped agents, launchers and ranks on nodes that are up."""
    found: set[tuple[str, str]] = set()
    for proc in processes.of_sandbox(sb.cluster):
        node = processes.node_of(proc, sb.cluster)
        if proc.state not in "Tt" or not processes.is_job_process(proc, sb.cluster) or node in down:
            continue
        env, job = proc.environ, proc.environ["SLURM_JOB_ID"]
        rank = env.get("RANK") or env.get("SLURM_PROCID", "?")
        if not env.get("SLURM_STEP_ID", "").isdigit():
            found.add((f"the launcher of job {job} is stopped", f"cont-launcher --job {job}"))
        elif env.get("TRANSOM_ROLE") == "agent":
            found.add((f"the agent of job {job} on {node} is stopped", f"cont-agent --job {job} {node}"))
        elif (job, rank) not in slow:
            found.add((f"rank {rank} of job {job} is stopped", f"cont-rank --job {job} {rank}"))
    return [Active(*words) for words in sorted(found)]


def _disk_words(disk: str, word: str) -> tuple[str, str]:
    undo = {"stalled": f"cont-disk {disk}", "read-only": f"writable-disk {disk}"}
    return f"{disk} is a shared disk ({word})", undo.get(word, f"unshare-disk {disk}")


def heal(sb: Sandbox) -> None:
    """Undo everything: all daemons run, no job is left, every node is idle and undrained."""
    for job, rank in slowed(sb):
        unslow_rank(sb, job, rank)
    for disk in map(Path, sb.mounts()):  # blocked processes cannot end; it is unmounted when no job uses it
        cont_disk(sb, disk)
        writable_disk(sb, disk)
    for disk in map(Path, sb.disks()):
        free_disk(sb, disk)
    reset_clock(sb)
    uncorrupt(sb)
    for proc in processes.of_sandbox(sb.cluster):
        if proc.state in "Tt":
            processes.signal_one(proc.ident, signal.SIGCONT)
    dead = [d.name for d in sb.daemons() if d.state == "dead" and d.name in sb.node_names]
    for name in sb.daemon_names:
        if name not in dead:
            sb.start(name)
    sb.wait_answer()
    for name in dead:
        # Slurm must learn of the death first: it would keep the node's jobs completing for another minute.
        sb.slurm("scontrol", "update", f"nodename={name}", "state=down", "reason=dead in the sandbox")
        sb.start(name)

    def no_jobs() -> bool:
        jobs = sb.slurm("squeue", "-h", "-a", "-o", "%A").split()
        if jobs:
            sb.slurm("scancel", *jobs)
            for job in jobs:  # at once: a process might otherwise last for KillWait
                for proc in processes.of_job(sb.cluster, int(job)):
                    processes.signal_one(proc.ident, signal.SIGKILL)
        return not jobs

    for node in sb.node_names:
        restore_node(sb, node, undrain=True)
    if not wait_until(no_jobs, 60.0, every_s=0.3):
        raise TransomError("Jobs are left in the sandbox", sb.slurm("squeue"), "transom sandbox down, then up")
    for folder in map(Path, sb.late()):
        fresh_files(sb, folder)
    for disk in map(Path, sb.mounts()):
        unshare_disk(sb, disk)
    for disk in map(Path, sb.disks()):
        free_disk(sb, disk, unmount=True)
    sb.wait_nodes(sb.node_names, only_idle=True)
    sites.crowd(sb)
