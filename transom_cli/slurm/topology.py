"""Slurm's topology: the switches, or the block, above each node. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_SWITCH = re.compile(r"SwitchName=(\S+) .*?\bNodes=(\S+)")
_BLOCK = re.compile(r"BlockName=(\S+) .*?\bNodes=(\S+)")


def switches_of(text: str, expand: Callable[[str], Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Parse `scontrol show topology`, a tree or blocks: what is above each node, the widest first.

    Args:
        expand: returns the names behind a list such as `n[1-4]`. Raises ValueError if there are none.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for line in text.splitlines():
        named = _SWITCH.match(line.strip()) or _BLOCK.match(line.strip())
        if named is not None:
            nodes = tuple(expand(named[2]))
            for node in nodes:
                found.setdefault(node, []).append((-len(nodes), named[1]))
    return {node: tuple(name for _, name in sorted(above)) for node, above in found.items()}
