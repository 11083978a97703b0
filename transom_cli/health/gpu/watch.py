"""Watches a node's GPUs beside a training: `python -m transom_cli.health.gpu.watch --every 30`, a child of the agent.

Each line on its standard output is a JSON object: {"reading": {...}} (a `reading.NvmlReading`) at the start and every N
seconds, with "events": true while the events of all GPUs are heard; {"event": ...} (an `events.GpuEvent`) at once;
{"absent": why} where there is no NVML, which ends it with 0. It ends when its standard input is closed or its parent is
gone, even while a call of NVML hangs; that no line comes any more is then for its parent to see. Not exercised on
hardware.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading
import time
from typing import Any

from transom_cli.core.codec import plain
from transom_cli.health.about import About, Tier
from transom_cli.health.gpu.events import TYPES, GpuEvent
from transom_cli.health.gpu.nvml import RECOVERY_ACTION, read_nvml
from transom_cli.health.gpu.nvml_device import Device, Gone, words
from transom_cli.health.gpu.reading import GPU_IS_LOST, NvmlReading
from transom_cli.health.gpu.xid import NO_SITE_RULES
from transom_cli.health.gpu.xid_site import site_rules

_ALL = sum(TYPES)
_XID = 0x8
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no event came
_LOOKS_UP = 2.0  # seconds between looks at the parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="transom_cli.health.gpu.watch", description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=30.0, help="seconds between readings")
    parser.add_argument("--gpus", type=int, default=0, help="how many the job has here")
    asked = parser.parse_args()
    every = max(0.1, asked.every)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        return _watch(every, asked.gpus)
    except BrokenPipeError:  # nobody reads any more
        os._exit(0)


def _watch(every: float, gpus: int) -> int:
    about = About(tier=Tier.WATCH, gpus=gpus)
    reading = read_nvml(about)
    if reading.absent:
        _say({"absent": reading.absent})
        return 0
    import pynvml as nvml

    nvml.nvmlInit()
    heard, whole = _registered(nvml)
    _say(_told(reading, whole))  # who sees it knows that events are heard from now on
    due = time.monotonic() + every
    while True:
        if time.monotonic() >= due:
            _say(_told(read_nvml(about), whole))
            due = max(due + every, time.monotonic())
        pause = max(0.0, due - time.monotonic())
        try:
            data = nvml.nvmlEventSetWait_v2(heard, int(pause * 1000) + 1) if heard is not None else None
        except nvml.NVMLError as error:
            if error.value == GPU_IS_LOST:
                _say(plain(GpuEvent("gpu_unavailable", wall=time.time())))
            if error.value != _TIMEOUT:
                heard, whole = None, False  # it would fail again at once: from now on there are readings only
            continue
        if data is None:
            time.sleep(pause)
        else:
            _say(plain(_event(nvml, data)))


def _told(reading: NvmlReading, whole: bool) -> dict[str, Any]:
    return {"reading": plain(reading)} | ({"events": True} if whole else {})


def _registered(nvml: Any) -> tuple[Any, bool]:
    """An event set with all that each GPU can tell of, None where none does; and whether all GPUs are in it."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError:
        return None, False
    registered, count = 0, nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            known = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            nvml.nvmlDeviceRegisterEvents(handle, known & _ALL or _XID, events)
            registered += 1
        except nvml.NVMLError as error:
            print(f"GPU {index}: no events: {words(error)}", file=sys.stderr)
    return (events if registered else None), 0 < registered == count


def _event(nvml: Any, data: Any) -> GpuEvent:
    device = Device(nvml, data.device)
    kind = TYPES.get(int(data.eventType), f"type {data.eventType:#x}")
    uuid, serial, recovery = "", "", None
    try:
        uuid, serial = device.text("nvmlDeviceGetUUID"), device.text("nvmlDeviceGetSerial")
        recovery = device.fields([RECOVERY_ACTION])[0]
    except Gone:  # the event itself is told all the same
        recovery = None
    xid = int(data.eventData) if kind == "xid" else 0
    return GpuEvent(kind, uuid, serial, xid, recovery, time.time(), site_rules() if xid else NO_SITE_RULES)


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _end_with_parent(parent: int) -> None:
    """`os._exit`, since the other thread may hang in NVML for good."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], _LOOKS_UP)
        if ready and not os.read(0, 4096):
            break
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
