"""A node's GPUs during training: judge readings in turn, and summarise them for screens. Pure.

The summary is derived from the findings, so a screen and a drain always agree on what is wrong. A fault comes before
throttling, throttling before heat; modes and power limits are not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from transom_cli.health.check import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.check import judge_nvml, judge_nvml_changes
from transom_cli.health.gpu.links import new_link_errors
from transom_cli.health.gpu.presence import granted
from transom_cli.health.gpu.reading import Anomaly, Gpu, GpuLimits, Heat, NvmlReading, gpu_finding, worse
from transom_cli.health.gpu.state import hardware_slowdown, slowdowns, warmth
from transom_cli.health.gpu.status import LEVELS, GpuStatus, NodeGpus, with_gpus
from transom_cli.health.gpu.xid import EventHistory


class Windows:
    """Counts, per device, in how many of the last time windows something was seen."""

    def __init__(self, seconds: float, kept: int) -> None:
        self._seconds = seconds
        self._kept = kept
        self._seen: dict[str, set[int]] = {}

    def add(self, device: str, at: float) -> None:
        self._seen.setdefault(device, set()).add(self._window(at))

    def count(self, device: str, at: float) -> int:
        oldest = self._window(at) - self._kept
        recent = {window for window in self._seen.get(device, ()) if window > oldest}
        self._seen[device] = recent
        return len(recent)

    def _window(self, at: float) -> int:
        return int(at // self._seconds)


class GpuMonitor:
    """Judges the readings of one node in turn, during training (`about.tier` is WATCH)."""

    def __init__(self, node: str, about: About, limits: GpuLimits) -> None:
        self._node = node
        self._about = about
        self._limits = limits
        self.last: NvmlReading | None = None  # with the known identity of each GPU
        self._bad: dict[tuple[str, str], Finding] = {}
        self._links = Windows(limits.gpu_nvlink_window, int(limits.gpu_nvlink_windows))
        self._slowdown = Windows(limits.gpu_slowdown_window, int(limits.gpu_slowdown_windows))

    def judge(self, reading: NvmlReading) -> tuple[Finding, ...]:
        """Return findings as `judge_nvml` does, and the worse of two that one check has about one GPU.

        A GPU that failed a check in the last reading and now passes gets a PASS of its own.
        """
        reading = with_known_identity(reading, self.last)
        found = list(judge_nvml(self._node, reading, self._about, self._limits))
        if self.last is not None:
            seconds = reading.mono - self.last.mono
            found += judge_nvml_changes(self._node, self.last, reading, seconds, self._about, self._limits)
        found = _merged(found + self._persistent(reading))
        self.last = reading
        bad = {(f.check, f.device): f for f in found if f.device and f.verdict is not Verdict.PASS}
        recovered = [
            replace(f, verdict=Verdict.PASS, remedy=Remedy.NONE, evidence=f"no longer: {f.evidence}")
            for place, f in self._bad.items()
            if place not in bad
        ]
        self._bad = bad
        return (*found, *recovered)

    def _persistent(self, reading: NvmlReading) -> list[Finding]:
        """Return findings for link errors and slowdowns that recur over many windows."""
        limits, found = self._limits, []
        former = {gpu.uuid: gpu for gpu in self.last.gpus} if self.last else {}
        for gpu in reading.gpus:
            old = former.get(gpu.uuid)
            if self.last and old and new_link_errors(old, gpu, reading.mono - self.last.mono, limits):
                self._links.add(gpu.device, reading.mono)
            if hardware_slowdown(gpu):
                self._slowdown.add(gpu.device, reading.mono)
            windows = self._links.count(gpu.device, reading.mono)
            if windows > limits.gpu_nvlink_windows_bad:
                text = _in_windows("new NVLink errors", windows, limits.gpu_nvlink_windows, limits.gpu_nvlink_window)
                anomaly = Anomaly(gpu, Verdict.SUSPECT, text, Remedy.RESET_GPU)
                found.append(gpu_finding("gpu_nvlink_errors", self._node, anomaly))
            windows = self._slowdown.count(gpu.device, reading.mono)
            if windows > limits.gpu_slowdown_windows_bad:
                of, seconds = limits.gpu_slowdown_windows, limits.gpu_slowdown_window
                text = _in_windows("hardware slowdown", windows, of, seconds)
                anomaly = Anomaly(gpu, Verdict.SUSPECT, text, Remedy.REPAIR)
                found.append(gpu_finding("gpu_clocks", self._node, anomaly))
        return found


def with_known_identity(reading: NvmlReading, former: NvmlReading | None) -> NvmlReading:
    """Fill in the identity of lost GPUs, which may not report it: the GPU that had the same index before."""
    known = {gpu.index: gpu for gpu in former.gpus} if former else {}
    gpus = (
        replace(gpu, uuid=old.uuid, serial=old.serial, bus_id=old.bus_id, name=old.name)
        if not gpu.readable and not gpu.uuid and (old := known.get(gpu.index))
        else gpu
        for gpu in reading.gpus
    )
    return replace(reading, gpus=tuple(gpus))


def _in_windows(what: str, windows: int, of: float, seconds: float) -> str:
    return f"{what} in {windows} of the last {of:g} windows of {seconds:g} s"


def _merged(found: list[Finding]) -> list[Finding]:
    """Return one finding per check and device; a check that found something does not pass as well."""
    kept: dict[tuple[str, str], Finding] = {}
    for finding in found:
        place = (finding.check, finding.device)
        kept[place] = worse(kept[place], finding) if place in kept else finding
    bad = {f.check for f in kept.values() if f.verdict is not Verdict.PASS}
    return [f for f in kept.values() if f.check not in bad or f.verdict is not Verdict.PASS]


# Faults by check, most telling first, with a short text for screens.
_FAULTS = {
    "gpu_lost": "no answer",
    "gpu_count": "a GPU is missing",
    "gpu_xid": "Xid",
    "gpu_recovery": "needs recovery",
    "gpu_ecc": "ECC errors",
    "gpu_sram": "SRAM errors",
    "gpu_rows": "rows remapped",
    "gpu_pages": "pages retired",
    "gpu_nvlink": "NVLink down",
    "gpu_fabric": "not in its fabric",
    "gpu_pcie": "PCIe link",
    "gpu_nvlink_errors": "NVLink errors",
}
_PRIORITY = {check: place for place, check in enumerate(_FAULTS)}
_REMEDIES = {Remedy.RESET_GPU: "needs a reset", Remedy.REBOOT: "needs a reboot"}
_LOST = {r.GPU_IS_LOST: "lost", r.RESET_REQUIRED: "needs a reset"}


@dataclass(frozen=True)
class _Problem:
    """priority: within its level, the smallest first. text: GPUs with the same text are counted together."""

    level: str
    priority: int
    gpu: Gpu | None
    text: str
    heat: int = 0

    @property
    def rank(self) -> tuple[int, ...]:
        return (-LEVELS.index(self.level), self.priority, -self.heat, self.gpu.index if self.gpu else -1)

    def like(self, other: _Problem) -> bool:
        same = self.level in ("moderate", "heavy") or self.text == other.text
        return self.gpu is not None and self.level == other.level and same


def summarize(
    node: str,
    attempt: str,
    every: float,
    reading: NvmlReading,
    found: Sequence[Finding],
    events: EventHistory,
    about: About,
    limits: GpuLimits,
) -> NodeGpus:
    """Return what screens show of a node's GPUs. `found`: what `GpuMonitor.judge` returned, without disabled checks."""
    text, level = worst(reading, (*found, *events.findings(reading.wall)), events.fatal)
    device, (xid, xid_at) = max(events.xids.items(), key=lambda one: one[1][1], default=("", (None, None)))
    status = NodeGpus(
        node=node,
        attempt=attempt,
        wall=reading.wall,
        every=every,
        expected=_expected(reading, about),
        answering=None if reading.absent else sum(gpu.readable for gpu in reading.gpus),
        worst=text,
        level=level,
        xid=xid,
        xid_at=xid_at,
        xid_gpu=next((gpu.index for gpu in reading.gpus if device and gpu.uuid == device), None),
        xids_since=events.since,
    )
    return with_gpus(status, (_gpu_status(gpu, events, limits) for gpu in reading.gpus))


