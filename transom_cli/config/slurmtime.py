"""Slurm's times as numbers. Pure; the standard library alone."""

from __future__ import annotations


def slurm_seconds(value: str | None) -> int | None:
    """A Slurm time in seconds, as a time limit: rounded up to minutes. None: unset, or no limit (UNLIMITED, 0)."""
    if value is None or not value[0].isdigit():
        return None
    days, dash, rest = value.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # D-H, D-H:M, D-H:M:S
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:  # M, M:S, H:M:S
        hours, minutes, seconds = parts if len(parts) == 3 else (0, *parts, 0)[:3]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return -(-total // 60) * 60 or None
