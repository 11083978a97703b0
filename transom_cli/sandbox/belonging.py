"""Which processes are a sandbox's own: its daemons, its nodes' slurmstepds, its jobs' processes.

Daemons are started with a mark in their environment (`MARK`, and for a node's
slurmd `MARK_NODE`), which a slurmstepd inherits from its slurmd. Slurm gives every job process
SLURM_CLUSTER_NAME and SLURMD_NODENAME; the cluster's name is unique to one
sandbox, so two sandboxes on one machine never touch each other. What a job
process starts with an emptied environment is found by family (see `procs.with_families`).
"""

from __future__ import annotations

from collections.abc import Mapping

from transom_cli.sandbox.procs import Proc, caller_and_ancestors, snapshot, with_families

MARK = "TRANSOM_SANDBOX"
MARK_NODE = "TRANSOM_SANDBOX_NODE"


def is_job_process(proc: Proc, cluster: str) -> bool:
    env = proc.environ
    return env.get("SLURM_CLUSTER_NAME") == cluster and "SLURMD_NODENAME" in env and "SLURM_JOB_ID" in env


def is_slurmstepd(proc: Proc) -> bool:
    return proc.comm == "slurmstepd"


def node_of(proc: Proc, cluster: str) -> str | None:
    """The sandbox node that a process lives on, by its own environment; None when it tells nothing."""
    if proc.environ.get(MARK) == cluster:
        return proc.environ.get(MARK_NODE)
    if is_job_process(proc, cluster):
        return proc.environ["SLURMD_NODENAME"]
    return None


def on_node(cluster: str, node: str) -> list[Proc]:
    """slurmd, slurmstepds, and all job processes of one node."""
    procs = snapshot()
    return _sparing_us(_closed(procs, [proc for proc in procs.values() if node_of(proc, cluster) == node]))


def of_sandbox(cluster: str) -> list[Proc]:
    """Every process of a sandbox."""
    procs = snapshot()
    roots = [p for p in procs.values() if p.environ.get(MARK) == cluster or is_job_process(p, cluster)]
    return _sparing_us(_closed(procs, roots))


def of_job(cluster: str, job_id: int) -> list[Proc]:
    """What a job runs on all its nodes: batch script, sruns, tasks and their children; not the slurmstepds."""
    procs = snapshot()
    mine = str(job_id)
    roots = [p for p in procs.values() if is_job_process(p, cluster) and p.environ["SLURM_JOB_ID"] == mine]
    return _sparing_us([p for p in _closed(procs, roots) if not is_slurmstepd(p)])


def _closed(procs: Mapping[int, Proc], roots: list[Proc]) -> list[Proc]:
    """With families, and with the slurmstepd above a job process (should it not have kept its mark)."""
    above = [
        procs[proc.ppid] for proc in roots if proc.ppid in procs and is_slurmstepd(procs[proc.ppid])
    ]  # fmt: skip
    return with_families(procs, [*roots, *above])


def _sparing_us(found: list[Proc]) -> list[Proc]:
    us = caller_and_ancestors()
    return [proc for proc in found if proc.pid not in us]
