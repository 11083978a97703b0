"""Count every Slurm command that a run's processes start, with wrappers at the front of PATH that each write a line."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PROGRAMS = ("squeue", "scontrol", "sbatch", "scancel", "sacct", "srun", "sinfo")
# The caller is known by its command line; `show hostnames` asks nobody.
_WRAPPER = """#!/bin/sh
if [ "$1 $2" != "show hostnames" ]; then
    printf '%s\\t%s\\t%s\\t%s\\n' "$(date +%s.%N)" {name} "$(tr '\\0' ' ' </proc/$PPID/cmdline)" "$*" >>{log}
fi
exec {real} "$@"
"""
_CALLERS = (("launch", "launcher"), ("agent", "agent"), ("status", "viewer"), ("operate", "operator"))


@dataclass(frozen=True)
class Call:
    """``at``: Unix time. ``who``: operator, launcher, viewer or other."""

    at: float
    program: str
    who: str
    words: str


def make_wrappers(folder: Path, log: Path) -> None:
    """One for each of Slurm's commands that is installed."""
    folder.mkdir()
    for name in PROGRAMS:
        real = shutil.which(name)
        if real is not None:
            path = folder / name
            path.write_text(_WRAPPER.format(name=name, log=log, real=real))
            path.chmod(0o755)


def read_calls(text: str) -> list[Call]:
    """Of whole lines."""
    calls = []
    for line in text.splitlines(keepends=True):
        parts = line.rstrip("\n").split("\t", 3)
        if line.endswith("\n") and len(parts) == 4:
            calls.append(Call(float(parts[0]), parts[1], _who(parts[2]), parts[3]))
    return calls


def _who(caller: str) -> str:
    words = caller.split()
    return next((who for word, who in _CALLERS if word in words), "other")


@dataclass(frozen=True)
class Minute:
    """Of an outage, from 0; how many commands each asked, and with which programs."""

    number: int
    by_who: Counter[str]
    by_program: Counter[str]

    @property
    def total(self) -> int:
        return sum(self.by_who.values())


def by_minute(calls: Iterable[Call], began: float, seconds: float) -> list[Minute]:
    """Of an outage of so many seconds; what comes a moment after its end counts in its last minute."""
    minutes = [Minute(n, Counter(), Counter()) for n in range(max(1, math.ceil(seconds / 60)))]
    for call in calls:
        minute = minutes[min(int((call.at - began) // 60), len(minutes) - 1)]
        minute.by_who[call.who] += 1
        minute.by_program[call.program] += 1
    return minutes


def gaps(calls: Iterable[Call], who: str) -> list[float]:
    """Seconds between what it asked."""
    times = sorted(call.at for call in calls if call.who == who)
    return [round(b - a, 1) for a, b in pairwise(times)]
