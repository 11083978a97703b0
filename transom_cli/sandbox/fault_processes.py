"""Faults of processes: nodes and the controller, a job's agents and launcher, single ranks.

Slurm is never informed of a fault; it has to notice.
"""

import itertools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from transom_cli.errors import UsageError
from transom_cli.sandbox import processes
from transom_cli.sandbox.cluster import Sandbox, wait_until
from transom_cli.sandbox.processes import Proc
from transom_cli.start import own


def kill_node(sb: Sandbox, node: str) -> int:
    """Kill a machine: slurmd, slurmstepds and all job processes on it, at once. Returns how many processes died.

    As with a dead machine, nothing is reported. But the kernel closes the connections, so peers notice sooner;
    `stop_node` is the silent failure.
    """
    _known(sb, node)
    return processes.freeze_then_kill(lambda: processes.on_node(sb.cluster, node))


def stop_node(sb: Sandbox, node: str) -> int:
    """Hang a machine: stop every process on it; its connections stay open and silent. Returns how many."""
    _known(sb, node)
    stopped: set[processes.Ident] = set()
    while new := [p.ident for p in processes.on_node(sb.cluster, node) if p.ident not in stopped]:
        for ident in new:
            processes.signal_one(ident, signal.SIGSTOP)
        stopped.update(new)
    return len(stopped)


def cont_node(sb: Sandbox, node: str) -> int:
    """Undo `stop_node`."""
    _known(sb, node)
    found = processes.on_node(sb.cluster, node)
    return sum(processes.signal_one(proc.ident, signal.SIGCONT) for proc in found)


def restore_node(sb: Sandbox, node: str, *, undrain: bool = False) -> None:
    """Bring the machine back: its slurmd runs, and Slurm may use it again if Slurm itself had marked it down.

    A drain (by a person or by transom) stays, unless `undrain`.
    """
    _known(sb, node)
    cont_node(sb, node)
    sb.start(node)

    def back() -> bool:
        word = next(row.state for row in sb.nodes() if row.name == node)
        if word.startswith("down") or (undrain and word.startswith("drain")):
            # both states can apply: `resume` clears both, `undrain` only a drain
            sb.slurm("scontrol", "update", f"nodename={node}", "state=resume")
            return False
        return not word.endswith("*")

    if not wait_until(back, 60.0, every_s=0.3):
        sb.wait_nodes([node])


def kill_controller(sb: Sandbox) -> int:
    """Kill slurmctld; jobs keep running. Returns how many processes died (it has a helper).

    Changes that it has not saved (it saves within about 5 s) are lost when it comes back.
    """
    found = _controller(sb)
    return processes.freeze_then_kill(lambda: [proc for proc in found if processes.alive(proc.ident)])


def start_controller(sb: Sandbox) -> None:
    """Undo `kill_controller`: restart it from its saved state and wait until it answers."""
    cont_controller(sb)
    sb.start("slurmctld")
    sb.wait_answer()


def stop_controller(sb: Sandbox) -> int:
    """Hang slurmctld: connections are accepted and never answered."""
    return sum(processes.signal_one(proc.ident, signal.SIGSTOP) for proc in _controller(sb))


def cont_controller(sb: Sandbox) -> int:
    """Undo `stop_controller`."""
    return sum(processes.signal_one(proc.ident, signal.SIGCONT) for proc in _controller(sb))


def _controller(sb: Sandbox) -> list[processes.Proc]:
    main = next((row for row in sb.daemons() if row.name == "slurmctld" and row.state != "dead"), None)
    everything = processes.snapshot()
    if main is None or main.pid not in everything:
        return []
    return processes.with_families(everything, [everything[main.pid]])


def _known(sb: Sandbox, node: str) -> None:
    if node not in sb.node_names:
        raise UsageError(f"The sandbox has no node {node!r}", f"its nodes: {', '.join(sb.node_names)}")


def kill_agent(sb: Sandbox, job_id: int, node: str) -> int:
    """Kill the agent of this node and its children (SIGKILL); the ranks keep running. Returns its PID."""
    family = find_agent(sb, job_id, node)
    processes.freeze_then_kill(lambda: [proc for proc in family if processes.alive(proc.ident)])
    return family[0].pid


