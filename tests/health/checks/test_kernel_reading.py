"""Reading the kernel log from each source, and following it in a file."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from transom_cli.core.codec import build, plain
from transom_cli.health.check import About, NoLimits
from transom_cli.health.checks import kernel
from transom_cli.health.checks.kernel import (
    CHECK,
    LOG_FILE,
    KernelLog,
    KernelReading,
    LoggedGpu,
    judge_kernel_log,
    judge_lines,
    read_kernel,
    when,
)
from transom_cli.health.finding import Remedy, Verdict
from transom_cli.health.host_watch import HostReader, judge_host

XID = "NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DISK = "blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ)"
NOW = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC

NONE = "/no-kmsg"  # in place of /dev/kmsg


def iso(wall: float) -> str:
    return datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def judged(reading: KernelReading) -> dict[str, Verdict]:
    return {f.check: f.verdict for f in judge_kernel_log("n1", reading, About(), NoLimits())}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernel.log"
    path.touch()
    monkeypatch.setenv(LOG_FILE, str(path))
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("4,1215,5000000,-;NVRM: Xid", NOW - 95.0),
        ("2025-12-31T23:59:00,123456+00:00 NVRM: Xid", NOW - 60),
        ("2026-01-01T00:59:00+0100 node7 kernel: NVRM: Xid", NOW - 60),
        ("2025-12-31T23:59:00Z NVRM: Xid", NOW - 60),
        ("2025-12-31T23:59:00.5Z NVRM: Xid", NOW - 60),
        ("2025-12-31T20:29:00-03:30 node7 kernel: NVRM: Xid", NOW - 60),
        ("2025-99-31T23:59:00Z NVRM: Xid", None),
        ("NVRM: Xid", None),
    ],
)
def test_when_a_line_was_logged(line: str, expected: float | None) -> None:
    assert when(line, now=NOW, mono=100.0) == expected
    assert kernel.message(line.encode()) == "NVRM: Xid"


def test_only_what_was_logged_since_counts(log: Path) -> None:
    now = time.time()
    log.write_text(
        f"{iso(now - 500)}+00:00 {XID}\n"
        f"{iso(now - 100)}+00:00 {DISK}\n"
        f"{iso(now - 90)}+00:00 nvidia: loading out-of-tree module taints kernel.\n"
        f"30,1,{int(time.monotonic() * 1e6)},-;systemd[1]: {XID}\n"
    )
    reading = read_kernel(About(since=now - 300))
    assert (reading.source, reading.looked_at, reading.lines) == (str(log), 2, (DISK,)), "a program's line is none"
    assert judged(reading) == {"kernel": Verdict.SUSPECT, "gpu_xid": Verdict.PASS}
    assert read_kernel(About(since=now - 600)).lines == (XID, DISK)
    whole = read_kernel(About())
    assert whole.lines == (XID, DISK) and abs(whole.since - (now - 3600)) < 60, "the last hour"


def test_what_has_no_time_counts_as_new(log: Path) -> None:
    log.write_text(f"{XID}\n")
    found = judge_kernel_log("n1", read_kernel(About(since=time.time())), About(), NoLimits())
    assert [(f.check, f.verdict, f.device, f.remedy) for f in found if f.check == "gpu_xid"] == [
        ("gpu_xid", Verdict.FAIL, "0000:0f:00", Remedy.REBOOT)
    ]


def test_each_node_has_a_file_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FILE, str(tmp_path))
    (tmp_path / "node7").write_text(f"{XID}\n")
    (tmp_path / "login").write_text(f"{DISK}\n")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert read_kernel(About()).lines == (DISK,)
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    assert read_kernel(About()).lines == (XID,)
    monkeypatch.setenv("SLURMD_NODENAME", "node8")
    assert read_kernel(About()).trouble == f"{tmp_path / 'node8'}: No such file or directory"


def test_lines_are_cleaned_bounded_and_not_too_many(log: Path) -> None:
    log.write_text("".join(f"NVRM: Xid (PCI:0000:0f:00): {code}, \x1b[31m{'x' * 900}\n" for code in range(1000)))
    reading = read_kernel(About())
    assert (reading.looked_at, len(reading.lines)) == (1000, kernel.KEPT)
    assert reading.lines[-1].startswith("NVRM: Xid (PCI:0000:0f:00): 999, ")
    assert all(len(line) <= 300 and line.isprintable() for line in reading.lines)


def test_a_reading_can_be_written_and_read(log: Path) -> None:
    log.write_text(f"{XID}\n")
    reading = KernelReading("x", 1.0, 2, (XID,), gpus=(LoggedGpu("0000:0f:00.0", "GPU-f"),))
    assert build(KernelReading, json.loads(json.dumps(plain(reading)))) == reading
    assert [f.device for f in judge_kernel_log("n1", reading, About(), NoLimits())] == ["GPU-f", ""]


def test_unreadable_log_is_unknown(log: Path) -> None:
    log.unlink()
    reading = read_kernel(About())
    assert judged(reading) == {"kernel": Verdict.UNKNOWN, "gpu_xid": Verdict.UNKNOWN}
    assert "No such file" in reading.trouble
    assert CHECK.late("n1", 20.0, About()).verdict is Verdict.UNKNOWN


def programs(folder: Path, **scripts: str) -> None:
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)


def test_journalctl_and_dmesg_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /dev/kmsg may not be read; each program's own form, its own way to say that it shows nothing."""
    monkeypatch.delenv(LOG_FILE, raising=False)
    bin_ = tmp_path / "bin"
    since = int(time.time()) - 60
    stamp = iso(time.time() - 5)
    programs(
        bin_,
        journalctl=f"printf '%s\\n' \"$*\" > {tmp_path}/asked\n"
        f'echo "-- Journal begins at Thu"\necho "{stamp}+0000 node7 kernel: {XID}"\n',
        dmesg=f'echo "{stamp},123456+00:00 {DISK}"\n',
    )
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    reading = read_kernel(About(since=since), NONE)
    assert (reading.source, reading.lines, reading.looked_at) == ("journalctl", (XID,), 1)
    assert (tmp_path / "asked").read_text() == f"-k -o short-iso --no-pager --since @{since} SYSLOG_FACILITY=0\n"
    (bin_ / "journalctl").write_text(
        "#!/bin/sh\necho 'Hint: You are currently not seeing messages from other users and the system.' >&2\n"
        "echo '-- No entries --'\n"
    )
    reading = read_kernel(About(since=since), NONE)
    assert (reading.source, reading.lines) == ("dmesg", (DISK,))
    (bin_ / "dmesg").write_text(
        "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n"
    )
    trouble = read_kernel(About(since=since), NONE).trouble
    assert trouble.startswith(f"{NONE}: No such file or directory; journalctl: Hint: You are")
    assert trouble.endswith("; dmesg: dmesg: read kernel buffer failed: Operation not permitted")


