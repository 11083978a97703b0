"""Which ranks stay behind in a communicator of a running job, by two successive answers of NCCL's RAS. Pure.

In a healthy training, counts differ for moments. A rank that has the same count in the next answer, too, has launched
nothing meanwhile, and the others wait for it. It may itself wait in another communicator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from transom_cli.diagnose.hangs.ras import Communicator, job_ranks
from transom_cli.diagnose.hangs.stacks import rank_names, ranks_do
from transom_cli.plural import several


@dataclass(frozen=True)
class Behind:
    """Ranks with the fewest calls of a collective.

    Attributes:
        communicator: Its hash.
        ranks: By the communicator's own numbers.
        since: When an answer first showed this.
        words: For people.
    """

    communicator: str
    operation: str
    ranks: frozenset[int]
    count: int
    since: float
    words: str

    def same(self, other: Behind) -> bool:
        mine = self.communicator, self.operation, self.ranks, self.count
        return mine == (other.communicator, other.operation, other.ranks, other.count)


def behind(comms: Iterable[Communicator], pids: Mapping[int, int], world: int, now: float) -> tuple[Behind, ...]:
    """Return at most one per communicator, the fewest ranks first.

    Args:
        pids: process IDs of one node's ranks of the job, by rank.
        world: how many ranks the job has; 0 if unknown.
        now: the time of the answer.
    """
    found = []
    for comm in comms:
        late = [one for op, counts in comm.counts.items() for one in _late(comm, op, counts, pids, world, now)]
        found += sorted(late, key=lambda one: len(one.ranks))[:1]
    return tuple(sorted(found, key=lambda one: len(one.ranks)))


def lasting(before: Iterable[Behind], found: Iterable[Behind]) -> tuple[Behind, ...]:
    """Return what is `found`, since when the answers `before` show the same."""
    since = {one.communicator: one for one in before}
    return tuple(
        replace(one, since=last.since) if (last := since.get(one.communicator)) and one.same(last) else one
        for one in found
    )


def _late(
    comm: Communicator, op: str, counts: Mapping[int, int], pids: Mapping[int, int], world: int, now: float
) -> list[Behind]:
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    if least == most or op.startswith(("Send", "Recv")):  # sends and receives differ by right
        return []
    ranks = frozenset(rank for rank, count in counts.items() if count == least)
    up_to = "up to " if len(set(counts.values())) > 2 else ""
    words = f"{_who(comm, ranks, pids, world)} behind in communicator {comm.name} ({several(comm.size, 'rank')}): "
    words += f"{several(least, f'{op} operation')}, others {up_to}{most:,}"
    return [Behind(comm.name, op, ranks, least, now, words)]


def _who(comm: Communicator, ranks: frozenset[int], pids: Mapping[int, int], world: int) -> str:
    """A communicator of all ranks numbers them like the job, unless this node's process IDs say otherwise."""
    known = job_ranks(comm, pids, dict.fromkeys(pids, ""), world)
    if comm.size == world and all(rank == own for own, rank in known.items()):
        return ranks_do(ranks, "are", "is")
    host, pid = comm.processes.get(min(ranks), ("", 0))
    where = f" (process {pid} on {host})" if len(ranks) == 1 and pid else ""
    return f"communicator {rank_names(ranks)}{where} {'is' if len(ranks) == 1 else 'are'}"
