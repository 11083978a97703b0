"""From a reading and what was judged of it to what is shown of a node's GPUs: how many answer, what is the worst. Pure.

The findings decide, so that a screen and a drain never differ in what they call odd. A fault comes before throttling,
throttling before heat; what is only worth knowing (a mode, a power limit) is not shown here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.heard import Heard
from transom_cli.health.gpu.judge_count import granted
from transom_cli.health.gpu.judge_state import slowdowns, warmth
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import Gpu, Heat, NvmlReading
from transom_cli.health.gpu.shown import LEVELS, GpuShown, NodeGpus, with_gpus

# Of faults, by check, the more telling one first; in what words, where nothing better is known.
_FAULTS = {
    "gpu_lost": "no answer",
    "gpu_count": "a GPU is missing",
    "gpu_xid": "Xid",
    "gpu_recovery": "needs care",
    "gpu_ecc": "ECC errors",
    "gpu_sram": "SRAM errors",
    "gpu_rows": "rows remapped",
    "gpu_pages": "pages retired",
    "gpu_nvlink": "NVLink down",
    "gpu_fabric": "not in its fabric",
    "gpu_pcie": "PCIe link",
    "gpu_nvlink_errors": "NVLink errors",
}
_ORDER = {check: place for place, check in enumerate(_FAULTS)}
_REMEDIES = {Remedy.RESET_GPU: "needs a reset", Remedy.REBOOT: "needs a reboot"}
_LOST = {r.GPU_IS_LOST: "lost", r.RESET_REQUIRED: "needs a reset"}


@dataclass(frozen=True)
class _Odd:
    """order: within its level, the smallest first. words: of two GPUs with the same words the second is counted."""

    level: str
    order: int
    gpu: Gpu | None
    words: str
    heat: int = 0

    @property
    def rank(self) -> tuple[int, ...]:
        return (-LEVELS.index(self.level), self.order, -self.heat, self.gpu.index if self.gpu else -1)

    def like(self, other: _Odd) -> bool:
        same = self.level in ("moderate", "heavy") or self.words == other.words
        return self.gpu is not None and self.level == other.level and same


def show(
    node: str, attempt: str, every: float, reading: NvmlReading, found: Sequence[Finding], heard: Heard, about: About,
    limits: GpuLimits,
) -> NodeGpus:  # fmt: skip
    """found: what `NvmlFollow.look` has said of the reading, but for checks that are off."""
    words, level = worst(reading, (*found, *heard.against(reading.wall)), heard.fatal)
    device, (xid, xid_at) = max(heard.xids.items(), key=lambda one: one[1][1], default=("", (None, None)))
    told = NodeGpus(
        node=node,
        attempt=attempt,
        wall=reading.wall,
        every=every,
        expected=_expected(reading, about),
        answering=None if reading.absent else sum(gpu.readable for gpu in reading.gpus),
        worst=words,
        level=level,
        xid=xid,
        xid_at=xid_at,
        xid_gpu=next((gpu.index for gpu in reading.gpus if device and gpu.uuid == device), None),
        xids_since=heard.since,
    )
    return with_gpus(told, (_shown(gpu, heard, limits) for gpu in reading.gpus))


def worst(reading: NvmlReading, found: Iterable[Finding], xids: Mapping[str, int]) -> tuple[str, str]:
    """In words, and its level; ("", "") where all is well. xids: the code that speaks against a device.

    "(+2)" behind it: as many more GPUs of the node have the same.
    """
    gpus = {gpu.device: gpu for gpu in reading.gpus}
    odd = [one for f in found if (one := _odd(f, gpus.get(f.device), reading, xids)) is not None]
    if not odd:
        return "", ""
    first = min(odd, key=lambda one: one.rank)
    more = len({one.gpu.index for one in odd if one.gpu and one.like(first)}) - 1
    which = f"gpu{first.gpu.index} " if first.gpu else ""
    return which + first.words + (f" (+{more})" if more > 0 else ""), first.level


def _odd(found: Finding, gpu: Gpu | None, reading: NvmlReading, xids: Mapping[str, int]) -> _Odd | None:
    if found.verdict in (Verdict.PASS, Verdict.UNKNOWN):
        return None
    if found.check == "gpu_clocks":
        return _Odd("throttled", 0, gpu, "throttled")
    if found.check == "gpu_heat":
        heat = gpu.heat if gpu else Heat()
        level = "moderate" if heat.slowdown and (heat.now or 0) < heat.slowdown else "heavy"
        return _Odd(level, 0, gpu, f"{heat.now} C, {level}", heat.now or 0)
    if not found.verdict.bad:
        return None
    unproven = len(_FAULTS) * (found.verdict is not Verdict.FAIL)
    words = _words(found, gpu, reading, xids)
    return _Odd("fault", _ORDER.get(found.check, len(_FAULTS) - 1) + unproven, gpu, words)


def _words(found: Finding, gpu: Gpu | None, reading: NvmlReading, xids: Mapping[str, int]) -> str:
    check = found.check
    if check == "gpu_count":
        return "NVML does not answer" if reading.absent else _FAULTS[check]
    if check == "gpu_lost":
        return "a GPU is gone" if gpu is None else _LOST.get(gpu.trouble_code, _FAULTS[check])
    if check == "gpu_xid" and found.device in xids:
        return f"Xid {xids[found.device]}"
    if check == "gpu_recovery":
        return _REMEDIES.get(found.remedy, _FAULTS[check])
    if check == "gpu_rows" and gpu is not None and gpu.rows is not None and (gpu.rows.failed or gpu.rows.pending):
        return "row remap failed" if gpu.rows.failed else "row remap pending"
    return _FAULTS.get(check, check.removeprefix("gpu_").replace("_", " "))


def _expected(reading: NvmlReading, about: About) -> int:
    """As `judge_count` counts; where what NVML sees are not the job's GPUs one by one, those that it sees."""
    if reading.barred or any(gpu.mig for gpu in reading.gpus):
        return len(reading.gpus)
    return max(granted(reading, about), len(reading.gpus))


def _shown(gpu: Gpu, heard: Heard, limits: GpuLimits) -> GpuShown:
    xid, xid_at = heard.xids.get(gpu.uuid, (None, None)) if gpu.uuid else (None, None)
    return GpuShown(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        trouble="" if gpu.readable else gpu.trouble or f"NVML error {gpu.trouble_code}",
        busy=gpu.busy,
        heat=gpu.heat.now,
        slowdown=gpu.heat.slowdown,
        warmth=warmth(gpu.heat, limits),
        memory_used=gpu.memory_used,
        memory_total=gpu.memory_total,
        power=gpu.power.usage,
        power_limit=gpu.power.limit,
        throttle=None if gpu.reasons is None else tuple(slowdowns(gpu)),
        ecc_uncorrected=gpu.ecc.uncorrected_volatile,
        ecc_corrected=gpu.ecc.corrected_volatile,
        rows_pending=gpu.rows.pending if gpu.rows else None,
        rows_failed=gpu.rows.failed if gpu.rows else None,
        pages_pending=gpu.pages.pending if gpu.pages else None,
        xid=xid,
        xid_at=xid_at,
    )
