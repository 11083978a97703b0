"""Checks made for tests. A real node worker runs their readers in a real reader process, which imports this module."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict

PATH = str(Path(__file__).parent)
DO = "HEALTH_MADE"  # what a node's reader does: from its environment


@dataclass(frozen=True)
class Made:
    value: int
    pid: int


@dataclass(frozen=True)
class MadeLimits:
    made_limit: int = 10


def read_made(about: About) -> Made:
    found = os.environ.get(DO, "")
    if found == "hang":
        time.sleep(3600)
    if found == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(3600)  # another thread may be the one that it is delivered to, a moment later
    if found == "raise":
        raise RuntimeError("the tool is broken")
    if found == "long":
        return Made(int("9" * 3000), os.getpid())
    return Made(int(found or 1), os.getpid())


def read_well(about: About) -> Made:
    return Made(about.gpus, os.getpid())


def judge_made(node: str, reading: Made, about: About, limits: MadeLimits) -> tuple[Finding, ...]:
    bad = reading.value > limits.made_limit
    return (Finding("made", Verdict.FAIL if bad else Verdict.PASS, node, f"value {reading.value}", Remedy.REPAIR),)


def judge_well(node: str, reading: Made, about: About, limits: MadeLimits) -> tuple[Finding, ...]:
    return (Finding("well", Verdict.PASS, node, f"{reading.value} GPUs"),)


def overdue(node: str, waited: float, about: About) -> Finding:
    return Finding("made", Verdict.SUSPECT, node, f"no answer for {waited:.0f} s")


def made_check(tier: Tier = Tier.QUICK) -> Check:
    where = "health_made:read_made"
    return Check("made", where, judge_made, Made, MadeLimits, 1.0, tier, ("made",), overdue)


def well_check() -> Check:
    where = "health_made:read_well"
    return Check("well", where, judge_well, Made, MadeLimits, 1.0, Tier.WATCH, ("well",), overdue)
