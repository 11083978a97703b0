"""Faults of one rank of a job: it dies, hangs, or becomes slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from transom_cli.errors import UsageError
from transom_cli.sandbox import belonging, procs
from transom_cli.sandbox.cluster import Sandbox, wait_until
from transom_cli.sandbox.procs import Proc

_MARK_SLOW = "TRANSOM_SANDBOX_SLOW"  # in a throttle's environment: <job>:<rank>


def kill_rank(sb: Sandbox, job_id: int, rank: int) -> int:
    """The trainer process of this global rank, with its children, dies by SIGKILL. Returns its pid."""
    family = find_rank(sb, job_id, rank)
    procs.freeze_then_kill(lambda: [proc for proc in family if procs.alive(proc.ident)])
    return family[0].pid


def stop_rank(sb: Sandbox, job_id: int, rank: int) -> int:
    """The rank hangs (SIGSTOP). Returns its pid."""
    return procs.signal_all(find_rank(sb, job_id, rank), signal.SIGSTOP)


def cont_rank(sb: Sandbox, job_id: int, rank: int) -> int:
    """Undo `stop_rank`."""
    return procs.signal_all(find_rank(sb, job_id, rank), signal.SIGCONT)


def slow_rank(sb: Sandbox, job_id: int, rank: int, duty: float) -> int:
    """From now on the rank runs for only a share of the time: ``duty`` above 0 and below 1. Returns its pid.

    A throttle process stops and continues it ten times a second until `unslow_rank`, or until the rank has ended.
    """
    if not 0.0 < duty < 1.0:
        raise UsageError(f"The share of time must lie between 0 and 1, not {duty}")
    family = find_rank(sb, job_id, rank)
    unslow_rank(sb, job_id, rank)
    targets = [f"{proc.ident.pid}:{proc.ident.start}" for proc in family]
    env = {**os.environ, belonging.MARK: sb.cluster, _MARK_SLOW: f"{job_id}:{rank}"}
    argv = ["setsid", "--fork", sys.executable, "-m", "transom_cli.sandbox.throttle", str(duty), *targets]
    subprocess.run(argv, env=env, cwd="/", check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: (job_id, rank) in slowed(sb), 10.0, every_s=0.02)
    return family[0].pid


def unslow_rank(sb: Sandbox, job_id: int, rank: int) -> bool:
    """Undo `slow_rank`; False when the rank was not slowed."""
    found = [proc for proc in _throttles(sb) if proc.environ[_MARK_SLOW] == f"{job_id}:{rank}"]
    for proc in found:
        procs.signal_one(proc.ident, signal.SIGTERM)  # it lets its rank go before it ends
    wait_until(lambda: not any(procs.alive(proc.ident) for proc in found), 10.0, every_s=0.02)
    return bool(found)


def slowed(sb: Sandbox) -> list[tuple[int, int]]:
    """(job id, rank) of every rank that is slowed now."""
    pairs = {proc.environ[_MARK_SLOW].partition(":")[::2] for proc in _throttles(sb)}
    return sorted((int(job), int(rank)) for job, rank in pairs)


def find_rank(sb: Sandbox, job_id: int, rank: int) -> list[Proc]:
    """The process of a global rank and its descendants, itself first."""
    running = belonging.of_job(sb.cluster, job_id)
    tops = rank_tops(running)
    if rank not in tops:
        there = ", ".join(map(str, sorted(tops))) or "none"
        raise UsageError(f"Job {job_id} has no running rank {rank}", f"its running ranks: {there}")
    return procs.descendants({proc.pid: proc for proc in running}, tops[rank])


def rank_tops(running: Sequence[Proc]) -> dict[int, Proc]:
    """Global rank -> its top-most process, of the newest step. Pure.

    Only processes of a step of srun count (the batch script has PROCID 0, too).
    Where transom's wrapper says which process is a rank (TRANSOM_ROLE), or torchrun
    gives RANK, what lacks that is a launcher of ranks and no rank.
    """
    tasks = [p for p in running if p.environ.get("SLURM_STEP_ID", "").isdigit() and "SLURM_PROCID" in p.environ]
    tasks = [p for p in tasks if p.environ.get("TRANSOM_ROLE") != "agent"]
    for sign in ("TRANSOM_ROLE", "RANK"):
        tasks = [p for p in tasks if sign in p.environ] or tasks
    ranks = {p.pid: int(p.environ.get("RANK") or p.environ["SLURM_PROCID"]) for p in tasks}
    tops = [p for p in tasks if ranks.get(p.ppid) != ranks[p.pid]]
    return {ranks[p.pid]: p for p in sorted(tops, key=lambda p: (int(p.environ["SLURM_STEP_ID"]), -p.ident.start))}


def _throttles(sb: Sandbox) -> list[Proc]:
    return [p for p in belonging.of_sandbox(sb.cluster) if _MARK_SLOW in p.environ and p.comm != "setsid"]
