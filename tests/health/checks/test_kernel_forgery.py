"""User-chosen text in the kernel log (a program's name, a file's name, a firewall rule) accuses no node."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser

from transom_cli.health.check import About, NoLimits
from transom_cli.health.checks import kernel
from transom_cli.health.checks.kernel import (
    LOG_FILE,
    KernelLog,
    judge_kernel_log,
    judge_lines,
    message,
    read_kernel,
)
from transom_cli.health.finding import Finding, Verdict

XID = "NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DISK = "I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"
MACHINE = "mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 7: be00000000800400"
CRASH = "segfault at 0 ip 0000000000401136 sp 00007ffd374b96d0 error 6 in "
# Where the kernel prints text of a user's choice: {1} is a program's name (15 bytes at most), {0} any other text.
NAMED = [
    f"a.out[4711]: {CRASH}{{0}}[401000+1000] likely on CPU 1 (core 1, socket 0)",
    f"{{1}}[4711]: {CRASH}a.out[401000+1000]",
    "traps: {1}[4711] general protection fault ip:401136 sp:7ffd374b96d0 error:0 in {0}[401000+1000]",
    "traps: {1}[4711] trap invalid opcode ip:401136 sp:7ffd374b96d0 error:0 in {0}[401000+1000]",
    "{1}[4711]: unhandled signal 11 (11) at 0x0 in {0}[401000+1000]",
    "Out of memory: Killed process 4711 ({1}) total-vm:1kB, anon-rss:1kB",
    "Memory cgroup out of memory: Killed process 4711 ({1}) total-vm:1kB, anon-rss:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/user/{0},task_memcg=/user/{0},task={0},pid=1",
    "{1} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{1}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)",
    "{1} (4711) used greatest stack depth: 11200 bytes left",
    "{1} (4711): drop_caches: 3",
    "process '{0}' started with executable stack",
    "process `{1}' is using deprecated setsockopt SO_BSDCOMPAT",
    "INFO: task {1}:4711 blocked for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{1}:4711]",
    "CPU: 3 PID: 4711 Comm: {1} Not tainted 6.1.0",
    "XFS: {1}(4711) possible memory allocation deadlock size 65552 in kmem_alloc (mode:0x2420)",
    "EXT4-fs warning (device sda1): ext4_dx_add_entry:2461: inode #2: comm {1}: Directory index full!",
    'audit: type=1400 audit(1767225600.123:42): apparmor="DENIED" name="{0}" pid=4711 comm="{0}"',
    "usb 1-1: Product: {0}",
    "input: {0} as /devices/platform/vuinput",
    "{0}IN=eth0 OUT= MAC= SRC=10.0.0.1 DST=10.0.0.2",
    "nfs: server {0} not responding, still trying",
    "cgroup: fork rejected by pids controller in /user.slice/{0}",
    "BTRFS: device label {0} devid 1 transid 7 /dev/sdb scanned by {0} (4711)",
    "a.out: {0}",
    " {0}",
]
SHORT = ["EDAC MC0: 1 UE ", "XFS (a): error", "BTRFS error (de", "NVRM: Xid (0:0)", "AER: fatal", "mce: Uncorrecte"]


def bad(found: tuple[Finding, ...]) -> list[str]:
    return [f"{f.verdict.value} {f.evidence}" for f in found if f.verdict.bad]


@pytest.mark.parametrize("pattern", NAMED)
@pytest.mark.parametrize("text", [XID, DISK, MACHINE, *SHORT])
def test_text_that_a_user_chose_accuses_no_node(pattern: str, text: str) -> None:
    line = pattern.replace("{0}", text).replace("{1}", text[:15])
    assert bad(judge_lines("n1", (message(f"4,1,5000000,-;{line}".encode()),))) == []


@pytest.mark.parametrize("text", [XID, DISK, MACHINE])
def test_a_driver_is_believed(text: str) -> None:
    for line in (f"4,1,5000000,-;{text}", f"2026-01-01T00:00:00+0000 n1 kernel: [ 8123.110022] {text}", text):
        assert bad(judge_lines("n1", (message(line.encode()),)))


@pytest.mark.parametrize("name", ["Fatal", "to 0x1 (reset)", "a, reboot", "<unknown>, flr"])
def test_a_programs_name_in_a_drivers_line_changes_no_verdict(name: str) -> None:
    """Xid 145 counts by the word Fatal, 154 by what the driver asks for: in the driver's words, not in a name."""
    for code in (145, 154):
        named = judge_lines("n1", (f"NVRM: Xid (PCI:0000:0f:00): {code}, pid=4711, name={name}, Ch 00000008",))
        plain = judge_lines("n1", (f"NVRM: Xid (PCI:0000:0f:00): {code}, pid=4711, name=python3, Ch 00000008",))
        assert [(f.verdict, f.remedy) for f in named] == [(f.verdict, f.remedy) for f in plain]


