"""File systems that hang, are read-only, full or missing: real mounts, made by root."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import stop, wait_for

from transom_cli.core import codec
from transom_cli.health.check import About, Tier
from transom_cli.health.checks import mounts as module
from transom_cli.health.checks.mounts import MountsLimits, MountsReading, Place, Room, judge_mounts, read_mounts
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.system import Mount, mount_of, parse_mountinfo

ROOT = Path(__file__).resolve().parents[3]
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
LIMITS = MountsLimits()


def look(
    *folders: Path, limits: MountsLimits = LIMITS, tier: Tier = Tier.QUICK, timeout: float = 10.0
) -> dict[str, Finding]:
    about = About(tier=tier, folders=tuple(map(str, folders)))
    reading = read_mounts(about, timeout)
    assert codec.build(MountsReading, codec.plain(reading)) == reading
    return {f.check: f for f in judge_mounts("n1", reading, about, limits)}


def mount(where: Path, *words: str) -> None:
    where.mkdir(exist_ok=True)
    subprocess.run(["mount", *words, str(where)], check=True)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mounted here"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


@pytest.fixture
def served(where: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A file system that a local process serves. It hangs while that process is stopped."""
    if not Path("/dev/fuse").exists() or importlib.util.find_spec("mfusepy") is None or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse, mfusepy and root")
    words = [sys.executable, "-m", "transom_cli.sandbox.disk_server", str(where), str(tmp_path / "flag")]
    server = subprocess.Popen(words, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)})
    wait_for(lambda: os.path.ismount(where))
    yield server
    server.send_signal(signal.SIGCONT)
    server.kill()
    server.wait()


def test_healthy_folder_passes_and_stays_empty(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found[f"mount:{tmp_path}"].verdict is Verdict.PASS
    assert found[f"write:{tmp_path}"].verdict is Verdict.PASS
    assert "flushed, read back and removed" in found[f"write:{tmp_path}"].evidence
    assert list(tmp_path.iterdir()) == []
    assert {"mount:/tmp", "write:/tmp", "room:/tmp", "shm", "room:/dev/shm"} <= set(found)


def test_nothing_is_written_while_a_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._PathProbe, "_write", lambda self: pytest.fail("it wrote"))
    found = look(tmp_path, tier=Tier.WATCH)
    assert f"mount:{tmp_path}" in found and not [check for check in found if check.startswith("write:")]


def test_hanging_file_system_costs_one_deadline_for_all_folders(served: subprocess.Popen[bytes], where: Path) -> None:
    folders = [where / name for name in "abcdefghijklmnopqrst"]
    for folder in folders:
        folder.mkdir()
    assert look(*folders)[f"mount:{where}"].verdict is Verdict.PASS, "the mount itself is probed too"
    stop(served.pid)
    before = time.monotonic()
    found = look(*folders, limits=MountsLimits(mount_hung=1.0), timeout=1.0)
    assert time.monotonic() - before < 15.0, "not one second per folder"
    for folder in folders:
        hung = found[f"mount:{folder}"]
        assert (hung.verdict, hung.remedy) == (Verdict.SUSPECT, Remedy.AVOID)
        assert "no answer to `stat` for 1." in hung.evidence
        assert f"fuse transom-disk on {where}" in hung.evidence
        assert found[f"write:{folder}"].verdict is Verdict.UNKNOWN
    assert found["mount:/tmp"].verdict is Verdict.PASS


def test_long_outage_costs_one_thread_per_path(served: subprocess.Popen[bytes], where: Path) -> None:
    stop(served.pid)
    look(where, tier=Tier.WATCH, timeout=0.2)
    threads = threading.active_count()
    for _ in range(5):
        hung = look(where, tier=Tier.WATCH, limits=MountsLimits(mount_hung=0.5), timeout=0.2)[f"mount:{where}"]
    assert threading.active_count() <= threads
    assert hung.verdict is Verdict.SUSPECT, "it has hung since the first reading"
    served.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 10
    while look(where, tier=Tier.WATCH, timeout=0.2)[f"mount:{where}"].verdict is not Verdict.PASS:
        assert time.monotonic() < deadline


def test_short_delay_is_only_monitored(served: subprocess.Popen[bytes], where: Path) -> None:
    stop(served.pid)
    assert look(where, timeout=0.2)[f"mount:{where}"].verdict is Verdict.MONITOR


def test_server_that_refuses_writes_is_suspected(served: subprocess.Popen[bytes], where: Path, tmp_path: Path) -> None:
    (tmp_path / "flag").touch()
    found = look(where)
    assert found[f"mount:{where}"].verdict is Verdict.PASS
    refused = found[f"write:{where}"]
    assert refused.verdict is Verdict.SUSPECT and "`make` failed: Read-only file system" in refused.evidence


def test_dead_server_is_suspected(served: subprocess.Popen[bytes], where: Path) -> None:
    served.kill()
    served.wait()
    found = look(where)[f"mount:{where}"]
    assert found.verdict is Verdict.SUSPECT and "Transport endpoint is not connected" in found.evidence


