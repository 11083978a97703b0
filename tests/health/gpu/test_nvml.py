"""Reading GPUs: NVIDIA's own Python binding over a stub of the library, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_stub import StubNode
from nvml_stub import (
    FAULTS,
    healthy,
    with_error,
    with_fault,
    with_hang,
    with_missing,
    with_values,
)

from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Verdict
from transom_cli.health.gpu import nvml
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.check import judge_nvml
from transom_cli.health.gpu.presence import overdue_nvml
from transom_cli.health.gpu.reading import (
    Ecc,
    Fabric,
    GpuLimits,
    Heat,
    NvmlReading,
    Pages,
    Pcie,
    Power,
    Process,
    Rows,
    Sram,
)
from transom_cli.health.node_worker import CheckRequest, read_checks

LOOK = About(tier=Tier.WATCH, gpus=2)


def bad(reading: NvmlReading, about: About = LOOK) -> list[tuple[str, str]]:
    found = judge_nvml("n1", reading, about, GpuLimits())
    return [(f.check, f.verdict.value) for f in found if f.verdict is not Verdict.PASS]


def test_every_value_arrives_where_it_belongs(stub: StubNode) -> None:
    """Distinct numbers, so that two that were swapped would show."""
    one = {
        "field.230.0": "2",
        "ecc.uncorrected_volatile": "11",
        "ecc.uncorrected_aggregate": "12",
        "ecc.corrected_volatile": "13",
        "ecc.corrected_aggregate": "14",
        "sram.uncorrected_volatile": "15",
        "sram.uncorrected_aggregate": "16",
        "sram.corrected_volatile": "17",
        "sram.exceeded": "1",
        "rows.corrected": "18",
        "rows.uncorrected": "19",
        "rows.pending": "1",
        "rows.failed": "0",
        "link.3.up": "0",
        "link.5.replays": "20",
        "link.5.recoveries": "21",
        "link.5.crc_flit": "22",
        "link.5.crc_data": "23",
        "fabric.status": "24",
        "fabric.health": "25",
        "pcie.generation": "3",
        "pcie.width": "8",
        "pcie.replays": "26",
        "clocks.reasons": "0x48",
        "clocks.sm": "1980",
        "clocks.memory": "2619",
        "busy": "97",
        "heat.now": "61",
        "heat.margin": "-3",
        "power.usage": "412345",
        "power.limit": "650000",
        "memory.used": "27",
        "processes": "4711:28 4712:29",
        "persistence": "0",
        "mig": "0",
        "mig_next": "1",
    }
    stub.set(with_values(healthy(2), 1, **{key.replace(".", "__"): value for key, value in one.items()}))
    reading = stub.read(LOOK)
    assert (reading.driver, reading.cuda, reading.nvml) == ("570.124.06", "12.8", "12.570.124.06")
    assert (reading.absent, reading.barred, len(reading.gpus)) == ("", 0, 2)
    gpu = reading.gpus[1]
    assert (gpu.uuid, gpu.serial, gpu.bus_id) == ("GPU-stub-0001", "1652323000001", "00000000:1F:00.0")
    assert (gpu.name, gpu.vbios) == ("NVIDIA H100 80GB HBM3", "96.00.99.00.01")
    assert (gpu.recovery, gpu.ecc_on, gpu.ecc_on_next) == (2, True, True)
    assert gpu.ecc == Ecc(11, 12, 13, 14)
    assert gpu.sram == Sram(15, 16, 17, True)
    assert gpu.rows == Rows(18, 19, True, False) and gpu.pages is None
    assert [link.number for link in gpu.links if not link.up] == [3] and len(gpu.links) == 18
    assert dict(gpu.links[5].errors) == {"replays": 20, "recoveries": 21, "crc_flit": 22, "crc_data": 23}
    assert gpu.links[6].errors == () and gpu.link_counters == ("replays", "recoveries", "crc_flit", "crc_data")
    assert gpu.switched is True
    assert gpu.fabric == Fabric(3, 24, 25, "ab" * 16, 1)
    assert gpu.pcie == Pcie(3, 5, 8, 16, 26)
    assert (gpu.reasons, gpu.sm_clock, gpu.memory_clock, gpu.busy) == (0x48, 1980, 2619, 97)
    assert gpu.heat == Heat(61, 87, 92, -3)
    assert gpu.power == Power(412.345, 650.0, 700.0)
    assert (gpu.memory_used, gpu.memory_total) == (27, 80 * 2**30)
    assert gpu.processes == (Process(4711, 28), Process(4712, 29))
    assert (gpu.persistent, gpu.mig, gpu.mig_next) == (False, False, True)
    assert gpu.unread == () and gpu.readable


def test_a_healthy_node_passes(stub: StubNode) -> None:
    stub.set(healthy(8))
    reading = stub.read(About(gpus=8))
    assert bad(reading, About(gpus=8)) == []
    assert all(gpu.readable and not gpu.unread for gpu in reading.gpus)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("lost", [("gpu_lost", "fail")]),
        ("fell_off_the_bus", [("gpu_lost", "suspect")]),
        ("reset_required", [("gpu_lost", "fail")]),
        ("recovery_reset", [("gpu_recovery", "fail")]),
        ("recovery_reboot", [("gpu_recovery", "fail")]),
        ("ecc_uncorrected", [("gpu_ecc", "suspect")]),
        ("ecc_corrected", [("gpu_ecc_corrected", "monitor")]),
        ("sram_threshold", [("gpu_sram", "fail")]),
        ("row_remap_pending", [("gpu_rows", "suspect")]),
        ("row_remap_failed", [("gpu_rows", "fail")]),
        ("nvlink_down", [("gpu_nvlink", "fail")]),
        ("nvlink_errors", []),
        ("fabric_not_joined", [("gpu_fabric", "suspect")]),
        ("fabric_degraded", [("gpu_fabric", "suspect")]),
        ("pcie_narrow", [("gpu_pcie", "fail")]),
        ("pcie_replays", []),
        ("hardware_slowdown", [("gpu_clocks", "monitor"), ("gpu_heat", "monitor")]),
        ("hot", [("gpu_heat", "monitor")]),
        ("power_limited", [("gpu_power", "monitor")]),
        ("memory_left_over", []),
        ("persistence_off", [("gpu_persistence", "monitor")]),
        ("ecc_off", [("gpu_mode", "monitor")]),
    ],
)
def test_faults_of_the_sandbox_are_found(stub: StubNode, fault: str, expected: list[tuple[str, str]]) -> None:
    stub.set(with_fault(healthy(2), fault, gpu=1))
    assert bad(stub.read(LOOK)) == expected


def test_each_fault_of_the_sandbox_has_a_case() -> None:
    marks = test_faults_of_the_sandbox_are_found.pytestmark  # type: ignore[attr-defined]
    assert [case[0] for case in marks[0].args[1]] == list(FAULTS)


def test_gpus_that_are_missing_or_barred(stub: StubNode) -> None:
    stub.set(with_missing(healthy(2)))
    assert bad(stub.read(LOOK)) == [("gpu_count", "fail")]
    stub.set(with_error(healthy(2), "nvmlDeviceGetHandleByIndex_v2", r.NO_PERMISSION, owner=1))
    reading = stub.read(LOOK)
    assert (len(reading.gpus), reading.barred) == (1, 1)
    assert bad(reading) == [("gpu_count", "unknown")]


@pytest.mark.skipif(os.geteuid() != 0, reason="root may become somebody who is kept out")
def test_devices_that_a_step_may_not_open() -> None:
    with tempfile.TemporaryDirectory() as folder:
        devices = Path(folder)
        devices.chmod(0o755)
        for name, mode in (("nvidia0", 0o666), ("nvidia1", 0o600), ("nvidia2", 0o600), ("nvidiactl", 0o600)):
            (devices / name).touch()
            (devices / name).chmod(mode)
        os.seteuid(65534)
        try:
            assert nvml.closed_devices(devices) == 2
        finally:
            os.seteuid(0)


def test_gpu_lost_during_a_reading_keeps_its_name(stub: StubNode) -> None:
    stub.set(with_error(healthy(1), "nvmlDeviceGetEccMode", r.GPU_IS_LOST))
    gpu = stub.read(LOOK).gpus[0]
    assert (gpu.uuid, gpu.serial, gpu.recovery) == ("GPU-stub-0000", "1652323000000", 0)
    assert (gpu.trouble, gpu.trouble_code, gpu.links) == ("GPU is lost", r.GPU_IS_LOST, ())


@pytest.mark.parametrize("code", [2, 3, 4, 6, 13, 21, 22, 25, 26])
def test_unsupported_value_is_none_and_does_not_affect_others(stub: StubNode, code: int) -> None:
    stub.set(with_error(healthy(1), "nvmlDeviceGetTotalEccErrors", code))
    gpu = stub.read(LOOK).gpus[0]
    assert gpu.ecc == Ecc() and gpu.unread == ()
    assert gpu.rows == Rows(0, 0, False, False) and gpu.heat.now == 31


def test_unusual_error_keeps_its_own_text(stub: StubNode) -> None:
    stub.set(with_error(healthy(1), "nvmlDeviceGetTemperature", 10))
    gpu = stub.read(LOOK).gpus[0]
    assert gpu.unread == ("nvmlDeviceGetTemperature: Timeout",) and gpu.heat == Heat(None, 87, 92)


def test_a_driver_that_knows_almost_nothing(stub: StubNode) -> None:
    bare = {("system", "count"): "1", ("0", "uuid"): "GPU-bare"}
    stub.set(bare)
    reading = stub.read(About(gpus=1))
    assert reading.gpus == (replace(reading.gpus[0], index=0, uuid="GPU-bare"),)
    assert reading.gpus[0].ecc == Ecc() and reading.gpus[0].links == () and reading.gpus[0].memory_used is None
    assert bad(reading, About(gpus=1)) == []


def test_an_older_gpu_retires_pages(stub: StubNode) -> None:
    old = with_values(
        healthy(1), 0, rows__corrected="", pages__single_bit="7", pages__double_bit="0", pages__pending="1"
    )
    stub.set(with_error(old, "nvmlDeviceGetCurrentClocksEventReasons", 13))
    gpu = stub.read(LOOK).gpus[0]
    assert (gpu.rows, gpu.pages, gpu.reasons) == (None, Pages(7, 0, True), None)


def test_newer_links_count_by_field(stub: StubNode) -> None:
    fields = {f"field__{field}__{link}": "0" for field in (208, 215, 295) for link in range(18)}
    stub.set(with_values(healthy(1), 0, **{**fields, "field__215__9": "4", "field__295__9": "5"}))
    gpu = stub.read(LOOK).gpus[0]
    assert gpu.link_counters == ("recoveries", "retries", "receive_errors")
    assert gpu.links[9].errors == (("recoveries", 4), ("retries", 5))


@pytest.mark.long
def test_reader_waits_for_memory_that_is_being_freed(stub: StubNode) -> None:
    about = About(tier=Tier.QUICK, gpus=1)
    stub.set(with_fault(healthy(1), "memory_left_over"))
    assert bad(stub.read(about), about) == [("gpu_leftover", "suspect")], "it was not given back"
    reader = stub.start("-c", READ_FOR_A_LAUNCH)
    try:
        assert reader.stdout is not None and reader.stdout.readline() == "held\n"
        stub.set(healthy(1))
        assert reader.stdout.readline() == "0\n", "a reader that was waiting has seen it"
    finally:
        reader.kill()
        reader.communicate()


# Tells when it waits: between two looks, the reader sleeps.
READ_FOR_A_LAUNCH = """
import time
from transom_cli.health.check import About
from transom_cli.health.gpu import nvml
sleep = time.sleep
def told(seconds):
    print("held", flush=True)
    sleep(seconds)