def worst(reading: NvmlReading, found: Iterable[Finding], xids: Mapping[str, int]) -> tuple[str, str]:
    """Return the worst problem as text ("gpu3 88 C, heavy (+2)") and its level; ("", "") if all is well.

    "(+2)" means that two more GPUs of the node have the same problem.

    Args:
        xids: by device, the Xid that accuses it.
    """
    gpus = {gpu.device: gpu for gpu in reading.gpus}
    problems = [one for f in found if (one := _problem(f, gpus.get(f.device), reading, xids)) is not None]
    if not problems:
        return "", ""
    first = min(problems, key=lambda one: one.rank)
    more = len({one.gpu.index for one in problems if one.gpu and one.like(first)}) - 1
    which = f"gpu{first.gpu.index} " if first.gpu else ""
    return which + first.text + (f" (+{more})" if more > 0 else ""), first.level


def _problem(found: Finding, gpu: Gpu | None, reading: NvmlReading, xids: Mapping[str, int]) -> _Problem | None:
    if found.verdict in (Verdict.PASS, Verdict.UNKNOWN):
        return None
    if found.check == "gpu_clocks":
        return _Problem("throttled", 0, gpu, "throttled")
    if found.check == "gpu_heat":
        heat = gpu.heat if gpu else Heat()
        level = "moderate" if heat.slowdown and (heat.now or 0) < heat.slowdown else "heavy"
        return _Problem(level, 0, gpu, f"{heat.now} C, {level}", heat.now or 0)
    if not found.verdict.bad:
        return None
    unproven = len(_FAULTS) * (found.verdict is not Verdict.FAIL)
    text = _fault_text(found, gpu, reading, xids)
    return _Problem("fault", _PRIORITY.get(found.check, len(_FAULTS) - 1) + unproven, gpu, text)


def _fault_text(found: Finding, gpu: Gpu | None, reading: NvmlReading, xids: Mapping[str, int]) -> str:
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
    """Count as `gpu_count` does. If NVML does not see the job's GPUs one by one, return what it sees."""
    if reading.barred or any(gpu.mig for gpu in reading.gpus):
        return len(reading.gpus)
    return max(granted(reading, about), len(reading.gpus))


def _gpu_status(gpu: Gpu, events: EventHistory, limits: GpuLimits) -> GpuStatus:
    xid, xid_at = events.xids.get(gpu.uuid, (None, None)) if gpu.uuid else (None, None)
    return GpuStatus(
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
