"""The limits that a process of the job gets (getrlimit(2)): those of whoever looks, which Slurm hands to its steps."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.node.sysfiles import names, sysfs

FINDINGS = ("nofile", "nproc", "memlock")
_UNLIMITED = -1


@dataclass(frozen=True)
class UlimitsReading:
    """Soft and hard limit each, -1 for none: open files, processes, bytes of locked memory. rdma: there is a port."""

    nofile: tuple[int, int]
    nproc: tuple[int, int]
    memlock: tuple[int, int]
    rdma: bool


@dataclass(frozen=True)
class UlimitsLimits:
    """At least these. Verbs lock the memory that they send from: 16 GiB is what AWS asks for on EFA (`ulimit -l`).

    nofile, nproc: no source; a rank holds a socket or two for each other rank it talks with, a file for each part of
    its data, and a hundred threads; loaders multiply that.
    """

    nofile: int = 4096
    nproc: int = 4096
    memlock: int = 16 << 30


def read_ulimits(about: About) -> UlimitsReading:
    return UlimitsReading(
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE),
        nproc=resource.getrlimit(resource.RLIMIT_NPROC),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK),
        rdma=bool(names(sysfs("class/infiniband"))),
    )


def judge_ulimits(node: str, reading: UlimitsReading, about: About, limits: UlimitsLimits) -> tuple[Finding, ...]:
    """Never more than MONITOR: a person has set them so, mostly on all nodes alike."""
    found = [
        _judge("nofile", node, reading.nofile, limits.nofile, "open files (ulimit -n)"),
        _judge("nproc", node, reading.nproc, limits.nproc, "processes (ulimit -u)"),
    ]
    if reading.rdma:
        found.append(_judge("memlock", node, reading.memlock, limits.memlock, "bytes of locked memory (ulimit -l)"))
    else:
        found.append(not_applicable("memlock", node, "the node has no InfiniBand, RoCE or EFA port"))
    return tuple(found)


def overdue(node: str, waited: float, about: About) -> Finding:
    return Finding("limits", Verdict.UNKNOWN, node, f"reading the limits has not ended within {waited:.0f} s")


def _judge(check: str, node: str, limit: tuple[int, int], least: int, what: str) -> Finding:
    soft, hard = limit
    said = f"at most {_number(soft)} {what}, to be raised up to {_number(hard)}"
    if soft != _UNLIMITED and soft < least:
        return Finding(check, Verdict.MONITOR, node, f"{said}; {least} are advised", Remedy.SETUP)
    return Finding(check, Verdict.PASS, node, said)


def _number(limit: int) -> str:
    return "unlimited" if limit == _UNLIMITED else str(limit)
