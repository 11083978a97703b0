"""Are the GPUs there, do they answer, and does the driver request a recovery action? Judges are pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transom_cli.health.check import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.reading import RECOVERY_ACTION, Anomaly, Gpu, NvmlReading, gpu_finding, gpu_findings
from transom_cli.plural import several, was

if TYPE_CHECKING:
    from transom_cli.health.gpu.nvml import Device

FINDINGS = ("gpu_count", "gpu_lost", "gpu_recovery")

# NVML_GPU_RECOVERY_ACTION_*. Only 0 is healthy (NVRx, GPUHealthCheck). Draining peer-to-peer traffic and recovering an
# IMEX domain may be the fault of another GPU or node.
ACTIONS = {
    1: ("GPU reset", Verdict.FAIL, Remedy.RESET_GPU),
    2: ("node reboot", Verdict.FAIL, Remedy.REBOOT),
    3: ("drain peer-to-peer traffic", Verdict.SUSPECT, Remedy.RESET_GPU),
    4: ("drain and reset", Verdict.FAIL, Remedy.RESET_GPU),
    5: ("recover the IMEX domain", Verdict.SUSPECT, Remedy.AVOID),
    6: ("bus reset", Verdict.FAIL, Remedy.RESET_GPU),
    7: ("system reboot", Verdict.FAIL, Remedy.REBOOT),
}
_NO_GPUS = (r.DRIVER_NOT_LOADED, r.LIBRARY_NOT_FOUND, r.NO_BINDING)


def read_identity(device: Device) -> dict[str, Any]:
    return {
        "uuid": device.text("nvmlDeviceGetUUID"),
        "serial": device.text("nvmlDeviceGetSerial"),
        "name": device.text("nvmlDeviceGetName"),
        "vbios": device.text("nvmlDeviceGetVbiosVersion"),
    }


def read_recovery(device: Device) -> dict[str, Any]:
    return {"recovery": device.fields([RECOVERY_ACTION])[0]}


def judge_absent(node: str, reading: NvmlReading, about: About) -> Finding:
    """Return `gpu_count` for a node without NVML."""
    text = f"NVML: {reading.absent}"
    if not about.gpus:
        if reading.absent_code in _NO_GPUS:
            return not_applicable("gpu_count", node, f"the job requested no GPUs ({text})")
        return Finding("gpu_count", Verdict.MONITOR, node, text, Remedy.SETUP)
    text += f"; the job requested {several(about.gpus, 'GPU')} per node"
    if reading.foreign:
        return Finding("gpu_count", Verdict.UNKNOWN, node, f"{text}, and the machine has no NVIDIA device")
    if reading.absent_code == r.NO_BINDING:  # not the node's fault
        return Finding("gpu_count", Verdict.UNKNOWN, node, f"{text}; install transom-cli[train]", Remedy.SETUP)
    mismatch = reading.absent_code == r.LIB_RM_VERSION_MISMATCH  # the driver was updated under the loaded module
    return Finding("gpu_count", Verdict.SUSPECT, node, text, Remedy.REBOOT if mismatch else Remedy.AVOID)


def overdue_nvml(node: str, waited: float, about: About) -> Finding:
    """Return `gpu_lost` if NVML hangs: it hangs with its driver, as will every program that uses a GPU."""
    text = f"NVML did not answer in {waited:.0f} s"
    if about.gpus:
        return Finding("gpu_lost", Verdict.SUSPECT, node, text, Remedy.REBOOT)
    return Finding("gpu_lost", Verdict.MONITOR, node, text, Remedy.WATCH)


def judge_presence(node: str, reading: NvmlReading, about: About) -> list[Finding]:
    return [
        _judge_count(node, reading, about),
        *gpu_findings("gpu_lost", node, len(reading.gpus), _lost(reading), "all answer", "no GPUs"),
        *judge_recovery(node, reading.gpus),
    ]


def judge_recovery(node: str, gpus: tuple[Gpu, ...]) -> list[Finding]:
    reporting = [gpu for gpu in gpus if gpu.recovery is not None]
    anomalies = (
        Anomaly(gpu, verdict, f"the driver requests recovery action {gpu.recovery} ({action})", remedy)
        for gpu in reporting
        if gpu.recovery
        for action, verdict, remedy in [ACTIONS.get(gpu.recovery, ("unknown", Verdict.SUSPECT, Remedy.RESET_GPU))]
    )
    healthy, missing = "the driver requests no recovery action", "the driver reports no recovery action"
    return gpu_findings("gpu_recovery", node, len(reporting), anomalies, healthy, missing)


def judge_presence_changes(node: str, former: NvmlReading, reading: NvmlReading, seconds: float) -> Iterator[Finding]:
    """Yield GPUs that NVML no longer counts. `gpu_lost` reports those that it counts but cannot open."""
    if reading.barred > former.barred:
        return  # they are hidden from this process, and may be healthy
    present = {gpu.uuid for gpu in reading.gpus}
    unnamed = {gpu.index for gpu in reading.gpus if not gpu.uuid}
    for old in former.gpus:
        if old.uuid and old.uuid not in present and old.index not in unnamed:
            text = f"it was there {seconds:.0f} s ago and has disappeared"
            yield gpu_finding("gpu_lost", node, Anomaly(old, Verdict.FAIL, text, Remedy.REBOOT))


def granted(reading: NvmlReading, about: About) -> int:
    """Return how many GPUs the job has on this node; nodes of one job may have different numbers."""
    return about.gpus if reading.granted is None else min(about.gpus, reading.granted)


def _judge_count(node: str, reading: NvmlReading, about: About) -> Finding:
    found, wanted = len(reading.gpus), granted(reading, about)
    text = f"NVML sees {several(found, 'GPU')}" + (f", {wanted} {was(wanted)} requested" if wanted else "")
    if found >= wanted:
        return Finding("gpu_count", Verdict.PASS, node, text)
    if any(gpu.mig for gpu in reading.gpus):
        return not_applicable("gpu_count", node, f"MIG is on, so one GPU may be several devices; {text}")
    if reading.barred:
        # Without the job's GPUs in its cgroup, the check sees fewer than the ranks will.
        return Finding("gpu_count", Verdict.UNKNOWN, node, f"{text}; this process may not use {reading.barred} others")
    return Finding("gpu_count", Verdict.FAIL, node, text, Remedy.REBOOT)


def _lost(reading: NvmlReading) -> Iterator[Anomaly]:
    for gpu in reading.gpus:
        if gpu.trouble_code == r.GPU_IS_LOST:
            yield Anomaly(gpu, Verdict.FAIL, gpu.trouble, Remedy.REBOOT)
        elif gpu.trouble_code == r.RESET_REQUIRED:
            yield Anomaly(gpu, Verdict.FAIL, gpu.trouble, Remedy.RESET_GPU)
        elif gpu.trouble_code:
            # "Unable to determine the device handle: Unknown Error" is how a GPU that fell off the bus often shows.
            yield Anomaly(gpu, Verdict.SUSPECT, f"NVML cannot open it: {gpu.trouble}", Remedy.REBOOT)
        elif gpu.unread:
            yield Anomaly(gpu, Verdict.MONITOR, "; ".join(gpu.unread), Remedy.WATCH)
