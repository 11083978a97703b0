"""The memory that snapshots take on each node, before a run starts. Pure.

With S for a node's share of the state (all parameters and optimizer state, divided by the nodes):

    memory of a node  =  buffers * S * 33/32  +  sides * M/K * S

buffers: 3 for each rank, 1 more with `also`; with protection 2, and up to 4 if saves come faster than protection and
disk. K and M: chunks of data and parity in a stripe (1 and 1 for a replica). sides: 1 if every save becomes durable;
otherwise 2, because the parity of the last protected step is kept until that of the next one is complete. Less is not
possible with 2 nodes: until both hold the new step, each must hold the old one of both. The trainer's own tensors
and about 30 MB for the snapshot daemon come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.ckpt.snapshot.protection import NONE, Protection, code, groups

BUFFERS = 3  # of a rank: the newest committed snapshot, one being made durable, and the next
PROTECTED_BUFFERS = 2  # at first, with protection, which takes memory as well
_GROWTH = 33 / 32  # a buffer has room for a state that grows a little


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes. `buffers` and `parity`: of a node. `most`: of a node, if saves come faster than protection and disk."""

    state: int
    nodes: int
    rank_share: int
    node_share: int
    slots: int  # buffers of a rank
    most_slots: int
    data: int  # K of the smallest group; 0: no protection
    rows: int  # M
    sides: int
    buffers: int
    parity: int
    most: int

    @property
    def total(self) -> int:
        return self.buffers + self.parity


def memory_plan(
    state: int, ranks: int, ranks_per_node: int, protection: Protection, *, every_durable: bool, also: bool = False
) -> MemoryPlan:
    """Args:
    state: bytes of the whole state, in which a value that all ranks hold counts once.
    """
    nodes = -(-ranks // ranks_per_node)
    share = -(-state // nodes)
    slots = most_slots = BUFFERS + also
    data = rows = sides = 0
    if protection != NONE:
        slots, most_slots = PROTECTED_BUFFERS, BUFFERS + 1 + also
        names = tuple(map(str, range(nodes)))
        data, rows = min(code(len(group), protection) for group in groups(names, protection))
        sides = 1 if every_durable else 2
    parity = -(-share * rows // data) if data else 0
    return MemoryPlan(
        state, nodes, -(-state // ranks), share, slots, most_slots, data, rows, sides,
        int(slots * share * _GROWTH), sides * parity, int(most_slots * share * _GROWTH) + (2 * parity if sides else 0),
    )  # fmt: skip
