"""Who is to blame, from what several ranks and torchrun print: who lags in a hang, where a rank ran. Pure.

A rank whose watchdog cries has launched its collective and waits; the one to blame lags behind, or says nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.rule import Blames

CRIES = (Category.NETWORK_FABRIC, Category.NCCL_HANG)  # what victims print
FEW = 0.25  # share of the ranks that may be silent to be told as the culprits
BOX = "elastic-box"  # the rule of torchrun's box of failures, whose last one it takes for the first that failed

Blamed = tuple[tuple[Culprit, ...], tuple[str, ...]]


def who_lags(hits: Sequence[Hit], ranks: frozenset[int] = frozenset()) -> Blamed | None:
    """Culprits and why; None where nothing tells. ranks: all that there are, where the logs show it."""
    enqueued: dict[int, int] = {}
    for hit in hits:
        rank, number = hit.record.rank, hit.where.get("enqueued") or hit.where.get("seq", "")
        if rank is not None and number.isdigit():
            enqueued[rank] = max(enqueued.get(rank, 0), int(number))
    if len(set(enqueued.values())) > 1:
        least = min(enqueued.values())
        behind = sorted(rank for rank, number in enqueued.items() if number == least)
        if len(behind) <= max(1, len(enqueued) // 2):
            said = f"it has launched {least} collectives, others up to {max(enqueued.values())}"
            return tuple(Culprit(rank=rank) for rank in behind), (said,)
    missing = {int(number) for hit in hits for number in hit.where.get("missing", "").split(",") if number.strip()}
    if missing:
        return tuple(Culprit(rank=rank) for rank in sorted(missing)), ("the others wait for it, as they say",)
    crying = {hit.record.rank for hit in hits if hit.rule.category in CRIES and hit.record.rank is not None}
    silent = sorted(ranks - crying)
    if crying and 0 < len(silent) <= max(1, int(FEW * len(ranks))):
        said = f"{len(crying)} ranks wait in a collective, or lost their connections then, it says nothing"
        return tuple(Culprit(rank=rank) for rank in silent), (said,)
    if len(enqueued) > 1:
        return (), (f"all {len(enqueued)} ranks that tell have launched the same collectives",)
    return None


def completed(culprits: Sequence[Culprit], hits: Sequence[Hit], root: Hit) -> tuple[Culprit, ...]:
    """With the node of a rank, as another line tells it; and torchrun's own word where the root names nobody."""
    boxes = [hit for hit in hits if hit.rule.name == BOX and hit.where.get("rank", "").isdigit()]
    known = [culprit for culprit in culprits if culprit != Culprit()]
    if not known and boxes and root.rule.blames is Blames.PRINTER:
        known = [Culprit(rank=int(boxes[-1].where["rank"]))]
    nodes: dict[int, str] = {}
    for hit in hits:
        rank = hit.where.get("rank", "")
        of, node = int(rank) if rank.isdigit() else hit.record.rank, hit.where.get("node") or hit.record.node
        if of is not None and node:
            nodes.setdefault(of, node)
    return tuple(c if c.node or c.rank not in nodes else replace(c, node=nodes[c.rank]) for c in known)
