"""Faults of transom's own processes inside a job: a node's agent, or the launcher, dies or hangs."""

from __future__ import annotations

import signal

from transom_cli.errors import UsageError
from transom_cli.sandbox import belonging, procs
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.procs import Proc


def kill_agent(sb: Sandbox, job_id: int, node: str) -> int:
    """The agent of this node, with its children, dies by SIGKILL; the ranks live on. Returns its pid."""
    family = find_agent(sb, job_id, node)
    procs.freeze_then_kill(lambda: [proc for proc in family if procs.alive(proc.ident)])
    return family[0].pid


def stop_agent(sb: Sandbox, job_id: int, node: str) -> int:
    """The agent hangs (SIGSTOP). Returns its pid."""
    return procs.signal_all(find_agent(sb, job_id, node), signal.SIGSTOP)


def cont_agent(sb: Sandbox, job_id: int, node: str) -> int:
    """Undo `stop_agent`."""
    return procs.signal_all(find_agent(sb, job_id, node), signal.SIGCONT)


def kill_launcher(sb: Sandbox, job_id: int) -> int:
    """The launcher alone dies by SIGKILL; slurmstepd ends what it leaves behind. Returns its pid."""
    return procs.signal_all([find_launcher(sb, job_id)], signal.SIGKILL)


def stop_launcher(sb: Sandbox, job_id: int) -> int:
    """The launcher hangs (SIGSTOP); its sruns and the ranks go on. Returns its pid."""
    return procs.signal_all([find_launcher(sb, job_id)], signal.SIGSTOP)


def cont_launcher(sb: Sandbox, job_id: int) -> int:
    """Undo `stop_launcher`."""
    return procs.signal_all([find_launcher(sb, job_id)], signal.SIGCONT)


def find_agent(sb: Sandbox, job_id: int, node: str) -> list[Proc]:
    """The node's agent of this job and its descendants, itself first."""
    running = {proc.pid: proc for proc in belonging.of_job(sb.cluster, job_id)}
    agents = [p for p in running.values() if p.environ.get("TRANSOM_ROLE") == "agent" and _in_a_step(p)]
    tops = {p.environ["SLURMD_NODENAME"]: p for p in agents if p.ppid not in {a.pid for a in agents}}
    if node not in tops:
        there = ", ".join(sorted(tops)) or "none"
        raise UsageError(f"Job {job_id} has no running agent on {node!r}", f"nodes with one: {there}")
    return procs.descendants(running, tops[node])


def find_launcher(sb: Sandbox, job_id: int) -> Proc:
    """What the batch script became (the script itself, where it is not `transom launch` that runs in it)."""
    everything = procs.snapshot()
    for proc in belonging.of_job(sb.cluster, job_id):
        parent = everything.get(proc.ppid)
        if parent is not None and belonging.is_slurmstepd(parent) and not _in_a_step(proc):
            return proc
    raise UsageError(f"Job {job_id} has no running batch script", hint="transom sandbox exec -- squeue")


def _in_a_step(proc: Proc) -> bool:
    """srun, which starts the agents, bears their role too: but it runs in the batch script, which is no step."""
    return proc.environ.get("SLURM_STEP_ID", "").isdigit()
