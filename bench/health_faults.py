"""The faults of `health_matrix`: what is done to a node, and the expected verdict. Pure."""

from __future__ import annotations

from functools import partial

import from_tests  # noqa: F401
import nvml_stub as stub
from health_rows import Fault

from transom_cli.health.finding import Verdict
from transom_cli.health.gpu import xid

MONITOR, SUSPECT, FAIL, UNKNOWN = Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL, Verdict.UNKNOWN
BUS = "0000:18:00"
GPU = 1  # of the two of a node
IB = "class/infiniband/mlx5_1/ports/1"
MC = "devices/system/edac/mc/mc0"

# What each fault of the stub must lead to. One that is not here has no row: the test of the plan says so.
_OF_ONE_GPU = {
    "lost": ("gpu_lost", FAIL),
    "fell_off_the_bus": ("gpu_lost", SUSPECT),
    "reset_required": ("gpu_lost", FAIL),
    "recovery_reset": ("gpu_recovery", FAIL),
    "recovery_reboot": ("gpu_recovery", FAIL),
    "ecc_uncorrected": ("gpu_ecc", SUSPECT),
    "ecc_corrected": ("gpu_ecc_corrected", MONITOR),
    "sram_threshold": ("gpu_sram", FAIL),
    "row_remap_pending": ("gpu_rows", SUSPECT),
    "row_remap_failed": ("gpu_rows", FAIL),
    "nvlink_down": ("gpu_nvlink", FAIL),
    "fabric_not_joined": ("gpu_fabric", SUSPECT),
    "fabric_degraded": ("gpu_fabric", SUSPECT),
    "pcie_narrow": ("gpu_pcie", FAIL),
    "hardware_slowdown": ("gpu_clocks", SUSPECT),
    "hot": ("gpu_heat", SUSPECT),
    "power_limited": ("gpu_power", MONITOR),
    "memory_left_over": ("gpu_leftover", SUSPECT),
    "persistence_off": ("gpu_persistence", MONITOR),
    "ecc_off": ("gpu_mode", MONITOR),
}
# Counters say nothing by their totals, only by what is new while a node is watched.
_NEW_ON_ONE_GPU = {
    "nvlink_errors": ("gpu_nvlink_errors", MONITOR),
    "pcie_replays": ("gpu_pcie", MONITOR),
    "ecc_uncorrected": ("gpu_ecc", FAIL),
    "nvlink_down": ("gpu_nvlink", FAIL),
}


def _gpus() -> list[Fault]:
    found = [
        Fault(f"gpu {name}", (check,), verdict, gpus=partial(stub.with_fault, fault=name, gpu=GPU))
        for name, (check, verdict) in _OF_ONE_GPU.items()
    ]
    found += [
        Fault(f"gpu {name}, watched", (check,), verdict, watch=True,
              gpus=partial(stub.with_fault, fault=name, gpu=GPU))
        for name, (check, verdict) in _NEW_ON_ONE_GPU.items()
    ]  # fmt: skip
    mismatch = partial(stub.with_error, call="nvmlInit", code=18)
    return [
        *found,
        Fault("gpu missing", ("gpu_count",), FAIL, gpus=stub.with_missing),
        Fault("gpu driver not there", ("gpu_count",), SUSPECT, gpus=lambda state: None),
        Fault("gpu driver half updated", ("gpu_count",), SUSPECT, gpus=mismatch),
        Fault("gpu driver of another version", ("alike",), MONITOR,
              gpus=lambda state: stub.with_values(state, "system", driver="550.54.15")),
        Fault("nvml hangs", ("gpu_lost",), SUSPECT, gpus=stub.with_hang, waits=True),
    ]  # fmt: skip


def line_of(kind: str, code: str) -> str:
    """As the driver logs it."""
    if kind == "sxid":
        return f"nvidia-nvswitch0: SXid (PCI:{BUS}.0): {code}, Fatal, Link 32 ingress fatal error"
    return f"NVRM: Xid (PCI:{BUS}): {code}, pid='<unknown>', name=<unknown>, as it may be"


