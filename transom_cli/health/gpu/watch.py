"""Watch a node's GPUs during training: `python -m transom_cli.health.gpu.watch --every 30`, a child of the agent.

Prints JSON lines: {"reading": {...}} (a `reading.NvmlReading`) at the start and every N seconds, with "events": true
while the events of all GPUs arrive; {"event": ...} (an `xid.GpuEvent`) at once; without NVML {"absent": why}, and exits
with 0. It ends when its standard input is closed or its parent is gone, even while an NVML call hangs; the parent
notices that lines stop. Not exercised on hardware.
"""

import argparse
import json
import os
import select
import sys
import threading
import time
from typing import Any

from transom_cli.core.codec import plain
from transom_cli.health.check import About, Tier
from transom_cli.health.checks.kernel import read_site_rules
from transom_cli.health.gpu.nvml import Device, Gone, message, read_nvml
from transom_cli.health.gpu.reading import GPU_IS_LOST, RECOVERY_ACTION, NvmlReading
from transom_cli.health.gpu.xid import EVENT_TYPES, NO_SITE_RULES, GpuEvent

_ALL = sum(EVENT_TYPES)
_XID = 0x8
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no event came
_PARENT_POLL = 2.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="transom_cli.health.gpu.watch", description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=30.0, help="seconds between readings")
    parser.add_argument("--gpus", type=int, default=0, help="number of GPUs that the job has on this node")
    options = parser.parse_args()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        return _watch(max(0.1, options.every), options.gpus)
    except BrokenPipeError:  # the reader is gone
        os._exit(0)


def _watch(every: float, gpus: int) -> int:
    about = About(tier=Tier.WATCH, gpus=gpus)
    reading = read_nvml(about)
    if reading.absent:
        _print({"absent": reading.absent})
        return 0
    import pynvml as nvml

    nvml.nvmlInit()
    events, complete = _register(nvml)
    _print(_reading(reading, complete))  # after registration, so its reader knows that events arrive from now on
    due = time.monotonic() + every
    while True:
        if time.monotonic() >= due:
            _print(_reading(read_nvml(about), complete))
            due = max(due + every, time.monotonic())
        pause = max(0.0, due - time.monotonic())
        try:
            data = nvml.nvmlEventSetWait_v2(events, int(pause * 1000) + 1) if events is not None else None
        except nvml.NVMLError as error:
            if error.value == GPU_IS_LOST:
                _print(plain(GpuEvent("gpu_unavailable", wall=time.time())))
            if error.value != _TIMEOUT:
                events, complete = None, False  # it would fail again at once: from now on there are only readings
            continue
        if data is None:
            time.sleep(pause)
        else:
            _print(plain(_event(nvml, data)))


def _reading(reading: NvmlReading, complete: bool) -> dict[str, Any]:
    return {"reading": plain(reading)} | ({"events": True} if complete else {})


def _register(nvml: Any) -> tuple[Any, bool]:
    """Return an event set with every supported event (None without any), and whether all GPUs are in it."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError:
        return None, False
    registered, count = 0, nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            supported = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            nvml.nvmlDeviceRegisterEvents(handle, supported & _ALL or _XID, events)
            registered += 1
        except nvml.NVMLError as error:
            print(f"GPU {index}: no events: {message(error)}", file=sys.stderr)
    return (events if registered else None), 0 < registered == count


def _event(nvml: Any, data: Any) -> GpuEvent:
    device = Device(nvml, data.device)
    kind = EVENT_TYPES.get(int(data.eventType), f"type {data.eventType:#x}")
    uuid, serial, recovery = "", "", None
    try:
        uuid, serial = device.text("nvmlDeviceGetUUID"), device.text("nvmlDeviceGetSerial")
        recovery = device.fields([RECOVERY_ACTION])[0]
    except Gone:  # report the event itself
        recovery = None
    xid = int(data.eventData) if kind == "xid" else 0
    return GpuEvent(kind, uuid, serial, xid, recovery, time.time(), read_site_rules() if xid else NO_SITE_RULES)


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _end_with_parent(parent: int) -> None:
    """Exit by `os._exit`, because the other thread may hang in NVML forever."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], _PARENT_POLL)
        if ready and not os.read(0, 4096):
            break
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
