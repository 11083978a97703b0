"""Simulated GPUs: a stub of NVIDIA's libnvidia-ml.so.1 that reports what a file contains, for each node.

The file's lines, "OWNER KEY VALUE", are a dict here: ("system" or a GPU's index as text, key) to value. nvml_stub.c
lists the keys. `healthy` creates one, other functions change it, and `write` installs it, even for running processes:

    libraries = build(folder / "lib")
    write(folder / "state", "node1", with_fault(healthy(8), "row_remap_failed", gpu=3))
    env = {**os.environ, **environment(libraries, folder / "state")}
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError

State = dict[tuple[str, str], str]

LIBRARY = "libnvidia-ml.so.1"
LOGIN = "login"  # the host of processes that run on no node
_GIB = 2**30
_LINKS = 18

# What an idle H100 SXM reports, by the keys of nvml_stub.c.
_IDLE_H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "vbios": "96.00.99.00.01",
    "field.230.0": "0",
    "ecc.mode": "1",
    "ecc.uncorrected_volatile": "0",
    "ecc.uncorrected_aggregate": "0",
    "ecc.corrected_volatile": "0",
    "ecc.corrected_aggregate": "0",
    "sram.uncorrected_volatile": "0",
    "sram.uncorrected_aggregate": "0",
    "sram.corrected_volatile": "0",
    "sram.exceeded": "0",
    "rows.corrected": "0",
    "rows.uncorrected": "0",
    "rows.pending": "0",
    "rows.failed": "0",
    "link.remote": "2",
    "fabric.state": "3",
    "fabric.status": "0",
    "fabric.health": "0xaa",
    "pcie.generation": "5",
    "pcie.generation_max": "5",
    "pcie.width": "16",
    "pcie.width_max": "16",
    "pcie.replays": "0",
    "clocks.reasons": "0x1",
    "clocks.sm": "345",
    "clocks.memory": "2619",
    "busy": "0",
    "heat.now": "31",
    "heat.slowdown": "87",
    "heat.shutdown": "92",
    "power.usage": "71230",
    "power.limit": "700000",
    "power.default": "700000",
    "memory.total": str(80 * _GIB),
    "memory.reserved": str(540 * 2**20),
    "memory.used": "0",
    "persistence": "1",
    "mig": "0",
    "events": "0xfc0f",
}

# What each fault changes on one GPU. An empty value removes the key.
FAULTS = {
    "lost": {"lost": "15"},
    "fell_off_the_bus": {"error.nvmlDeviceGetHandleByIndex_v2": "999"},
    "reset_required": {"lost": "16"},
    "recovery_reset": {"field.230.0": "1"},
    "recovery_reboot": {"field.230.0": "2"},
    "ecc_uncorrected": {"ecc.uncorrected_volatile": "2", "ecc.uncorrected_aggregate": "2"},
    "ecc_corrected": {"ecc.corrected_volatile": "50000001"},
    "sram_threshold": {"sram.uncorrected_volatile": "4", "sram.uncorrected_aggregate": "9", "sram.exceeded": "1"},
    "row_remap_pending": {"rows.uncorrected": "1", "rows.pending": "1"},
    "row_remap_failed": {"rows.uncorrected": "9", "rows.failed": "1"},
    "nvlink_down": {"link.4.up": "0", "link.5.up": "0"},
    "nvlink_errors": {"link.7.replays": "12", "link.7.recoveries": "3"},
    "fabric_not_joined": {"fabric.state": "2"},
    "fabric_degraded": {"fabric.health": "0xa9"},
    "pcie_narrow": {"pcie.width": "8"},
    "pcie_replays": {"pcie.replays": "5000"},
    "hardware_slowdown": {"clocks.reasons": "0x48", "heat.now": "86", "clocks.sm": "600"},
    "hot": {"heat.now": "88"},
    "power_limited": {"power.limit": "350000"},
    "memory_left_over": {"memory.used": str(12 * _GIB), "processes": f"4711:{12 * _GIB}"},
    "persistence_off": {"persistence": "0"},
    "ecc_off": {"ecc.mode": "0"},
}


def build(folder: Path) -> Path:
    """Compile the stub into `folder`, for LD_LIBRARY_PATH, unless it is already built.

    Raises NotPermitted if there is no C compiler.
    """
    library = folder / LIBRARY
    if library.exists():
        return folder
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NotPermitted(
            "Simulated GPUs need a C compiler",
            "the stub of NVIDIA's library is written in C, and no compiler was found (cc, gcc, clang)",
            "sudo apt-get install --no-install-recommends gcc libc6-dev",
        )
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{LIBRARY}.{os.getpid()}"
    source = Path(__file__).with_name("nvml_stub.c")
    argv = [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", str(fresh), str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TransomError("The stub of NVIDIA's library does not compile", done.stderr.strip()[-500:])
    fresh.chmod(0o755)
    fresh.rename(library)
    return folder


def environment(libraries: Path, states: Path) -> dict[str, str]:
    """Return the environment in which processes see the GPUs in `states`, one file per node."""
    path = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(dict.fromkeys(path)), "TRANSOM_SANDBOX_NVML": str(states)}


def healthy(gpus: int, node: str = "") -> State:
    """Return the state of a node with idle H100 GPUs on NVLink switches. node: makes the UUIDs unique."""
    state: State = {
        ("system", "driver"): "570.124.06",
        ("system", "nvml"): "12.570.124.06",
        ("system", "cuda"): "12080",
        ("system", "count"): str(gpus),
    }
    for index in range(gpus):
        own = {
            "uuid": f"GPU-{node or 'stub'}-{index:04d}",
            "serial": f"16523230{index:05d}",
            "bus_id": f"00000000:{0x0F + 0x10 * index:02X}:00.0",
            **_IDLE_H100,
        }
        for link in range(_LINKS):
            own |= {f"link.{link}.{what}": "0" for what in ("replays", "recoveries", "crc_flit", "crc_data")}
            own[f"link.{link}.up"] = "1"
        state |= {(str(index), key): value for key, value in own.items()}
    return state


def with_values(state: State, owner: int | str, **values: str) -> State:
    """Change keys, given with double underscores for dots (`heat__now="90"`). An empty value removes a key."""
    named = {key.replace("__", "."): value for key, value in values.items()}
    return _changed(state, str(owner), named)


def with_fault(state: State, fault: str, gpu: int = 0) -> State:
    """Add one of FAULTS to one GPU."""
    return _changed(state, str(gpu), FAULTS[fault])


def with_missing(state: State, gpus: int = 1) -> State:
    """Remove the last `gpus` GPUs."""
    return _changed(state, "system", {"count": str(int(state["system", "count"]) - gpus)})


def with_hang(state: State, call: str = "nvmlDeviceGetCount_v2", owner: int | str = "system") -> State:
    """Make a call hang while the state says so."""
    return _changed(state, str(owner), {f"hang.{call}": "1"})


def with_error(state: State, call: str, code: int, owner: int | str = "system") -> State:
    return _changed(state, str(owner), {f"error.{call}": str(code)})


def with_event(state: State, gpu: int, kind: int, data: int = 0) -> State:
    """Add an event, for processes that are listening by then. kind: nvmlEventType*, 8 for an Xid with code `data`."""
    place = sum(key.startswith("event.") for _, key in state)
    return _changed(state, "system", {f"event.{place}": f"{gpu} {kind} {data}"})


def write(states: Path, node: str, state: State) -> None:
    """Replace a node's state atomically."""
    states.mkdir(parents=True, exist_ok=True)
    fresh = states / f".{node}.{os.getpid()}"
    fresh.write_text("".join(f"{owner} {key} {value}\n" for (owner, key), value in state.items()))
    fresh.chmod(0o644)
    fresh.rename(states / node)


def remove(states: Path, node: str) -> None:
    """Remove the node's driver."""
    (states / node).unlink(missing_ok=True)


def _changed(state: State, owner: str, values: dict[str, str]) -> State:
    kept = {key: value for key, value in state.items() if not (key[0] == owner and key[1] in values)}
    return kept | {(owner, key): value for key, value in values.items() if value}
