"""Facts that should be the same on all nodes of a job (`read_facts`), and the comparison (`judge_alike`).

A node that differs is seldom broken, but it may fail in ways that no other node does, and collectives run at the pace
of the slowest. The odd one is named (MONITOR); a person decides what to do with it.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.core.log_lines import clean
from transom_cli.health.check import About, Check, NoLimits, Tier
from transom_cli.health.checks.host import read_memory
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.system import mount_of, names, read_mount_table, read_text, sysfs
from transom_cli.plural import some

FACTS, ALIKE = "facts", "alike"
FINDINGS = (FACTS,)
_PRETTY = re.compile(r'^PRETTY_NAME="?([^"\n]*)"?$', re.MULTILINE)
_MODEL = re.compile(r"^(?:model name|Model|cpu)\s*:\s*(.+)$", re.MULTILINE)
_GIB = 1 << 30
_MEMORY_CLASS = 8  # GiB: firmware reserves some memory, and not the same amount on two equal machines
_LISTED = 4


@dataclass(frozen=True)
class FactsReading:
    """facts: (name, value) pairs. An unreadable fact is left out."""

    facts: tuple[tuple[str, str], ...] = ()


def read_facts(about: About) -> FactsReading:
    """Read facts from /proc and /sys. For the job's folders, report what is mounted there without asking it."""
    memory = read_memory()
    ports = names(sysfs("class/infiniband"))
    facts = {
        "kernel": platform.release(),
        "system": _first(_PRETTY, read_text("/etc/os-release")),
        "machine": platform.machine(),
        "cpu": _first(_MODEL, read_text("/proc/cpuinfo")),
        "cpus": str(os.cpu_count() or ""),
        "memory": f"{round(memory.total / _GIB / _MEMORY_CLASS) * _MEMORY_CLASS or 1} GiB" if memory else "",
        "python": platform.python_version(),
        "RDMA devices": str(len(ports)) if ports is not None else "",
    }
    mounts = read_mount_table()
    for folder in about.folders:
        mount = mount_of(os.path.abspath(folder), mounts)  # noqa: PTH100
        if mount is not None:
            facts[f"file system of {folder}"] = f"{mount.kind} {mount.source}" if mount.network else mount.kind
    return FactsReading(tuple((name, clean(value)) for name, value in facts.items() if value))


def judge_facts(node: str, reading: FactsReading, about: About, limits: NoLimits) -> tuple[Finding, ...]:
    text = ", ".join(f"{name} {value}" for name, value in reading.facts)
    return (Finding(FACTS, Verdict.PASS, node, text or "no fact could be read"),)


def judge_alike(facts: Mapping[str, Mapping[str, str]]) -> tuple[Finding, ...]:
    """Return one finding per node.

    Each fact is compared among the nodes that report it. If more than half share a value, the others are odd. If no
    value has a majority, nobody can say which node is odd, and all that report the fact get the finding.

    Args:
        facts: per node, its facts by name ("driver": "570.86.15").
    """
    odd: dict[str, list[str]] = {node: [] for node in facts}
    for name in sorted({name for of_node in facts.values() for name in of_node}):
        values = {node: of_node[name] for node, of_node in facts.items() if name in of_node}
        usual, times = max(Counter(values.values()).items(), key=lambda item: (item[1], item[0]))
        if times == len(values):
            continue
        if times * 2 > len(values):
            for node, value in values.items():
                if value != usual:
                    odd[node].append(f"{name} is {value}; {times} of {len(values)} nodes have {usual}")
        else:
            kinds = ", ".join(f"{value} ({count})" for value, count in Counter(values.values()).most_common(_LISTED))
            for node in values:
                odd[node].append(f"{name} differs between the nodes: {kinds}")
    return tuple(_finding(node, texts, len(facts), len(facts[node])) for node, texts in odd.items())


def _finding(node: str, odd: list[str], nodes: int, known: int) -> Finding:
    if not odd:
        return Finding(ALIKE, Verdict.PASS, node, f"{known} facts are the same as on the other nodes ({nodes} in all)")
    return Finding(ALIKE, Verdict.MONITOR, node, some(odd, _LISTED, "; "), Remedy.SETUP)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1].strip() if found else ""


CHECK = Check(
    name="facts",
    reader="transom_cli.health.checks.facts:read_facts",
    judge=judge_facts,
    reading=FactsReading,
    limits=NoLimits,
    seconds=5.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue="reading /proc",
)