def codes(verdict: Verdict) -> tuple[str, ...]:
    """The Xids of the catalogue with this verdict. 154 has rows of its own: it is obeyed, not looked up."""
    rules = xid.catalogue().rules.values()
    return tuple(r.code for r in rules if r.kind == "xid" and r.verdict is verdict and int(r.code) != 154)


def _xids() -> list[Fault]:
    all_of = {v: codes(v) for v in (FAIL, SUSPECT, MONITOR)}
    changed = f"NVRM: Xid (PCI:{BUS}): 154, GPU recovery action changed from 0x0 (None) to"
    return [
        *(
            Fault(f"{len(these)} of {len(these)} Xids: {v.value}", ("gpu_xid",), v, codes=len(these),
                  log=tuple(line_of("xid", code) for code in these))
            for v, these in all_of.items()
        ),
        Fault("Xid 79, off the bus", ("gpu_xid",), FAIL, log=(line_of("xid", "79"),)),
        Fault("Xid 48, double-bit ECC", ("gpu_xid",), SUSPECT, log=(line_of("xid", "48"),)),
        Fault("Xid 31, a program's fault", ("gpu_xid",), MONITOR, log=(line_of("xid", "31"),)),
        Fault("Xid 154 asks for a reset", ("gpu_xid",), FAIL, log=(f"{changed} 0x1 (GPU Reset Required)",)),
        Fault("Xid 154 asks for a reboot", ("gpu_xid",), FAIL, log=(f"{changed} 0x2 (Node Reboot Required)",)),
        Fault("Xid 145, fatal NVLink error", ("gpu_xid",), SUSPECT,
              log=(f"NVRM: Xid (PCI:{BUS}): 145, RLW_RXPIPE Fatal XC1 i0 Link 04",)),
        Fault("SXid, fatal", ("gpu_xid",), SUSPECT, log=(line_of("sxid", "20034"),)),
    ]  # fmt: skip


_LINES = {
    "machine check": ("[Hardware Error]: event severity: fatal", SUSPECT),
    "nvme down": ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", SUSPECT),
    "file system error": ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: reading lblock 0", SUSPECT),
    "pcie fatal error": ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", SUSPECT),
    "soft lockup": ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", MONITOR),
    "out of memory": ("Out of memory: Killed process 4711 (python) total-vm:1kB", MONITOR),
    "nic link down": ("mlx5_core 0000:3b:00.0 eth0: Link is Down", MONITOR),
}


def _kernel() -> list[Fault]:
    return [Fault(f"kernel: {name}", ("kernel",), verdict, log=(line,)) for name, (line, verdict) in _LINES.items()]


_FUSE = (
    'mkdir -p {0}\n"$PYTHON" -m transom_cli.sandbox.disk_server {0} {1} >/dev/null 2>&1 </dev/null & server=$!\n'
    "for i in $(seq 100); do grep -q ' transom-disk ' /proc/self/mountinfo && break; sleep 0.05; done\n"
)
_FILL = "dd if=/dev/zero of=$SCRATCH/ballast bs=4096 2>/dev/null || true\n"