@root
def test_read_only_bind_mount_is_suspected(where: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    mount(where, "--bind", str(source))
    subprocess.run(["mount", "-o", "remount,bind,ro", str(where)], check=True)
    found = look(where)
    assert found[f"mount:{where}"].verdict is Verdict.PASS
    assert found[f"write:{where}"].verdict is Verdict.SUSPECT
    assert "Read-only file system" in found[f"write:{where}"].evidence


@root
def test_full_local_disk_is_suspected(where: Path) -> None:
    mount(where, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    (where / "fill").write_bytes(bytes(1 << 20))
    found = look(where)
    assert found[f"room:{where}"].verdict is Verdict.SUSPECT
    assert f"{where}: 100% of its space" in found[f"room:{where}"].evidence
    assert "`write` failed: No space left on device" in found[f"write:{where}"].evidence
    assert [path.name for path in where.iterdir()] == ["fill"], "the failed test file is removed"


@root
def test_disk_without_inodes_is_suspected(where: Path) -> None:
    mount(where, "-t", "tmpfs", "-o", "nr_inodes=20", "tmpfs")
    with pytest.raises(OSError):
        for n in range(30):
            (where / str(n)).touch()
    found = look(where)
    assert found[f"room:{where}"].verdict is Verdict.SUSPECT and "100% of its inodes" in found[f"room:{where}"].evidence
    assert "`make` failed: No space left on device" in found[f"write:{where}"].evidence


def test_missing_folder_is_suspected(tmp_path: Path) -> None:
    found = look(tmp_path / "gone")
    missing = found[f"mount:{tmp_path}/gone"]
    assert missing.verdict is Verdict.SUSPECT and "`stat` failed: No such file or directory" in missing.evidence


def test_symlinks_are_followed_to_their_file_system(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    assert "answers (tmpfs " in look(tmp_path / "link")[f"mount:{tmp_path}/link"].evidence


def judged(place: Place, limits: MountsLimits = LIMITS) -> dict[str, tuple[Verdict, str]]:
    found = judge_mounts("n1", MountsReading((place,)), About(), limits)
    return {f.check: (f.verdict, f.evidence) for f in found}


def test_full_network_file_system_is_not_the_nodes_fault() -> None:
    full = Room("/run", used=1.0, inodes=0.1)
    there = Place("/run", "write", "Disk quota exceeded", 0.1, "nfs4 f:/e on /run", True, 0o755, full, True, True)
    found = judged(there)
    assert found["write:/run"][0] is Verdict.MONITOR and found["room:/run"][0] is Verdict.MONITOR


def test_slow_answer_is_monitored() -> None:
    found = judged(Place("/run", "", "", 3.25, "nfs4 f:/e on /run", True))
    assert found["mount:/run"] == (Verdict.MONITOR, "/run answers (nfs4 f:/e on /run) after 3.2 s")


@pytest.mark.parametrize(
    ("mode", "size", "verdict", "says"),
    [
        (0o41777, 8 << 30, Verdict.PASS, "8192 MiB, mode 1777"),
        (0o41777, 64 << 20, Verdict.MONITOR, "64 MiB, mode 1777: too little for NCCL"),
        (0o40755, 8 << 30, Verdict.MONITOR, "mode 0755 instead of 1777"),
    ],
)
def test_shm_is_judged_by_mode_and_size(mode: int, size: int, verdict: Verdict, says: str) -> None:
    found = judged(Place("/dev/shm", "", "", 0.0, "tmpfs", False, mode, Room("/dev/shm", used=0.1, size=size), True))
    assert found["shm"][0] is verdict and says in found["shm"][1]


def test_unwritable_shm_is_suspected() -> None:
    found = judged(Place("/dev/shm", "make", "Permission denied", 0.0, "", False, 0o40755, None, True))
    assert found["shm"] == (Verdict.SUSPECT, "/dev/shm: `make` failed: Permission denied")


def test_mount_table_is_parsed_and_later_mounts_hide_earlier_ones() -> None:
    table = parse_mountinfo(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:50 / /shared rw - nfs4 filer:/export rw,vers=4.2\n"
        "31 30 0:51 / /shared/with\\040space rw master:3 - lustre 10.0.0.1@o2ib:/fs rw\n"
        "32 22 8:2 / /shared rw - xfs /dev/sdb rw\n"
        "nonsense\n"
    )
    assert mount_of("/shared/with space/run", table) == Mount("/shared/with space", "lustre", "10.0.0.1@o2ib:/fs")
    assert mount_of("/shared/withspace", table) == Mount("/shared", "xfs", "/dev/sdb"), "the later one covers"
    assert mount_of("/sharedness", table) == Mount("/", "ext4", "/dev/sda1")
    assert mount_of("/x", ()) is None
    assert [m.network for m in table] == [False, True, True, False]
    assert Mount("/", "fuse.juicefs", "x").network and not Mount("/", "fuseblk", "x").network
