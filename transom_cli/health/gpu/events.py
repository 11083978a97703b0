"""What NVML tells of at once, without being asked: Xids, double-bit errors, a GPU that is gone. Pure.

Standard library only, since the node's agent judges what `watch` has heard.
"""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.judge_count import ACTIONS
from transom_cli.health.gpu.xid import CHECK, NO_SITE_RULES, RECOVERY_CHANGED, SiteRules, Xid, catalogue, rule_of

# nvmlEventType*, by the names that `watch` prints. Corrected single bits, clocks and power sources are left out.
TYPES = {
    0x2: "double_bit_ecc",
    0x8: "xid",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "non_fatal_poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_OTHERS = {
    "double_bit_ecc": ("gpu_ecc", Verdict.FAIL, Remedy.RESET_GPU, "a double-bit ECC error"),
    "dram_retirement": ("gpu_rows", Verdict.MONITOR, Remedy.WATCH, "memory is being retired or remapped"),
    "dram_retirement_failure": ("gpu_rows", Verdict.FAIL, Remedy.REPAIR, "retiring or remapping memory has failed"),
    "non_fatal_poison": ("gpu_ecc", Verdict.MONITOR, Remedy.RESTART_APP, "a contained memory error (poison)"),
    "fatal_poison": ("gpu_ecc", Verdict.FAIL, Remedy.RESET_GPU, "an uncontained memory error (poison)"),
    "gpu_unavailable": ("gpu_lost", Verdict.FAIL, Remedy.REBOOT, "the GPU is unavailable"),
}


@dataclass(frozen=True)
class GpuEvent:
    """event: one of TYPES. xid: the code, with "xid". recovery: what the driver asked for right after the event.

    site: the node's own rules for Xids.
    """

    event: str
    device: str = ""
    serial: str = ""
    xid: int = 0
    recovery: int | None = None
    wall: float = 0.0
    site: SiteRules = NO_SITE_RULES


def judge_event(node: str, event: GpuEvent) -> Finding:
    asked = ACTIONS.get(event.recovery or 0)
    said = f"; the driver's recovery action is {event.recovery}, {asked[0]}" if asked else ""
    if event.event == "recovery_action" or (event.event == "xid" and event.xid == RECOVERY_CHANGED):
        words, verdict, remedy = asked or ("none", Verdict.MONITOR, Remedy.NONE)
        evidence = f"NVML event: the driver's recovery action has changed to {event.recovery}, {words}"
        return Finding("gpu_recovery", verdict, node, evidence, remedy, event.device, event.serial)
    if event.event == "xid":
        rule = rule_of(Xid("xid", event.xid, event.device, "", ""), catalogue(event.site))
        action = f", NVIDIA's action: {rule.action}" if rule.action else ""
        evidence = f"NVML event: Xid {event.xid}, {rule.name}{action}{said}"
        return Finding(CHECK, rule.verdict, node, evidence, rule.remedy, event.device, event.serial)
    other = _OTHERS.get(event.event, (CHECK, Verdict.MONITOR, Remedy.WATCH, event.event))
    check, verdict, remedy, words = other
    return Finding(check, verdict, node, f"NVML event: {words}{said}", remedy, event.device, event.serial)
