"""Read a node's GPUs through NVML (nvidia-ml-py). Run it in a child with a deadline: it hangs if the driver does.

Drivers and GPUs lack different features, so every call is guarded: an unsupported value is None, and only a GPU that
NVML gives up (lost, reset required) ends its own reading. Not exercised on hardware: calls and structures are
nvidia-ml-py's, tested against a stub of the library (`tests/nvml_stub.py`).
"""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.core.log_lines import clean
from transom_cli.health.check import About, Tier
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.links import read_connections
from transom_cli.health.gpu.memory import read_memory
from transom_cli.health.gpu.presence import read_identity, read_recovery
from transom_cli.health.gpu.reading import LEFTOVER, Gpu, NvmlReading
from transom_cli.health.gpu.state import read_memory_use, read_state
from transom_cli.health.system import names, read_text, sysfs

DEVICES = Path("/dev")
SETTLES = 5  # looks, one second apart, before memory counts as leftover: a killed training frees it within seconds
_NVIDIA = "0x10de"  # PCI vendor
# Return codes of an unsupported value: invalid argument, not supported, no permission, not found, function not found,
# no data, no ECC on a virtual GPU, argument version mismatch, deprecated.
_UNSUPPORTED = frozenset((2, 3, 4, 6, 13, 21, 22, 25, 26))
_UNREAD = 5  # failed calls that are kept per device


class Gone(Exception):
    """NVML has given the device up; `code` is its return code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Device:
    """One device's NVML calls. An unsupported value is None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.unread: list[str] = []

    def get(self, call: str, *args: Any) -> Any:
        """Return the call's value or None. Raises Gone: NVML has given the device up."""
        function = getattr(self.nvml, call, None)
        if function is None:  # an older nvidia-ml-py
            return None
        try:
            return function(self.handle, *args)
        except self.nvml.NVMLError as error:
            if error.value in (r.GPU_IS_LOST, r.RESET_REQUIRED):
                raise Gone(error.value, message(error)) from error
            if error.value not in _UNSUPPORTED and len(self.unread) < _UNREAD:
                self.unread.append(f"{call}: {message(error)}")
            return None
        except UnicodeError:  # nvidia-ml-py decodes names itself
            return None

    def text(self, call: str) -> str:
        return clean(str(self.get(call) or ""))

    def switch(self, call: str) -> bool | None:
        found = self.get(call)
        return None if found is None else bool(found)

    def switches(self, call: str) -> tuple[bool | None, bool | None]:
        """Return a mode's current value and its value after the next reset."""
        found = self.get(call)
        return (None, None) if found is None else (bool(found[0]), bool(found[1]))

    def fields(self, wanted: Sequence[int | tuple[int, int]]) -> list[int | None]:
        """Return values by field ID, or by (field ID, link number)."""
        found = self.get("nvmlDeviceGetFieldValues", list(wanted))
        return [None] * len(wanted) if found is None else [_number(value) for value in found]

    def fill(self, call: str, kind: str) -> Any:
        """Make a call that fills in a structure of nvidia-ml-py's class `kind`, and return the structure."""
        structure = getattr(self.nvml, kind, None)
        if structure is None:
            return None
        filled = structure()
        return None if self.get(call, ctypes.byref(filled)) is None else filled


def message(error: Exception) -> str:
    return clean(str(error))


def _number(field: Any) -> int | None:
    if field.nvmlReturn != 0:
        return None
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}.get(field.valueType)
    return None if member is None else int(getattr(field.value, member))


def read_nvml(about: About) -> NvmlReading:
    """Read all GPUs. Raises nothing for a faulty driver, but may hang if the driver does."""
    wall, mono = time.time(), time.monotonic()
    try:
        import pynvml as nvml
    except ImportError as error:
        return NvmlReading(wall, mono, absent=clean(str(error)), absent_code=r.NO_BINDING)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        foreign = error.value == r.LIBRARY_NOT_FOUND and not _any_device()
        return NvmlReading(wall, mono, absent=message(error), absent_code=error.value, foreign=foreign)
    try:
        found = [_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        if about.tier.includes(Tier.QUICK):
            found = _settled(nvml, found)
        seen = tuple(gpu for gpu in found if gpu.trouble_code != r.NO_PERMISSION)
        cuda = _call(nvml, "nvmlSystemGetCudaDriverVersion")
        return NvmlReading(
            wall,
            mono,
            driver=clean(str(_call(nvml, "nvmlSystemGetDriverVersion") or "")),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            nvml=clean(str(_call(nvml, "nvmlSystemGetNVMLVersion") or "")),
            gpus=seen,
            barred=len(found) - len(seen) or (closed_devices() if len(seen) < about.gpus else 0),
            granted=_granted(),
        )
    except nvml.NVMLError as error:
        return NvmlReading(wall, mono, absent=message(error), absent_code=error.value)
    finally:
        _call(nvml, "nvmlShutdown")


def _any_device() -> bool:
    """Return whether the machine has an NVIDIA device, with or without a driver; True if its bus cannot be read."""
    bus = sysfs("bus/pci/devices")
    found = names(bus)
    return not found or any(read_text(bus / name / "vendor") == _NVIDIA for name in found)


def _granted() -> int | None:
    """Return how many GPUs Slurm gave this process; nodes of one job may have different numbers."""
    count = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return int(count) if count.isdecimal() else None


def _call(nvml: Any, call: str) -> Any:
    try:
        return getattr(nvml, call)()
    except nvml.NVMLError:
        return None


def _read_gpu(nvml: Any, index: int) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Gpu(index, trouble=message(error), trouble_code=error.value)
    device = Device(nvml, handle)
    known: dict[str, Any] = {}
    try:
        for part in _PARTS:  # what was read before the GPU turns out to be lost is kept
            known.update(part(device))
    except Gone as gone:
        known.update(trouble=str(gone), trouble_code=gone.code)
    return Gpu(index, unread=tuple(device.unread), **known)


def _read_place(device: Device) -> dict[str, Any]:
    pci = device.get("nvmlDeviceGetPciInfo")
    return {"bus_id": "" if pci is None else clean(str(pci.busId))}


_PARTS: tuple[Callable[[Device], dict[str, Any]], ...] = (
    _read_place, read_identity, read_recovery, read_memory, read_connections, read_state, read_memory_use,
)  # fmt: skip


def _settled(nvml: Any, found: list[Gpu]) -> list[Gpu]:
    """Wait for memory that a process of the previous launch is just freeing."""
    for _ in range(SETTLES):
        holding = {gpu.index for gpu in found if gpu.readable and (gpu.memory_used or 0) > LEFTOVER}
        if not holding:
            break
        time.sleep(1.0)
        found = [_read_memory_use_again(nvml, gpu) if gpu.index in holding else gpu for gpu in found]
    return found


def _read_memory_use_again(nvml: Any, gpu: Gpu) -> Gpu:
    try:
        return replace(gpu, **read_memory_use(Device(nvml, nvml.nvmlDeviceGetHandleByIndex(gpu.index))))
    except Gone as gone:
        return replace(gpu, trouble=str(gone), trouble_code=gone.code)
    except nvml.NVMLError as error:
        return replace(gpu, trouble=message(error), trouble_code=error.value)


def closed_devices(devices: Path = DEVICES) -> int:
    """Count device files that the step's cgroup forbids. Opens each one; the kernel refuses before the driver runs."""
    closed = 0
    for path in devices.glob("nvidia[0-9]*"):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except PermissionError:
            closed += 1
        except OSError:
            continue
    return closed
