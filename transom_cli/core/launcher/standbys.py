"""Where standbys wait for the next launch, and which of its ranks they become (`launch.standby`). Pure.

The standbys on the nodes of the running launch have a rank each, that of the process beside them. Those of a spare have
only imports: they become the ranks of any node that the spare replaces.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from transom_cli.core.launcher.state import State

MOST = 4  # spares with standbys: each has a step of its own
_WHOLE_STEP = re.compile(r"-G|--gpus(=|$)")


@dataclass(frozen=True)
class Sites:
    """The spares on which standbys wait, and by node why there are none on the other ready ones."""

    spares: tuple[str, ...] = ()
    without: tuple[tuple[str, str], ...] = ()


def on_spares(state: State, borrowed: Collection[str], srun_args: Sequence[str]) -> Sites:
    """Choose the spares that are used first. borrowed: nodes of other jobs, in which a step would be another one."""
    nodes = state.nodes
    whole = next((word for word in srun_args if _WHOLE_STEP.match(word)), "")
    spares: list[str] = []
    without: list[tuple[str, str]] = []
    for node in (*nodes.usable, *(n for n in nodes.ready if n in nodes.draining)):
        if node in nodes.draining:
            why = "it is being drained"
        elif node in borrowed or any(n in borrowed for n in nodes.training):
            why = "the run has nodes of two jobs"
        elif whole:
            why = f"{whole} in launch.srun_args counts for all nodes of a step"
        elif len(spares) >= MOST:
            why = f"{MOST} others have some"
        else:
            spares.append(node)
            continue
        without.append((node, why))
    return Sites(tuple(spares), tuple(without))


@dataclass(frozen=True)
class Taken:
    """The ranks that standbys become: those of the running launch's nodes, and by node those of spares."""

    here: tuple[int, ...] = ()
    spares: tuple[tuple[str, tuple[int, ...]], ...] = ()
    why: str = ""  # not all of them can be standbys, so that none is


def take(
    nodes: tuple[str, ...], ranks: tuple[int, ...], each: int, here: tuple[str, ...], spares: Collection[str]
) -> Taken:
    """Choose standbys for these ranks of a launch on `nodes`, with `each` ranks per node.

    here: the nodes of the standbys that have a rank; () if there are none. spares: the nodes of those that have not.
    """
    own: list[int] = []
    others: dict[str, list[int]] = {}
    for rank in ranks:
        place = rank // each
        node = nodes[place]
        if len(here) == len(nodes) and here[place] == node:
            own.append(rank)
        elif node in spares:
            others.setdefault(node, []).append(rank)
        else:
            return Taken(why=f"none on {node} can become rank {rank}" if here or spares else "no standby is ready")
    return Taken(tuple(own), tuple((node, tuple(found)) for node, found in others.items()))
