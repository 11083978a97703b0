"""Which lines of the kernel's log tell of a fault of this node. Pure; `kernel` reads them.

Standard library only, since the node's agent runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import xid
from transom_cli.plural import several, was

CHECK = "kernel"
FINDINGS = (CHECK, xid.CHECK)

_M, _S = Verdict.MONITOR, Verdict.SUSPECT
# Most reports of errors are of corrected ones, which are logged as "[Hardware Error]" too, in several lines: it takes a
# line that says that it was not corrected.
_UNCORRECTED = (
    r"\[Hardware Error\].*(?:(?:severity|type): (?:fatal|recoverable)|Machine Check Exception|\buncorrect(?:ed|able)|"
    r"_STATUS\[[^\]]*\|UE\b)|\bmce: Uncorrected|Memory failure: 0x[0-9a-f]+: "
)
# A loop device is a container's image; "errors=remount-ro" is an option that many mounts have; ext4 recalls former
# errors once a day.
_FILE_SYSTEM = (
    r"^(?!.*\((?:device )?loop|.*error count since|.*(?:initial|last) error at).*\b(?:EXT4-fs|XFS|BTRFS)\b"
    r".*(?:\berrors?\b(?![=-])|corrupt|shut(?:ting)? ?down)"
)
_RULES = (
    (_S, Remedy.REPAIR, re.compile(_UNCORRECTED, re.IGNORECASE)),
    (_M, Remedy.WATCH, re.compile(r"\[Hardware Error\]|\bmce: .*(?:hardware|machine check)", re.IGNORECASE)),
    (_S, Remedy.REPAIR, re.compile(r"\bEDAC\b.*\b(?:UE|uncorrect)", re.IGNORECASE)),
    (_M, Remedy.WATCH, re.compile(r"\bEDAC\b.*\bCE\b")),
    (_S, Remedy.REPAIR, re.compile(r"\bI/O error, dev (?!loop|fd|sr)|nvme\d+: .*(?:controller is down|Abort status)")),
    (_S, Remedy.REPAIR, re.compile(_FILE_SYSTEM, re.IGNORECASE)),
    (_S, Remedy.REPAIR, re.compile(r"pcieport .*(?:Uncorrected|Fatal)|AER: .*(?:uncorrect|fatal)", re.IGNORECASE)),
    (_M, Remedy.WATCH, re.compile(r"blocked for more than \d+ seconds|(?:soft|hard) lockup|rcu.*stall", re.IGNORECASE)),
    (_M, Remedy.NONE, re.compile(r"Out of memory: Killed process|Memory cgroup out of memory|oom-kill:")),
    (_M, Remedy.WATCH, re.compile(r"nfs: server \S+ not responding|Lustre\w*: .*(?:was lost|evicted)")),
    (_M, Remedy.WATCH, re.compile(r"\b(?:NIC )?Link is Down|lost carrier|mlx5_core .*(?:health|error)", re.IGNORECASE)),
)


@dataclass(frozen=True)
class LoggedGpu:
    """The log names a GPU by its PCI address, everything else by its UUID."""

    bus_id: str
    uuid: str


@dataclass(frozen=True)
class KernelReading:
    """source: whose words they are ("/dev/kmsg"). since: seconds of the wall clock; what is older was left out.

    looked_at: how many lines there were. lines: those of them that tell of something, the last ones where there are too
    many. trouble: why the log could not be read. gpus: those that the driver has. site: the node's
    own rules for Xids.
    """

    source: str = ""
    since: float = 0.0
    looked_at: int = 0
    lines: tuple[str, ...] = ()
    trouble: str = ""
    gpus: tuple[LoggedGpu, ...] = ()
    site: xid.SiteRules = xid.NO_SITE_RULES


@dataclass(frozen=True)
class KernelLimits:
    """There is nothing to set: a line tells of a fault or does not. Xid codes have their own file (`gpu.xid`)."""


def tells(line: str) -> bool:
    """Whether `judge_lines` has anything to say of the line."""
    return xid.parse_xid(line) is not None or any(pattern.search(line) for _, _, pattern in _RULES)


def judge_lines(
    node: str, lines: Iterable[str], gpus: Iterable[LoggedGpu] = (), site: xid.SiteRules = xid.NO_SITE_RULES
) -> tuple[Finding, ...]:
    """A finding for each kind of fault that the lines tell of: `gpu_xid` for the GPU driver's codes, else `kernel`."""
    codes: list[str] = []
    found: dict[int, list[str]] = {}
    for line in lines:
        if xid.parse_xid(line):
            codes.append(line)
            continue
        place = next((n for n, (_, _, pattern) in enumerate(_RULES) if pattern.search(line)), None)
        if place is not None:
            found.setdefault(place, []).append(line)
    known = xid.catalogue(site)
    return (
        *xid.judge_xids(node, codes, known, {gpu.bus_id: gpu.uuid for gpu in gpus}),
        *(Finding(xid.CHECK, Verdict.UNKNOWN, node, words, Remedy.SETUP) for words in known.troubles if codes),
        *(Finding(CHECK, _RULES[n][0], node, _words(said), _RULES[n][1]) for n, said in found.items()),
    )


def judge_kernel_log(node: str, reading: KernelReading, about: About, limits: KernelLimits) -> tuple[Finding, ...]:
    """As `judge_lines`, with a PASS for what the log does not tell of."""
    if reading.trouble:
        return tuple(Finding(check, Verdict.UNKNOWN, node, reading.trouble) for check in FINDINGS)
    found = judge_lines(node, reading.lines, reading.gpus, reading.site)
    bad = {finding.check for finding in found}
    fine = f"{several(reading.looked_at, 'line')} in {reading.source} {was(reading.looked_at, 'tells', 'tell')} of no"
    passed = {CHECK: f"{fine} fault", xid.CHECK: f"{fine} Xid"}
    return found + tuple(Finding(c, Verdict.PASS, node, said) for c, said in passed.items() if c not in bad)


def overdue_kernel(node: str, waited: float, about: About) -> Finding:
    return Finding(CHECK, Verdict.UNKNOWN, node, f"the kernel's log could not be read within {waited:.0f} s")


def _words(lines: list[str]) -> str:
    return lines[-1] + (f" [{len(lines)} such lines]" if len(lines) > 1 else "")
