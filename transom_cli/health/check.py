"""What a check of a node consists of, what it knows about the job, and how a run's checks are configured. Pure.

A check is a reader, `read_x(about) -> XReading`, which touches the machine, and a judge, `judge_x(node, reading, about,
limits) -> findings`, which is pure. One reading may answer several questions: the judge returns one finding per
question, named in `findings`. Settings and tables call those names checks.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.health.finding import Finding, Verdict


class Tier(enum.Enum):
    """watch: cheap enough for every 30 s during training. quick: before each attempt. deep: minutes, on a suspect."""

    WATCH = "watch"
    QUICK = "quick"
    DEEP = "deep"

    def includes(self, other: Tier) -> bool:
        order = (Tier.WATCH, Tier.QUICK, Tier.DEEP)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True)
class About:
    """The job that nodes are checked for; the same for all of them. The defaults suit `transom check` without a job.

    tier: how long a check may take. gpus: GPUs per node that the job requested; with 0, a node without GPUs is healthy.
    since: start of the job in seconds of the wall clock; older log lines are ignored. folders: directories that must
    answer and be writable on every node. snapshot_bytes: memory per node that the job's snapshots need. token: a file
    that the caller wrote, as "path\\ncontent", and that every node must read unchanged. site_checks: folder of the
    site's own executables (`checks.d`).
    """

    tier: Tier = Tier.QUICK
    gpus: int = 0
    since: float = 0.0
    folders: tuple[str, ...] = ()
    snapshot_bytes: int = 0
    token: str = ""
    site_checks: str = ""


@dataclass(frozen=True)
class HealthOptions:
    """A run's health settings; `config.model.Health` documents each. Times in seconds.

    preflight: the tier before the first launch, or "off". python: the probe's interpreter and its flags.
    """

    preflight: str = "off"
    budget: float = 30.0
    deep: bool = False
    deep_budget: float = 300.0
    probe: bool = True
    python: tuple[str, ...] = ()
    watch: bool = True
    every: float = 30.0
    off: tuple[str, ...] = ()
    limits: tuple[tuple[str, float], ...] = ()
    site_checks: str = ""


@dataclass(frozen=True)
class NoLimits:
    """For checks without thresholds."""


Judge = Callable[[str, Any, About, Any], tuple[Finding, ...]]
JudgeChanges = Callable[[str, Any, Any, float, About, Any], tuple[Finding, ...]]


@dataclass(frozen=True)
class Check:
    """One check, as `registry.CHECKS` lists it.

    Args:
        reader: "module:function"; it runs in a process of its own on the node.
        reading: the frozen dataclass that the reader returns: plain values, tuples and such dataclasses, so that it can
            be recorded as JSON.
        limits: the frozen dataclass of the judge's thresholds; `health.limits` in the settings overrides its fields.
        seconds: how long a reading may take. After that it counts as hung.
        overdue: what a hung reading says about the node: (node, seconds waited, about) -> Finding, or what did not
            finish ("reading /proc"), which is UNKNOWN.
        changes: (node, former reading, reading, seconds between them, about, limits) -> what happened in between. Used
            while a training runs.
    """

    name: str
    reader: str
    judge: Judge
    reading: type
    limits: type
    seconds: float
    tier: Tier
    findings: tuple[str, ...]
    overdue: str | Callable[[str, float, About], Finding]
    changes: JudgeChanges | None = None

    def late(self, node: str, waited: float, about: About) -> Finding:
        """Return what a reading that has hung for `waited` seconds says about the node."""
        if callable(self.overdue):
            return self.overdue(node, waited, about)
        return Finding(self.name, Verdict.UNKNOWN, node, f"{self.overdue} did not finish in {waited:.0f} s")


def unwanted(check: str, off: Iterable[str]) -> bool:
    """Return whether the setting `health.off` names the check, by its own name or as "mount" for every "mount:..."."""
    return check in off or check.partition(":")[0] in off


def limits_of(kind: type, overrides: Mapping[str, float]) -> Any:
    """Return thresholds with the overrides of `health.limits`; names that belong to other checks are ignored."""
    known = {f.name for f in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in overrides.items() if name in known})
