"""Are the GPUs there, do they answer, and what does the driver itself ask for? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.reading import Gpu, NvmlReading
from transom_cli.health.gpu.telling import Odd, told
from transom_cli.plural import several, was

# NVML_GPU_RECOVERY_ACTION_*. All but 0 ask for something (NVRx, GPUHealthCheck: only 0 is healthy). Peer-to-peer
# traffic to be drained, or an IMEX domain to be recovered, may be another GPU's or another node's fault.
ACTIONS = {
    1: ("GPU reset", Verdict.FAIL, Remedy.RESET_GPU),
    2: ("node reboot", Verdict.FAIL, Remedy.REBOOT),
    3: ("drain peer-to-peer traffic", Verdict.SUSPECT, Remedy.RESET_GPU),
    4: ("drain and reset", Verdict.FAIL, Remedy.RESET_GPU),
    5: ("recover the IMEX domain", Verdict.SUSPECT, Remedy.AVOID),
    6: ("bus reset", Verdict.FAIL, Remedy.RESET_GPU),
    7: ("system reboot", Verdict.FAIL, Remedy.REBOOT),
}
_NONE_HERE = (r.DRIVER_NOT_LOADED, r.LIBRARY_NOT_FOUND, r.NO_BINDING)


def judge_absent(node: str, reading: NvmlReading, about: About) -> Finding:
    """`gpu_count` where NVML could not be asked at all."""
    said = f"NVML: {reading.absent}"
    if not about.gpus:
        if reading.absent_code in _NONE_HERE:
            return not_applicable("gpu_count", node, f"no GPUs asked for ({said})")
        return Finding("gpu_count", Verdict.MONITOR, node, said, Remedy.SETUP)
    said += f"; {several(about.gpus, 'GPU')} {was(about.gpus)} asked for"
    if reading.foreign:
        return Finding("gpu_count", Verdict.UNKNOWN, node, f"{said}, and no device in the machine is NVIDIA's")
    if reading.absent_code == r.NO_BINDING:  # ours to install, not the node's fault
        return Finding("gpu_count", Verdict.UNKNOWN, node, said, Remedy.SETUP)
    mismatch = reading.absent_code == r.LIB_RM_VERSION_MISMATCH  # the driver was updated under the loaded module
    return Finding("gpu_count", Verdict.SUSPECT, node, said, Remedy.REBOOT if mismatch else Remedy.AVOID)


def overdue_nvml(node: str, waited: float, about: About) -> Finding:
    """`gpu_lost` where NVML has not come back: it hangs with its driver, and so will whatever uses a GPU."""
    said = f"NVML has not answered for {waited:.0f} s"
    if about.gpus:
        return Finding("gpu_lost", Verdict.SUSPECT, node, said, Remedy.REBOOT)
    return Finding("gpu_lost", Verdict.MONITOR, node, said, Remedy.WATCH)


def judge_count(node: str, reading: NvmlReading, about: About) -> list[Finding]:
    return [
        _judge_number(node, reading, about),
        *told("gpu_lost", node, len(reading.gpus), _lost(reading), "all answer", "no GPUs"),
        *judge_recovery(node, reading.gpus),
    ]


def judge_recovery(node: str, gpus: tuple[Gpu, ...]) -> list[Finding]:
    asked = [gpu for gpu in gpus if gpu.recovery is not None]
    odd = (
        Odd(gpu, verdict, f"the driver's recovery action is {gpu.recovery}, {words}", remedy)
        for gpu in asked
        if gpu.recovery
        for words, verdict, remedy in [ACTIONS.get(gpu.recovery, ("unknown", Verdict.SUSPECT, Remedy.RESET_GPU))]
    )
    return told("gpu_recovery", node, len(asked), odd, "recovery action 0, none", "the driver tells no recovery action")


def granted(reading: NvmlReading, about: About) -> int:
    """How many the job has on this node: one node's share of it may be smaller than another's."""
    return about.gpus if reading.granted is None else min(about.gpus, reading.granted)


def _judge_number(node: str, reading: NvmlReading, about: About) -> Finding:
    found, wanted = len(reading.gpus), granted(reading, about)
    said = f"NVML sees {several(found, 'GPU')}" + (f", {wanted} {was(wanted)} asked for" if wanted else "")
    if found >= wanted:
        return Finding("gpu_count", Verdict.PASS, node, said)
    if any(gpu.mig for gpu in reading.gpus):
        return not_applicable("gpu_count", node, f"MIG is on, so that a GPU may be several devices; {said}")
    if reading.barred:
        # Without the job's GPUs in its control group, the check sees fewer than the ranks will.
        return Finding("gpu_count", Verdict.UNKNOWN, node, f"{said}; {reading.barred} are barred from this process")
    return Finding("gpu_count", Verdict.FAIL, node, said, Remedy.REBOOT)


def _lost(reading: NvmlReading) -> Iterator[Odd]:
    for gpu in reading.gpus:
        if gpu.trouble_code == r.GPU_IS_LOST:
            yield Odd(gpu, Verdict.FAIL, gpu.trouble, Remedy.REBOOT)
        elif gpu.trouble_code == r.RESET_REQUIRED:
            yield Odd(gpu, Verdict.FAIL, gpu.trouble, Remedy.RESET_GPU)
        elif gpu.trouble_code:
            # "Unable to determine the device handle: Unknown Error" is how a GPU that fell off the bus often shows.
            yield Odd(gpu, Verdict.SUSPECT, f"NVML cannot open it: {gpu.trouble}", Remedy.REBOOT)
        elif gpu.unread:
            yield Odd(gpu, Verdict.MONITOR, "; ".join(gpu.unread), Remedy.WATCH)
