"""Which rank writes what: what all ranks hold alike is shared out among them, so that each copies and writes its part.

The plan is DCP's own, made by rank 0 from what every rank holds, and kept until the state of some rank changes its
shape (an optimizer's state appears with its first step). All calls are made by all ranks together, in the background.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan

from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.image import Layout

Offer = tuple[SavePlan, frozenset[MetadataIndex]]  # all that a rank holds, and what of it is in its snapshot


@dataclass(frozen=True)
class Share:
    """What a rank writes of the snapshot at hand, and of the next ones. `trouble`: why there is no agreement, or ""."""

    now: frozenset[MetadataIndex] = frozenset()
    later: frozenset[MetadataIndex] = frozenset()
    trouble: str = ""


class Sharing:
    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.metadata: Metadata | None = None  # of all shares, where they are stored apart; on rank 0

    def agree(self, layout: Layout) -> Share:
        offers: list[Offer] | None = self._ranks.to_first((layout.plan, layout.indices))
        shares: list[Share] | None = None
        if offers is not None:
            try:
                self.metadata, shares = _shared_out(offers)
            except Exception as error:
                shares = [Share(trouble=f"{type(error).__name__}: {error}")] * self._ranks.size
        return self._ranks.each_from_first(shares)


def _shared_out(offers: list[Offer]) -> tuple[Metadata, list[Share]]:
    plans, metadata = _planned([plan for plan, _ in offers])
    held = [SavePlan([i for i in p.items if i.index in have], p.storage_data, p.planner_data) for p, have in offers]
    whole = all(len(part.items) == len(plan.items) for part, (plan, _) in zip(held, offers, strict=True))
    now = plans if whole else _planned(held)[0]
    missing = _indices(plans) - _indices(now)
    if missing:
        some = min(missing, key=lambda index: index.fqn)
        raise ValueError(f"{some.fqn} is in no rank's snapshot: the ranks' states differ in shape")
    return metadata, [Share(_indices([n]), _indices([p])) for n, p in zip(now, plans, strict=True)]


def _planned(plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
    return DefaultSavePlanner(flatten_state_dict=True, flatten_sharded_tensors=False).create_global_plan(plans)


def _indices(plans: list[SavePlan]) -> frozenset[MetadataIndex]:
    return frozenset(item.index for plan in plans for item in plan.items)
