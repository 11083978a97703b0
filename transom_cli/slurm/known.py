"""Nodes by name, where some names may be of nodes that are no more: Slurm refuses a whole list for one of them."""

from __future__ import annotations

from collections.abc import Sequence

from transom_cli.slurm.port import Node, Slurm, SlurmRefused


def known_nodes(slurm: Slurm, names: Sequence[str]) -> list[Node]:
    """Those of the named nodes that Slurm knows."""
    if not names:
        return []
    try:
        return slurm.nodes(names)
    except SlurmRefused:
        return [node for node in slurm.nodes() if node.name in names]


def still_there(slurm: Slurm, names: Sequence[str]) -> tuple[str, ...]:
    """Of nodes to exclude those that have not been deleted, in their order: nobody need keep off the others."""
    known = {node.name for node in known_nodes(slurm, names)}
    return tuple(name for name in names if name in known)
