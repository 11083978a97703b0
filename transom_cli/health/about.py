"""What the checks are told of the job that they are made for. Pure; the same for all of its nodes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Tier(enum.Enum):
    """watch: cheap enough for every 30 s beside a training. quick: before each attempt. deep: minutes, on a suspect."""

    WATCH = "watch"
    QUICK = "quick"
    DEEP = "deep"

    def includes(self, other: Tier) -> bool:
        order = (Tier.WATCH, Tier.QUICK, Tier.DEEP)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True)
class About:
    """The defaults are those of a check by hand, on any node, for no job at all.

    gpus: how many the job asked for on each node; with 0 a node without GPUs is well. since: when the job began, in
    seconds of the wall clock; what was logged earlier is not judged. folders: directories of the job that must answer
    and be writable on every node. snapshot_bytes: memory that its snapshots will take on each node. token: the file
    that the asker has written, as "path\\nwords", and that every node must read alike. site_checks: the site's own
    executables (`checks.d`). tier: how long a check may take.
    """

    tier: Tier = Tier.QUICK
    gpus: int = 0
    since: float = 0.0
    folders: tuple[str, ...] = ()
    snapshot_bytes: int = 0
    token: str = ""
    site_checks: str = ""
