"""Which nodes hold parity of which bytes, so that a training state in memory survives the loss of nodes. Pure.

One scheme for all. A stripe is k chunks of data and m chunks of parity, each on another node, and any k of the k + m
give all of it back (`coder` has the code). Nodes are put into groups. A group of n nodes, of which m may be lost, has
n stripes: stripe i has its parity on the m nodes from the i-th on, round and round, and its data on the k = n - m
others. So every node is in each stripe with one chunk, holds parity in m of them, and has its bytes cut into k chunks,
one for each of the others. Memory and traffic are the same for all nodes: m / k of what a node holds. It is RAID 5's
rotated parity with any number of rows (Patterson, Gibson, Katz, SIGMOD 1988), over nodes as in SCR's XOR scheme (Moody
et al., SC 2010).

A group's nodes come from as many failure domains as there are. GEMINI (Wang et al., SOSP 2023) and NVIDIA's
resiliency-ext (its cliques of ranks for local checkpoints) place replicas in groups for the same reason.

With S for a node's share of the state (all parameters and optimizer state, divided by the nodes), snapshots take

    memory of a node  =  buffers * S * 33/32  +  sides * M/K * S

buffers: 3 for each rank, 1 more with `also`; with protection 2, and up to 4 if saves come faster than protection and
disk. K and M: chunks of data and parity in a stripe (1 and 1 for a replica). sides: 1 if every save becomes durable;
otherwise 2, because the parity of the last protected step is kept until that of the next one is complete. Less is not
possible with 2 nodes: until both hold the new step, each must hold the old one of both. The trainer's own tensors and
about 30 MB for the snapshot daemon come on top.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.errors import UsageError

MOST = 128  # data and parity: a group may have nearly twice as many nodes, and the field has 256 elements
GRAIN = 64  # bytes: a cache line; chunks begin at a multiple of it

_FORM = re.compile(r"xor:(?P<ones>[1-9][0-9]{0,3})|rs:(?P<data>[1-9][0-9]{0,3})\+(?P<parity>[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Protection:
    """The requested code. Groups of another size than data + parity keep the parity, and have more or less data."""

    data: int  # chunks of data in a stripe
    parity: int  # chunks of parity in it: so many nodes of a group may be lost

    def __post_init__(self) -> None:
        if (self.data, self.parity) != (0, 0) and not (self.data > 0 < self.parity and self.nodes <= MOST):
            raise ValueError(f"no code has {self.data} chunks of data and {self.parity} of parity")

    @property
    def nodes(self) -> int:
        """The least size of a group that has this very code. 0: no protection."""
        return self.data + self.parity

    def __str__(self) -> str:
        """The text that `parse` reads, one for each code."""
        if self == NONE:
            return "none"
        if self == REPLICA:
            return "replica"
        return f"xor:{self.data}" if self.parity == 1 else f"rs:{self.data}+{self.parity}"


NONE = Protection(0, 0)
REPLICA = Protection(1, 1)


def parse(text: str) -> Protection:
    """What a person wrote. Raises UsageError."""
    if text in ("none", "replica"):
        return NONE if text == "none" else REPLICA
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"`{text}` is not a protection of snapshots in memory",
            "it is `none`, `replica`, `xor:K` or `rs:K+M`: M nodes' worth of parity for every K nodes",
            "`rs:4+2` survives the loss of any 2 nodes of a group of 6, for half as much memory again",
        )
    data, parity = int(found["ones"] or found["data"]), int(found["parity"] or 1)
    if data + parity > MOST:
        raise UsageError(
            f"`{text}` asks for groups of {data + parity} nodes",
            f"a group has at most {MOST}: data and parity together",
            "large groups lose more than one node sooner: `rs:8+2` is a large one",
        )
    return Protection(data, parity)


def code(size: int, protection: Protection) -> tuple[int, int]:
    """(k, m) of a group of `size` nodes; (0, 0) where nothing is protected: not requested, or a single node.

    A group too small for the code gives up data before parity: with as many nodes as may be lost, or fewer, every node
    holds a copy of all.
    """
    parity = min(protection.parity, size - 1)
    return (size - parity, parity) if parity > 0 else (0, 0)


def groups(
    nodes: Sequence[str], protection: Protection, domains: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], ...]:
    """The nodes in groups for the code; each alone if no protection is requested.

    As many groups as the code allows, of sizes as equal as possible: from data + parity to nearly twice that, or fewer
    where there are fewer nodes. `domains` names what fails together (a switch, a rack); a node that is not in it is
    its own. No group has more of a domain's nodes than another group by more than one, which is the best there is.
    The same nodes in the same order give the same groups on every node, so the groups need not be sent.
    """
    if len(set(nodes)) != len(nodes):
        raise ValueError("a node is named twice")
    if protection == NONE:
        return tuple((node,) for node in nodes)
    together: dict[tuple[bool, str], list[str]] = {}
    for node in nodes:
        known = domains is not None and node in domains
        together.setdefault((known, domains[node] if domains is not None and known else node), []).append(node)
    ordered = [node for members in sorted(together.values(), key=len, reverse=True) for node in members]
    count = max(1, len(nodes) // protection.nodes)
    # Dealt like cards: a domain's nodes follow one another, so they go to different groups while there are any.
    return tuple(tuple(ordered[first::count]) for first in range(count)) if ordered else ()


@dataclass(frozen=True)
class Stripe:
    """What is coded together. Its chunks may differ in length: all count as long as the longest, filled with zeros, and
    that is the length of each parity row."""

    data: tuple[str, ...]  # by column: the node whose bytes it covers
    chunks: tuple[int, ...]  # by column: which chunk of that node's bytes
    parity: tuple[str, ...]  # by row: the node that holds it


def stripes(group: Sequence[str], protection: Protection) -> tuple[Stripe, ...]:
    """As many as the group has nodes, none where nothing is protected."""
    columns, rows = code(len(group), protection)
    if rows == 0:
        return ()
    turned = (tuple(group[i:]) + tuple(group[:i]) for i in range(len(group)))
    # A node has another position in each stripe, so each column once: the column is also its chunk's number.
    return tuple(Stripe(nodes[rows:], tuple(range(columns)), nodes[:rows]) for nodes in turned)


def survives(groups: Iterable[Sequence[str]], protection: Protection, lost: Collection[str]) -> bool:
    """Whether what the lost nodes held can be had from the others. Nodes in no group hold nothing."""
    gone = set(lost)
    return all(len(gone.intersection(group)) <= code(len(group), protection)[1] for group in groups)


@dataclass(frozen=True)
class Segment:
    """Bytes of one file."""

    file: str
    start: int  # offset in the file, bytes
    length: int  # bytes, more than 0


def cut(files: Sequence[tuple[str, int]], chunks: int, chunk: int) -> tuple[Segment, ...]:
    """Where chunk number `chunk` of `chunks` lies in a node's files, given as (name, bytes), one after the other.

    All chunks are equally long, except the last ones, which may be shorter or empty.
    """
    if not 0 <= chunk < chunks:
        raise ValueError(f"there is no chunk {chunk} of {chunks}")
    each = -(-sum(size for _, size in files) // (chunks * GRAIN)) * GRAIN
    found, begin = [], 0  # of the file, in the row of all of them
    for name, size in files:
        start, end = max(begin, chunk * each), min(begin + size, (chunk + 1) * each)
        if start < end:
            found.append(Segment(name, start - begin, end - start))
        begin += size
    return tuple(found)


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