def stop_agent(sb: Sandbox, job_id: int, node: str) -> int:
    """Hang the agent (SIGSTOP). Returns its PID."""
    return processes.signal_all(find_agent(sb, job_id, node), signal.SIGSTOP)


def cont_agent(sb: Sandbox, job_id: int, node: str) -> int:
    """Undo `stop_agent`, even if the launcher has replaced the agent since: its snapshot daemon is still stopped."""
    agent = find_agent(sb, job_id, node)
    running = processes.of_job(sb.cluster, job_id)
    left = [p for p in running if p.environ.get("TRANSOM_ROLE") != "rank" and _is_on(p, node) and p not in agent]
    return processes.signal_all([*agent, *left], signal.SIGCONT)


def kill_launcher(sb: Sandbox, job_id: int) -> int:
    """Kill only the launcher (SIGKILL); slurmstepd ends its children. Returns its PID."""
    return processes.signal_all([find_launcher(sb, job_id)], signal.SIGKILL)


def stop_launcher(sb: Sandbox, job_id: int) -> int:
    """Hang the launcher (SIGSTOP); its sruns and the ranks keep running. Returns its PID."""
    return processes.signal_all([find_launcher(sb, job_id)], signal.SIGSTOP)


def cont_launcher(sb: Sandbox, job_id: int) -> int:
    """Undo `stop_launcher`."""
    return processes.signal_all([find_launcher(sb, job_id)], signal.SIGCONT)


def find_agent(sb: Sandbox, job_id: int, node: str) -> list[Proc]:
    """Return the job's agent on the node and its descendants, itself first."""
    running = {proc.pid: proc for proc in processes.of_job(sb.cluster, job_id)}
    agents = [p for p in running.values() if p.environ.get("TRANSOM_ROLE") == "agent" and _in_a_step(p)]
    tops = {p.environ["SLURMD_NODENAME"]: p for p in agents if p.ppid not in {a.pid for a in agents}}
    if node not in tops:
        there = ", ".join(sorted(tops)) or "none"
        raise UsageError(f"Job {job_id} has no running agent on {node!r}", f"nodes with one: {there}")
    return processes.descendants(running, tops[node])


def find_launcher(sb: Sandbox, job_id: int) -> Proc:
    """Return the launcher, also below the user's own script; without one, the batch script itself."""
    everything = processes.snapshot()
    outside = {proc.pid: proc for proc in processes.of_job(sb.cluster, job_id) if not _in_a_step(proc)}
    for proc in outside.values():
        parent = everything.get(proc.ppid)
        if parent is not None and processes.is_slurmstepd(parent):
            return next(filter(_launches, processes.descendants(outside, proc)), proc)
    raise UsageError(f"Job {job_id} has no running batch script", hint="transom sandbox exec -- squeue")


def _launches(proc: Proc) -> bool:
    words = [Path(word).name for word in processes.command_of(proc)]
    pairs = itertools.product(("transom", "transom_cli"), ("launch", "attempt-launcher"))
    return any(pair in itertools.pairwise(words) for pair in pairs)


def _is_on(proc: Proc, node: str) -> bool:
    return _in_a_step(proc) and proc.environ.get("SLURMD_NODENAME") == node


def _in_a_step(proc: Proc) -> bool:
    """The srun that starts the agents has their role, too, but it runs in the batch script, which is not a step."""
    return proc.environ.get("SLURM_STEP_ID", "").isdigit()


_MARK_SLOW = "TRANSOM_SANDBOX_SLOW"  # in a throttle's environment: <job>:<rank>


def kill_rank(sb: Sandbox, job_id: int, rank: int) -> int:
    """Kill the trainer process of this global rank and its children (SIGKILL). Returns its PID."""
    family = find_rank(sb, job_id, rank)
    processes.freeze_then_kill(lambda: [proc for proc in family if processes.alive(proc.ident)])
    return family[0].pid


def stop_rank(sb: Sandbox, job_id: int, rank: int) -> int:
    """Hang the rank (SIGSTOP). Returns its PID."""
    return processes.signal_all(find_rank(sb, job_id, rank), signal.SIGSTOP)


def cont_rank(sb: Sandbox, job_id: int, rank: int) -> int:
    """Undo `stop_rank`."""
    return processes.signal_all(find_rank(sb, job_id, rank), signal.SIGCONT)