def _files() -> list[Fault]:
    fuse = ("fusermount3", "mount")
    return [
        Fault("disk full", ("room",), SUSPECT, shell=_FILL),
        Fault("disk without inodes", ("room",), SUSPECT,
              shell="mount -t tmpfs -o nr_inodes=16,size=8m scratch $SCRATCH\n"
                    "for i in $(seq 20); do touch $SCRATCH/$i 2>/dev/null || break; done\n"),
        Fault("disk nearly full", ("room",), MONITOR,
              shell="dd if=/dev/zero of=$SCRATCH/ballast bs=1M count=58 2>/dev/null\n"),
        Fault("read-only mount", ("write",), SUSPECT, shell="mount -o remount,ro $SCRATCH\n"),
        Fault("server turned read-only", ("write",), SUSPECT, needs=fuse,
              shell="touch /tmp/$TAG.ro\n" + _FUSE.format("$SCRATCH", "/tmp/$TAG.ro")),
        Fault("mount hangs", ("mount",), SUSPECT, needs=fuse,
              shell=_FUSE.format("$SCRATCH", "/tmp/$TAG.none") + "kill -STOP $server\n", waits=True),
        Fault("run directory hangs", ("run_dir",), SUSPECT, needs=fuse,
              shell=_FUSE.format("$RUN", "/tmp/$TAG.none") + "kill -STOP $server\n", waits=True),
        Fault("folder not mounted", ("mount",), SUSPECT, shell="umount $SCRATCH && mount -t tmpfs -o size=8m up $UP\n"),
        Fault("run directory of another", ("run_dir",), SUSPECT,
              shell="mount -t tmpfs other $RUN\nprintf other > $RUN/token\n"),
        Fault("run directory read-only", ("run_dir",), SUSPECT,
              shell="mount --bind $RUN $RUN\nmount -o remount,bind,ro $RUN\n"),
        Fault("/dev/shm too small", ("shm",), MONITOR, shell="mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm\n"),
        Fault("/dev/shm with wrong rights", ("shm",), MONITOR,
              shell="mount -t tmpfs -o size=2g,mode=0755 shm /dev/shm\n"),
        Fault("/dev/shm full", ("room",), SUSPECT,
              shell="mount -t tmpfs -o size=2m,mode=1777 shm /dev/shm\n"
                    "dd if=/dev/zero of=/dev/shm/ballast bs=4096 2>/dev/null || true\n"),
    ]  # fmt: skip


def _host() -> list[Fault]:
    down = {f"{IB}/state": "1: DOWN", f"{IB}/phys_state": "2: Polling", f"{IB}/rate": "10 Gb/sec (4X SDR)"}
    zombie = (
        '"$PYTHON" -c "import os, time; os.fork() or os._exit(0); time.sleep(60)" >/dev/null 2>&1 </dev/null &\n'
        "sleep 1.5\n"
    )
    limit = ("prlimit",)
    return [
        Fault("clock 3 s off", ("clock_offset",), MONITOR, clock=3.0, needs=("cc",)),
        Fault("clock 10 minutes off", ("clock_offset",), SUSPECT, clock=-600.0, needs=("cc",)),
        Fault("slow clock source", ("clocksource",), MONITOR,
              files={"devices/system/clocksource/clocksource0/current_clocksource": "hpet"}),
        Fault("ib port down", ("ib_state",), SUSPECT, files=down),
        Fault("ib port slow", ("ib_rate",), SUSPECT, files={f"{IB}/rate": "100 Gb/sec (4X EDR)"}),
        Fault("ib adapter gone", ("alike",), MONITOR, files={"class/infiniband/mlx5_1": None}),
        Fault("ib port goes down, watched", ("ib_link",), SUSPECT, watch=True, files=down),
        Fault("ib link flaps, watched", ("ib_link",), SUSPECT, watch=True, files={f"{IB}/counters/link_downed": "5"}),
        Fault("ib symbol errors, watched", ("ib_errors",), MONITOR, watch=True,
              files={f"{IB}/counters/symbol_error": "40"}),
        Fault("host memory: errors so far", ("edac",), MONITOR, files={f"{MC}/ue_count": "1"}),
        Fault("host memory: new error, watched", ("edac_new",), FAIL, watch=True, files={f"{MC}/ue_count": "1"}),
        Fault("host memory: 50 mended, watched", ("edac_new",), MONITOR, watch=True, files={f"{MC}/ce_count": "50"}),
        Fault("few open files", ("nofile",), MONITOR, needs=limit, shell="prlimit --nofile=256 --pid $$\n"),
        Fault("little locked memory", ("memlock",), MONITOR, needs=limit,
              shell="prlimit --memlock=65536 --pid $$\n", limits=(("memlock", 1 << 20),)),
        Fault("few processes", ("nproc",), MONITOR, needs=limit, shell="prlimit --nproc=500 --pid $$\n"),
        Fault("a zombie", ("processes",), MONITOR, shell=zombie, limits=(("stuck_age", 1.0),)),
        Fault("site check: warning", ("site",), MONITOR, site="echo the fan is loud; exit 1"),
        Fault("site check: critical", ("site",), FAIL, site="echo no fan; exit 2"),
        Fault("site check: unknown", ("site",), UNKNOWN, site="echo no sensor; exit 3"),
        Fault("site check hangs", ("site",), UNKNOWN, site="sleep 600", waits=True),
        Fault("node worker never starts", ("answer",), SUSPECT, never=True, waits=True),
        Fault("node worker killed while reading", ("answer",), SUSPECT, when="here", do="kill", whom="worker"),
    ]  # fmt: skip