time.sleep = told
print(nvml.read_nvml(About()).gpus[0].memory_used, flush=True)
"""


@pytest.mark.parametrize(("code", "says"), [(9, "Driver Not Loaded"), (18, "version mismatch"), (999, "Unknown Error")])
def test_nvml_that_cannot_start_has_a_reason(stub: StubNode, code: int, says: str) -> None:
    stub.set(with_error(healthy(1), "nvmlInit", code))
    reading = stub.read(LOOK)
    assert reading.absent_code == code and says in reading.absent and reading.gpus == ()


def test_a_count_that_fails_is_not_a_node_without_gpus(stub: StubNode) -> None:
    stub.set(with_error(healthy(1), "nvmlDeviceGetCount_v2", 999))
    assert stub.read(LOOK).absent == "Unknown Error"
    assert bad(stub.read(LOOK)) == [("gpu_count", "suspect")]


def test_a_node_without_a_driver(stub: StubNode) -> None:
    assert stub.read(LOOK).absent_code == r.DRIVER_NOT_LOADED


def test_this_machine_without_the_stub_can_be_read_too() -> None:
    program = (
        "from transom_cli.health.check import About\n"
        "from transom_cli.health.gpu.nvml import read_nvml\n"
        "found = read_nvml(About())\n"
        "assert found.absent or found.driver, found\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "TRANSOM_SANDBOX_NVML")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_each_node_has_its_own_state(stub: StubNode) -> None:
    other = replace(stub, name="node7")
    stub.set(healthy(1))
    other.set(healthy(3, "node7"))
    assert [gpu.uuid for gpu in other.read(LOOK).gpus] == [f"GPU-node7-000{n}" for n in range(3)]
    assert len(stub.read(LOOK).gpus) == 1


def test_an_nvml_that_hangs_costs_its_own_deadline_alone(stub: StubNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node worker reads a node: the kernel log arrives, and the GPU check reports how long it waited."""
    stub.set(with_hang(healthy(1)))
    for name, value in stub.env().items():
        monkeypatch.setenv(name, value)
    wanted = (
        CheckRequest("gpu", "transom_cli.health.gpu.nvml:read_nvml", 0.5),
        CheckRequest("kernel", "transom_cli.health.checks.kernel:read_kernel", 20.0),
    )
    said = {answer["check"]: answer for answer in read_checks(LOOK, wanted, starting=0.0)}
    assert "reading" in said["kernel"]
    found = overdue_nvml("n1", said["gpu"]["waited"], LOOK)
    assert (found.check, found.verdict) == ("gpu_lost", Verdict.SUSPECT)


def test_a_call_that_never_returns_hangs_its_reader_alone(stub: StubNode) -> None:
    stub.set(with_hang(healthy(1)))
    reader = stub.start(
        "-c",
        "import sys\n"
        "from transom_cli.health.check import About\n"
        "from transom_cli.health.gpu.nvml import read_nvml\n"
        "print('reading', flush=True)\n"
        "print(len(read_nvml(About()).gpus), flush=True)\n",
    )
    try:
        assert reader.stdout is not None and reader.stdout.readline() == "reading\n"
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.5)
        stub.set(healthy(1))  # the driver comes back, and so does the call
        assert reader.stdout.readline() == "1\n"
    finally:
        reader.kill()
        reader.communicate()


def test_a_machine_with_gpus_of_another_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "bus" / "pci" / "devices" / "0000:03:00.0"
    monkeypatch.setenv("TRANSOM_SYSFS", str(tmp_path))
    assert nvml._any_device(), "nobody knows"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    assert not nvml._any_device()
    (device / "vendor").write_text("0x10de\n")
    assert nvml._any_device()
