"""Who the others wait for, from what watchdogs print: the rank that has launched the fewest collectives. Pure.

A rank whose watchdog cries has launched its collective and waits; the one to blame lags behind, or says nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.hits import Hit

FEW = 0.25  # share of the ranks that may be silent to be told as the culprits


def who_lags(
    hits: Sequence[Hit], ranks: frozenset[int] = frozenset()
) -> tuple[tuple[Culprit, ...], tuple[str, ...]] | None:
    """Culprits and why; None where nothing tells. ranks: all that there are, where the logs show it."""
    enqueued: dict[int, int] = {}
    for hit in hits:
        rank, number = hit.record.rank, hit.where.get("enqueued") or hit.where.get("seq", "")
        if rank is not None and number.isdigit():
            enqueued[rank] = max(enqueued.get(rank, 0), int(number))
    if len(enqueued) > 1 and len(set(enqueued.values())) > 1:
        least = min(enqueued.values())
        behind = sorted(rank for rank, number in enqueued.items() if number == least)
        if len(behind) <= max(1, len(enqueued) // 2):
            said = f"it has launched {least} collectives, the others up to {max(enqueued.values())}"
            return tuple(Culprit(rank=rank) for rank in behind), (said,)
    silent = sorted(ranks - set(enqueued))
    if enqueued and 0 < len(silent) <= max(1, int(FEW * len(ranks))):
        return tuple(Culprit(rank=rank) for rank in silent), (
            f"{len(enqueued)} ranks wait in a collective, it does not",
        )
    return ((), ("every rank that tells has launched the same collective: not determinable",)) if enqueued else None