@pytest.mark.parametrize(
    "line",
    [
        f"2026-01-01T00:00:00+00:00 n1 trainer[4711]: {XID}",
        f"2026-01-01T00:00:00+00:00 n1 {XID}",
        f"30,1216,5140901,-;{XID}",
        f"Jan 01 00:00:00 n1 kernel: {XID}",
    ],
)
def test_what_a_program_logs_is_not_the_kernels_word(line: str) -> None:
    assert bad(judge_lines("n1", (message(line.encode()),))) == []


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv(LOG_FILE, raising=False)


def judged() -> list[str]:
    reading = read_kernel(About(since=time.time() - 60), kmsg="/no-kmsg")
    return bad(judge_kernel_log("n1", reading, About(), NoLimits()))


def test_a_second_line_of_a_journals_message_is_not_the_kernels_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may hold a line break; journalctl shows what follows it on a line of its own."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime())
    said = f"{stamp} n1 kernel: a.out[4711]: {CRASH}x\n{XID}\n      {XID}\n{stamp} n1 trainer[1]: {XID}\n"
    (tmp_path / "said").write_text(said)
    programs(tmp_path / "bin", monkeypatch, journalctl=f"cat {tmp_path}/said")
    assert judged() == []


def test_dmesg_prints_what_users_may_have_forged_and_accuses_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints line breaks in names as they are: a whole line may be somebody's file name."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S,123456+00:00", time.gmtime())
    (tmp_path / "said").write_text(f"{stamp} a.out[4711]: {CRASH}x\n{stamp} {XID}\n")
    programs(tmp_path / "bin", monkeypatch, journalctl="exit 1", dmesg=f"cat {tmp_path}/said")
    assert judged() == []
    reading = read_kernel(About(since=time.time() - 60), kmsg="/no-kmsg")
    found = judge_kernel_log("n1", reading, About(), NoLimits())
    assert [f.verdict for f in found if XID in f.evidence] == [Verdict.MONITOR], "but it is worth watching"


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_log_file_that_everybody_can_write_accuses_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{XID}\n")
    log.chmod(mode)
    monkeypatch.setenv(LOG_FILE, str(log))
    assert judged() == [] and "world-writable" in read_kernel(About(), "/no-kmsg").trouble
    follow = KernelLog()
    assert follow.lines() == () and "world-writable" in follow.trouble


@pytest.mark.root
def test_a_log_file_of_another_user_accuses_no_node(
    short_dir: Path, ordinary_user: OrdinaryUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ordinary_user.home / "log"
    ordinary_user.call(lambda: log.write_text(f"{XID}\n") and None)
    monkeypatch.setenv(LOG_FILE, str(log))
    assert judged() == [] and f"belongs to user {ordinary_user.uid}" in read_kernel(About(), "/no-kmsg").trouble
    assert "belongs to user" in KernelLog().trouble


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
@pytest.mark.parametrize("name", [XID.replace("/", ""), f"x\n{XID}", f"x\n2030-01-01T00:00:00,1+00:00 {XID}"])
def test_the_real_crash_of_a_program_with_a_drivers_name_accuses_no_node(
    short_dir: Path, ordinary_user: OrdinaryUser, name: str
) -> None:
    follow = KernelLog(kernel.KMSG)
    if follow.trouble:
        pytest.skip(follow.trouble)
    source, program = ordinary_user.home / "crash.c", ordinary_user.home / name
    source.write_text("int main(void) { *(volatile int *)0 = 1; return 0; }\n")
    subprocess.run(["gcc", "-static", "-o", str(ordinary_user.home / "crash"), str(source)], check=True)
    (ordinary_user.home / "crash").rename(program)
    since = time.time() - 1
    assert ordinary_user.run([str(program)], {}).returncode == -11
    deadline, seen = time.monotonic() + 10, ()
    while not any("segfault" in line and "Xid" in line for line in seen):
        if time.monotonic() > deadline:
            pytest.skip("this kernel logs no crashes")
        time.sleep(0.1)
        seen = (*seen, *follow.lines())
    ours = tuple(line for line in seen if "Xid" in line)
    assert bad(judge_lines("n1", ours)) == []
    reading = read_kernel(About(since=since))
    assert bad(judge_kernel_log("n1", reading, About(), NoLimits())) == []
