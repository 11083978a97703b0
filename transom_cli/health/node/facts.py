"""What a node says of itself that should be the same on all nodes of a job; `alike` compares it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transom_cli.core.rootline import clean
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.node.memory import read_memory
from transom_cli.health.node.mounted import mount_of, read_mounted
from transom_cli.health.node.sysfiles import names, read_text, sysfs

CHECK = "facts"
FINDINGS = (CHECK,)
_PRETTY = re.compile(r'^PRETTY_NAME="?([^"\n]*)"?$', re.MULTILINE)
_MODEL = re.compile(r"^(?:model name|Model|cpu)\s*:\s*(.+)$", re.MULTILINE)
_GIB = 1 << 30
_CLASS = 8  # GiB: the firmware keeps some memory, not the same on each of two equal machines


@dataclass(frozen=True)
class FactsReading:
    """facts: name and value. A fact that cannot be read is left out."""

    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FactsLimits:
    """There is nothing to judge on one node."""


def read_facts(about: About) -> FactsReading:
    """Asks no file system: for the job's folders, what is mounted where they are to be is told."""
    memory = read_memory()
    ports = names(sysfs("class/infiniband"))
    said = {
        "kernel": platform.release(),
        "system": _first(_PRETTY, read_text("/etc/os-release")),
        "machine": platform.machine(),
        "cpu": _first(_MODEL, read_text("/proc/cpuinfo")),
        "cpus": str(os.cpu_count() or ""),
        "memory": f"{round(memory.total / _GIB / _CLASS) * _CLASS or 1} GiB" if memory else "",
        "python": platform.python_version(),
        "RDMA devices": str(len(ports)) if ports is not None else "",
    }
    mounts = read_mounted()
    for folder in about.folders:
        mount = mount_of(os.path.abspath(folder), mounts)  # noqa: PTH100
        if mount is not None:
            said[f"file system of {folder}"] = f"{mount.kind} {mount.source}" if mount.network else mount.kind
    return FactsReading(tuple((name, clean(value)) for name, value in said.items() if value))


def judge_facts(node: str, reading: FactsReading, about: About, limits: FactsLimits) -> tuple[Finding, ...]:
    told = ", ".join(f"{name} {value}" for name, value in reading.facts)
    return (Finding(CHECK, Verdict.PASS, node, told or "it tells nothing"),)


def overdue(node: str, waited: float, about: About) -> Finding:
    return Finding(CHECK, Verdict.UNKNOWN, node, f"reading /proc has not ended within {waited:.0f} s")


def by_node(readings: Mapping[str, Iterable[FactsReading]]) -> dict[str, dict[str, str]]:
    """For `alike.judge_alike`: each node's facts, of all who read some there (the host, its GPUs)."""
    return {node: {name: value for reading in told for name, value in reading.facts} for node, told in readings.items()}


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1].strip() if found else ""
