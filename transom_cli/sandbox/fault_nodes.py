"""Faults of machines: a node or the controller dies, hangs, comes back. Slurm is told nothing of it."""

from __future__ import annotations

import signal

from transom_cli.errors import UsageError
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


def kill_controller(sb: Sandbox) -> int:
    """slurmctld dies; jobs run on. Returns how many processes died (it has a helper).

    What it had not yet saved (it does so within about 5 s of a change) it has forgotten when it comes back.
    """
    found = _controller(sb)
    return procs.freeze_then_kill(lambda: [proc for proc in found if procs.alive(proc.ident)])


def start_controller(sb: Sandbox) -> None:
    """Undo `kill_controller`: start it again from its saved state and wait until it answers."""
    cont_controller(sb)
    sb.start("slurmctld")
    sb.wait_answer()


def stop_controller(sb: Sandbox) -> int:
    """slurmctld hangs: connections are accepted and never answered."""
    return sum(procs.signal_one(proc.ident, signal.SIGSTOP) for proc in _controller(sb))


def cont_controller(sb: Sandbox) -> int:
    """Undo `stop_controller`."""
    return sum(procs.signal_one(proc.ident, signal.SIGCONT) for proc in _controller(sb))


def _controller(sb: Sandbox) -> list[procs.Proc]:
    main = next((row for row in sb.daemons() if row.name == "slurmctld" and row.state != "dead"), None)
    everything = procs.snapshot()
    if main is None or main.pid not in everything:
        return []
    return procs.with_families(everything, [everything[main.pid]])


def _known(sb: Sandbox, node: str) -> None:
    if node not in sb.node_names:
        raise UsageError(f"The sandbox has no node {node!r}", f"its nodes: {', '.join(sb.node_names)}")
