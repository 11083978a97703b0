"""Ranks in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = 8  # runs of ranks


def told(ranks: Iterable[int]) -> str:
    """`rank 5`, `ranks 0-4, 6 and 7 more`: short whatever their number."""
    runs: list[list[int]] = []
    numbers = sorted(set(ranks))
    for rank in numbers:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [f"{a}" if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs[:SHOWN]]
    left = sum(b - a + 1 for a, b in runs[SHOWN:])
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(parts)}{f' and {left} more' if left else ''}"


def do(ranks: Iterable[int], plural: str, singular: str) -> str:
    """`rank 5 waits`, `ranks 0-3 wait`."""
    several = len(set(ranks := tuple(ranks))) != 1
    return f"{told(ranks)} {plural if several else singular}"
