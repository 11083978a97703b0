"""A GPU's links to other GPUs, read through NVML: NVLink, and the fabric that NVLink switches make."""

from __future__ import annotations

from transom_cli.health.gpu.nvml_device import Device
from transom_cli.health.gpu.reading import Fabric, Link

MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest header; a GPU refuses the first number that it has not got

_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH

# Field ids, by link: what NVRx watches (nvidia-resiliency-ext, GPUHealthCheck) where driver and link are new enough.
_FIELDS = (("recoveries", 215), ("retries", 295), ("receive_errors", 208))
# nvmlDeviceGetNvLinkErrorCounter, for older ones (up to Hopper).
_LEGACY = (("replays", 0), ("recoveries", 1), ("crc_flit", 2), ("crc_data", 3))


def read_links(device: Device) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """The links, and the names of the errors that they count."""
    states = []
    for number in range(MAX_LINKS):
        state = device.get("nvmlDeviceGetNvLinkState", number)
        if state is None:
            break
        states.append(bool(state))
    counts = _counts(device, len(states))
    counters = tuple(dict.fromkeys(name for (_, name) in counts))
    links = []
    for number, up in enumerate(states):
        found = ((name, counts.get((number, name), 0)) for name in counters)
        links.append(Link(number, up, tuple((name, count) for name, count in found if count)))
    return tuple(links), counters


def read_switched(device: Device, links: tuple[Link, ...]) -> bool | None:
    """Whether the links lead to NVLink switches; None where none is up to tell."""
    for link in links:
        remote = device.get("nvmlDeviceGetNvLinkRemoteDeviceType", link.number) if link.up else None
        if remote is not None:
            return bool(remote == _SWITCH)
    return None


def _counts(device: Device, links: int) -> dict[tuple[int, str], int]:
    """By link and name. The older calls are made only where none of the newer fields is there."""
    asked = [(number, name, field) for number in range(links) for name, field in _FIELDS]
    values = device.fields([(field, number) for number, _, field in asked]) if asked else []
    found = {(number, name): value for (number, name, _), value in zip(asked, values, strict=True) if value is not None}
    if found:
        return found
    for number in range(links):
        for name, kind in _LEGACY:
            value = device.get("nvmlDeviceGetNvLinkErrorCounter", number, kind)
            if value is not None:
                found[number, name] = value
    return found


def read_fabric(device: Device) -> Fabric | None:
    """None where the GPU has no part in a fabric (state 0, not supported)."""
    found = device.fill("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t")
    if found is None or not found.state:
        return None
    cluster = bytes(found.clusterUuid).hex()
    return Fabric(found.state, found.status, found.healthMask, cluster if cluster.strip("0") else "", found.cliqueId)
