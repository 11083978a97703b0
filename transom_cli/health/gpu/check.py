"""The check of a node's GPUs: one NVML reading, judged by subject. Pure; `nvml` reads."""

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, not_applicable
from transom_cli.health.gpu import links, memory, presence, state
from transom_cli.health.gpu.reading import GpuLimits, NvmlReading, worst_first

FINDINGS = (*presence.FINDINGS, *memory.FINDINGS, *links.FINDINGS, *state.FINDINGS)


def judge_nvml(node: str, reading: NvmlReading, about: About, limits: GpuLimits) -> tuple[Finding, ...]:
    """Return, for each of `FINDINGS`, one PASS or one finding per GPU that does not pass."""
    if reading.absent:
        others = (not_applicable(check, node, "NVML is not available") for check in FINDINGS[1:])
        return (presence.judge_absent(node, reading, about), *others)
    return (
        *presence.judge_presence(node, reading, about),
        *memory.judge_memory(node, reading, limits),
        *links.judge_links(node, reading, limits),
        *state.judge_state(node, reading, about, limits),
    )


def judge_nvml_changes(
    node: str, former: NvmlReading, reading: NvmlReading, seconds: float, about: About, limits: GpuLimits
) -> tuple[Finding, ...]:
    """Return findings for what changed in the `seconds` between two readings. A counter that fell was reset."""
    if former.absent or reading.absent:
        return ()
    by_uuid = {gpu.uuid: gpu for gpu in reading.gpus if gpu.uuid}
    pairs = [(old, by_uuid[old.uuid]) for old in former.gpus if old.uuid in by_uuid]
    found = list(presence.judge_presence_changes(node, former, reading, seconds))
    for old, new in pairs:
        found += memory.judge_memory_changes(node, old, new)
        found += links.judge_link_changes(node, old, new, seconds, limits)
        found += state.judge_state_changes(node, old, new)
    requests = tuple(new for old, new in pairs if new.recovery and new.recovery != old.recovery)
    return tuple(worst_first(found + (presence.judge_recovery(node, requests) if requests else [])))


CHECK = Check(
    name="gpu",
    reader="transom_cli.health.gpu.nvml:read_nvml",
    judge=judge_nvml,
    reading=NvmlReading,
    limits=GpuLimits,
    seconds=20.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue=presence.overdue_nvml,
    changes=judge_nvml_changes,
)
