"""Whether a pyslurm is the right one for a cluster. Pure.

pyslurm's version names the Slurm release that it was made for (25.11.2: Slurm 25.11), and Slurm's own library, which it
is bound to, speaks to controllers of the same release and of a few others.
"""

from __future__ import annotations

import re

_TRIED = {("25.11", "26.05")}  # pyslurm's release, the cluster's: builds, and keeps the contract (docs/slurm.md)


def why_unfit(pyslurm: str, slurm: str) -> str:
    """Why not; empty where they fit. Both as they name themselves ("25.11.2", "26.05.5")."""
    ours, theirs = _release(pyslurm), _release(slurm)
    if ours and theirs and (ours == theirs or (ours, theirs) in _TRIED):
        return ""
    return f"pyslurm {pyslurm} is made for another release of Slurm than the cluster's {slurm}"


def _release(version: str) -> str:
    found = re.match(r"(\d+)\.(\d+)", version)
    return f"{int(found[1])}.{int(found[2]):02}" if found else ""