# A node's processes see its control groups. Without this they do not, as in a container: `ip netns exec` covers /sys.
_GROUPS = (
    "mount -t tmpfs groups /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu\n"
    "mount -t cgroup -o $(sed -En 's/^[0-9]+:((.*,)?cpu(,.*)?):.*/\\1/p' /proc/self/cgroup) cpu /sys/fs/cgroup/cpu\n"
)


def _probe() -> list[Fault]:
    links, slow = ("link_node", "link_answer", "link_speed"), ("link_speed",)
    ip = ("ip", "tc")
    tables = ("ip", "iptables")
    broken = 'mkdir -p /tmp/$TAG/torch && echo "raise ImportError(1)" > /tmp/$TAG/torch/__init__.py\n'
    return [
        Fault("slow node (cgroup)", ("compute_speed",), SUSPECT, probe=True, when="hello", do="slow", shell=_GROUPS),
        Fault("slow node (cgroup, not seen)", ("compute_speed",), SUSPECT, probe=True, when="hello", do="slow"),
        Fault("node stops and goes (SIGSTOP)", ("compute_speed",), SUSPECT, probe=True, when="hello", do="throttle"),
        Fault("wrong sum, always", ("compute_exact",), FAIL, probe=True, env={"TRANSOM_PROBE_FLIP": "exact"}),
        Fault("wrong product, always", ("compute_digest",), FAIL, probe=True, env={"TRANSOM_PROBE_FLIP": "gemm"}),
        Fault("wrong product, now and then", ("compute_repeat",), FAIL, probe=True,
              env={"TRANSOM_PROBE_FLIP": "gemm:3"}),
        Fault("probe killed", ("compute_answer",), SUSPECT, probe=True, when="hello", do="kill"),
        Fault("probe stopped", ("compute_answer",), SUSPECT, probe=True, when="hello", do="stop"),
        Fault("probe killed while it sends", ("link_answer",), SUSPECT, probe=True, when="pairs 1", do="kill"),
        Fault("probe stopped while it sends", ("link_answer",), SUSPECT, probe=True, when="pairs 1", do="stop"),
        Fault("torch broken", ("probe_hello",), MONITOR, probe=True, shell=broken, env={"PYTHONPATH": "/tmp/$TAG"}),
        Fault("node cut off", links, SUSPECT, probe=True, needs=tables, net="cut"),
        Fault("node throttled", slow, SUSPECT, probe=True, needs=ip, net="throttle 8mbit"),
        Fault("node drops packets", links, SUSPECT, probe=True, needs=tables, net="lose 0.25"),
        Fault("node delays packets", slow, SUSPECT, probe=True, needs=ip, net="delay 20"),
        Fault("link cut", ("link",), MONITOR, probe=True, pair=True, needs=tables, net="cut"),
        Fault("link throttled", ("link",), MONITOR, probe=True, pair=True, needs=ip, net="throttle 8mbit"),
        Fault("link drops packets", ("link",), MONITOR, probe=True, pair=True, needs=tables, net="lose 0.25"),
    ]  # fmt: skip


FAULTS: tuple[Fault, ...] = (*_gpus(), *_xids(), *_kernel(), *_files(), *_host(), *_probe())