def test_real_log_is_read_or_the_reading_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOG_FILE, raising=False)
    reading = read_kernel(About())
    assert bool(reading.source) != bool(reading.trouble)


def test_a_file_is_followed_from_its_end(log: Path) -> None:
    log.write_text(f"{XID}\n")
    follow = KernelLog()
    with log.open("a") as file:
        file.write(f"{iso(NOW)}+00:00 {DISK}\nNVRM: Xid (PCI:0000:0f:00)")
    assert follow.lines() == (DISK,), "what is not written to its end waits"
    with log.open("a") as file:
        file.write(": 13, pid=1\n")
    assert follow.lines() == ("NVRM: Xid (PCI:0000:0f:00): 13, pid=1",)
    assert follow.lines() == () and follow.trouble == ""
    follow.close()


def test_lines_of_a_kind_are_one_finding() -> None:
    found = judge_lines("n1", [DISK, XID, DISK.replace("2048", "4096"), "usb 1-1: new device"])
    assert [(f.check, f.verdict) for f in found] == [("gpu_xid", Verdict.FAIL), ("kernel", Verdict.SUSPECT)]
    assert found[1].evidence == DISK.replace("2048", "4096") + " [2 such lines]" and found[1].remedy is Remedy.REPAIR


def test_the_agent_judges_by_the_sites_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "rules"
    rules.write_text("xid,79,gone,ours,monitor,watch\nnonsense\n")
    monkeypatch.setenv("TRANSOM_XID_RULES", str(rules))
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setenv(LOG_FILE, str(log))
    reader = HostReader("n1", ())
    log.write_text(f"{XID}\n")
    found = [f.verdict for f in judge_host(reader.read_host(), None) if f.check == "gpu_xid"]
    assert found == [Verdict.MONITOR, Verdict.UNKNOWN]
    assert judge_lines("n1", ()) == ()
