"""Resource limits of a process of the job (getrlimit(2)): the reader runs in a Slurm step, so it has the same ones."""

import resource
from dataclasses import dataclass

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.system import names, sysfs

FINDINGS = ("nofile", "nproc", "memlock")
_UNLIMITED = -1


@dataclass(frozen=True)
class UlimitsReading:
    """(soft, hard) each, -1 for unlimited: open files, processes, bytes of locked memory. rdma: an RDMA port exists."""

    nofile: tuple[int, int]
    nproc: tuple[int, int]
    memlock: tuple[int, int]
    rdma: bool


@dataclass(frozen=True)
class UlimitsLimits:
    """Minimum soft limits.

    memlock: bytes; RDMA verbs lock the memory that they send from, and AWS asks for 16 GiB on EFA. nofile, nproc: no
    source; a rank holds a socket or two per peer, a file per data shard and a hundred threads, times its data loaders.
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
    """Never more than MONITOR: a person has set these limits, mostly equal on all nodes."""
    found = [
        _judge("nofile", node, reading.nofile, limits.nofile, "open files (ulimit -n)"),
        _judge("nproc", node, reading.nproc, limits.nproc, "processes (ulimit -u)"),
    ]
    if reading.rdma:
        found.append(_judge("memlock", node, reading.memlock, limits.memlock, "bytes of locked memory (ulimit -l)"))
    else:
        found.append(not_applicable("memlock", node, "the node has no InfiniBand, RoCE or EFA port"))
    return tuple(found)


def _judge(check: str, node: str, limit: tuple[int, int], minimum: int, what: str) -> Finding:
    soft, hard = limit
    text = f"soft limit {_number(soft)} {what}, hard limit {_number(hard)}"
    if soft != _UNLIMITED and soft < minimum:
        return Finding(check, Verdict.MONITOR, node, f"{text}; at least {minimum} is recommended", Remedy.SETUP)
    return Finding(check, Verdict.PASS, node, text)


def _number(limit: int) -> str:
    return "unlimited" if limit == _UNLIMITED else str(limit)


CHECK = Check(
    name="limits",
    reader="transom_cli.health.checks.ulimits:read_ulimits",
    judge=judge_ulimits,
    reading=UlimitsReading,
    limits=UlimitsLimits,
    seconds=5.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue="reading the limits",
)
