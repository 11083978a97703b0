"""Asks Slurm and the attempt's launcher about a node that the operator cannot reach."""

import time

from transom_cli.files import read_lines
from transom_cli.health.reach import CALLED_DOWN
from transom_cli.layout import AttemptDir
from transom_cli.slurm.port import Node

RECENT = 120.0  # seconds for which the launcher's word counts


def slurm_says(node: Node) -> str:
    """Return what Slurm says if the node is gone; "" if Slurm does not say so."""
    if node.state.startswith("down"):
        return CALLED_DOWN
    return "Slurm gets no answer from it either" if node.not_responding else ""


def launcher_says(attempt: AttemptDir, node: str, now: float | None = None) -> str:
    """Return what the launcher says if the batch host reaches neither the node's agent nor its slurmd; else ""."""
    now = time.time() if now is None else now
    told = [r for r in read_lines(attempt.launcher_journal) if r.get("type") == "agent" and r.get("node") == node]
    last = told[-1] if told else {}
    wall = last.get("wall")
    recent = isinstance(wall, (int, float)) and abs(now - wall) <= RECENT
    return "the launcher does not reach it either" if last.get("unreachable") is True and recent else ""
