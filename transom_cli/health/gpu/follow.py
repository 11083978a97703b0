"""A node's GPUs, look by look: the present state, what is new since the last look, and what lasts over many. Pure."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.judge import judge_nvml
from transom_cli.health.gpu.judge_changes import judge_nvml_changes, new_link_errors
from transom_cli.health.gpu.judge_state import hardware_slowdown
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import NvmlReading
from transom_cli.health.gpu.telling import Odd, about_gpu, worse


class Windows:
    """In how many of the last windows of time something odd was seen, by device."""

    def __init__(self, seconds: float, kept: int) -> None:
        self._seconds = seconds
        self._kept = kept
        self._odd: dict[str, set[int]] = {}

    def add(self, device: str, at: float) -> None:
        self._odd.setdefault(device, set()).add(self._window(at))

    def count(self, device: str, at: float) -> int:
        oldest = self._window(at) - self._kept
        recent = {window for window in self._odd.get(device, ()) if window > oldest}
        self._odd[device] = recent
        return len(recent)

    def _window(self, at: float) -> int:
        return int(at // self._seconds)


class NvmlFollow:
    """Judges the readings of one node in turn, beside a training (`about.tier` is WATCH)."""

    def __init__(self, node: str, about: About, limits: GpuLimits) -> None:
        self._node = node
        self._about = about
        self._limits = limits
        self._former: NvmlReading | None = None
        self._odd: dict[tuple[str, str], Finding] = {}
        self._links = Windows(limits.gpu_nvlink_window, int(limits.gpu_nvlink_windows))
        self._slowdown = Windows(limits.gpu_slowdown_window, int(limits.gpu_slowdown_windows))

    @property
    def last(self) -> NvmlReading | None:
        """What was looked at last, each GPU by the name that is known of it."""
        return self._former

    def look(self, reading: NvmlReading) -> tuple[Finding, ...]:
        """As `judge_nvml`; of two findings by one check about one GPU, the worse.

        What was odd about a GPU at the former look and is not now is a PASS about that GPU.
        """
        reading = named(reading, self._former)
        found = list(judge_nvml(self._node, reading, self._about, self._limits))
        if self._former is not None:
            seconds = reading.mono - self._former.mono
            found += judge_nvml_changes(self._node, self._former, reading, seconds, self._about, self._limits)
        found = _merged(found + self._lasting(reading))
        self._former = reading
        odd = {(f.check, f.device): f for f in found if f.device and f.verdict is not Verdict.PASS}
        better = [
            replace(f, verdict=Verdict.PASS, remedy=Remedy.NONE, evidence=f"not any more: {f.evidence}")
            for key, f in self._odd.items()
            if key not in odd
        ]
        self._odd = odd
        return (*found, *better)

    def _lasting(self, reading: NvmlReading) -> list[Finding]:
        limits, found = self._limits, []
        former = {gpu.uuid: gpu for gpu in self._former.gpus} if self._former else {}
        for gpu in reading.gpus:
            old = former.get(gpu.uuid)
            if self._former and old and new_link_errors(old, gpu, reading.mono - self._former.mono, limits):
                self._links.add(gpu.device, reading.mono)
            if hardware_slowdown(gpu):
                self._slowdown.add(gpu.device, reading.mono)
            windows = self._links.count(gpu.device, reading.mono)
            if windows > limits.gpu_nvlink_windows_bad:
                said = _often("new NVLink errors", windows, limits.gpu_nvlink_windows, limits.gpu_nvlink_window)
                odd = Odd(gpu, Verdict.SUSPECT, said, Remedy.RESET_GPU)
                found.append(about_gpu("gpu_nvlink_errors", self._node, odd))
            windows = self._slowdown.count(gpu.device, reading.mono)
            if windows > limits.gpu_slowdown_windows_bad:
                of, seconds = limits.gpu_slowdown_windows, limits.gpu_slowdown_window
                said = _often("slowdown by the hardware", windows, of, seconds)
                found.append(about_gpu("gpu_clocks", self._node, Odd(gpu, Verdict.SUSPECT, said, Remedy.REPAIR)))
        return found


def named(reading: NvmlReading, former: NvmlReading | None) -> NvmlReading:
    """A GPU that is lost may not tell who it is: it is the one that had its index at the former look."""
    known = {gpu.index: gpu for gpu in former.gpus} if former else {}
    gpus = (
        replace(gpu, uuid=old.uuid, serial=old.serial, bus_id=old.bus_id, name=old.name)
        if not gpu.readable and not gpu.uuid and (old := known.get(gpu.index))
        else gpu
        for gpu in reading.gpus
    )
    return replace(reading, gpus=tuple(gpus))


def _often(what: str, windows: int, of: float, seconds: float) -> str:
    return f"{what} in {windows} of the last {of:g} windows of {seconds:g} s"


def _merged(found: list[Finding]) -> list[Finding]:
    """One finding for each check and device; a check that found something does not pass as well."""
    kept: dict[tuple[str, str], Finding] = {}
    for finding in found:
        key = (finding.check, finding.device)
        kept[key] = worse(kept[key], finding) if key in kept else finding
    odd = {f.check for f in kept.values() if f.verdict is not Verdict.PASS}
    return [f for f in kept.values() if f.check not in odd or f.verdict is not Verdict.PASS]