def slow_rank(sb: Sandbox, job_id: int, rank: int, duty: float) -> int:
    """Let the rank run only a fraction of the time: `duty` above 0 and below 1. Returns its PID.

    A throttle process stops and continues it ten times a second until `unslow_rank`, or until the rank has ended.
    """
    if not 0.0 < duty < 1.0:
        raise UsageError(f"The fraction of time must be between 0 and 1, not {duty}")
    family = find_rank(sb, job_id, rank)
    unslow_rank(sb, job_id, rank)
    targets = [f"{proc.ident.pid}:{proc.ident.start}" for proc in family]
    env = {**os.environ, processes.MARK: sb.cluster, _MARK_SLOW: f"{job_id}:{rank}"}
    argv = ["setsid", "--fork", *own("transom_cli.sandbox.throttle", str(duty), *targets)]
    subprocess.run(argv, env=env, cwd="/", check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: (job_id, rank) in slowed(sb), 10.0, every_s=0.02)
    return family[0].pid


def unslow_rank(sb: Sandbox, job_id: int, rank: int) -> bool:
    """Undo `slow_rank`. Returns False if the rank was not slowed."""
    found = [proc for proc in _throttles(sb) if proc.environ[_MARK_SLOW] == f"{job_id}:{rank}"]
    for proc in found:
        processes.signal_one(proc.ident, signal.SIGTERM)  # it continues its rank before it ends
    wait_until(lambda: not any(processes.alive(proc.ident) for proc in found), 10.0, every_s=0.02)
    return bool(found)


def slowed(sb: Sandbox) -> list[tuple[int, int]]:
    """Return (job ID, rank) of every slowed rank."""
    pairs = {proc.environ[_MARK_SLOW].partition(":")[::2] for proc in _throttles(sb)}
    return sorted((int(job), int(rank)) for job, rank in pairs)


def find_rank(sb: Sandbox, job_id: int, rank: int, *, standby: bool = False) -> list[Proc]:
    """Return the process of a global rank and its descendants, itself first. standby: those of its standby."""
    running = [proc for proc in processes.of_job(sb.cluster, job_id) if _is_standby(proc) is standby]
    tops = rank_tops(running)
    if rank not in tops:
        there = ", ".join(map(str, sorted(tops))) or "none"
        raise UsageError(f"Job {job_id} has no running rank {rank}", f"its running ranks: {there}")
    return processes.descendants({proc.pid: proc for proc in running}, tops[rank])


def rank_tops(running: Sequence[Proc]) -> dict[int, Proc]:
    """Return the topmost process of each global rank, in the newest step. Pure.

    Only processes of an srun step count (the batch script has PROCID 0, too). If transom's wrapper marks ranks
    (TRANSOM_ROLE), or torchrun sets RANK, a process without that is a launcher of ranks.
    """
    tasks = [p for p in running if p.environ.get("SLURM_STEP_ID", "").isdigit() and "SLURM_PROCID" in p.environ]
    tasks = [p for p in tasks if p.environ.get("TRANSOM_ROLE") != "agent"]
    for sign in ("TRANSOM_ROLE", "RANK"):
        tasks = [p for p in tasks if sign in p.environ] or tasks
    ranks = {p.pid: int(p.environ.get("RANK") or p.environ["SLURM_PROCID"]) for p in tasks}
    tops = [p for p in tasks if ranks.get(p.ppid) != ranks[p.pid]]
    return {ranks[p.pid]: p for p in sorted(tops, key=lambda p: (int(p.environ["SLURM_STEP_ID"]), -p.ident.start))}


def _is_standby(proc: Proc) -> bool:
    """Whether the process waits for a launch that has not begun (`launch.standby`)."""
    attempt, launch = proc.environ.get("TRANSOM_ATTEMPT_DIR"), proc.environ.get("TRANSOM_LAUNCH")
    return "TRANSOM_STANDBY" in proc.environ and not Path(f"{attempt}/exits/{launch}").exists()


def _throttles(sb: Sandbox) -> list[Proc]:
    return [p for p in processes.of_sandbox(sb.cluster) if _MARK_SLOW in p.environ and p.comm != "setsid"]
