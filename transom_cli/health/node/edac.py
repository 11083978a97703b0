"""Errors of the host's memory, as the memory controllers' drivers count them: /sys/devices/system/edac (kernel docs,
admin-guide/RAS). They count from the boot, so that a total is another job's as well: what is new is judged."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.node.sysfiles import names, read_number, sysfs

CHECK, NEW = "edac", "edac_new"


@dataclass(frozen=True)
class Controller:
    """corrected, uncorrected: errors since the boot, or since somebody reset the counter."""

    name: str
    corrected: int
    uncorrected: int


@dataclass(frozen=True)
class EdacLimits:
    """edac_corrected: new ones between two looks; mcelog's default for one DIMM is 10 in 24 h."""

    edac_corrected: int = 10


def read_edac() -> tuple[Controller, ...]:
    """() where no driver counts: virtual machines, and most clouds."""
    root = sysfs("devices/system/edac/mc")
    found = []
    for name in names(root) or ():
        corrected = read_number(root / name / "ce_count")
        uncorrected = read_number(root / name / "ue_count")
        if name.startswith("mc") and corrected is not None and uncorrected is not None:
            found.append(Controller(name, corrected, uncorrected))
    return tuple(found)


def judge_edac(node: str, found: tuple[Controller, ...]) -> Finding:
    if not found:
        return not_applicable(CHECK, node, "no driver counts memory errors on this host")
    worst = max(found, key=lambda c: (c.uncorrected, c.corrected))
    said = ", ".join(f"{c.name}: ue_count {c.uncorrected}, ce_count {c.corrected}" for c in found)
    if worst.uncorrected:
        said += " since the boot"
        return Finding(CHECK, Verdict.MONITOR, node, said, Remedy.WATCH, worst.name)
    return Finding(CHECK, Verdict.PASS, node, said)


def judge_edac_changes(
    node: str, former: tuple[Controller, ...], now: tuple[Controller, ...], seconds: float, limits: EdacLimits
) -> tuple[Finding, ...]:
    """What has been counted within these seconds. One error that could not be corrected is proof: data was lost."""
    before = {c.name: c for c in former}
    found = []
    for one in now:
        was = before.get(one.name)
        if was is None:
            continue
        lost, mended = one.uncorrected - was.uncorrected, one.corrected - was.corrected
        if lost > 0:
            said = f"{one.name}: uncorrected errors, ue_count +{lost} within {seconds:.0f} s ({one.uncorrected} in all)"
            found.append(Finding(NEW, Verdict.FAIL, node, said, Remedy.REPAIR, one.name))
        elif mended >= limits.edac_corrected:
            said = f"{one.name}: corrected errors, ce_count +{mended} within {seconds:.0f} s ({one.corrected} in all)"
            found.append(Finding(NEW, Verdict.MONITOR, node, said, Remedy.WATCH, one.name))
    return tuple(found)
