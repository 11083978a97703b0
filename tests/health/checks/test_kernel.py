"""The kernel log, line by line: which lines report a fault of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.health.checks.kernel import KernelLog, judge_lines, message
from transom_cli.health.finding import Verdict

F, S, M = Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR

LINES = [
    (F, "NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    (F, "NVRM: Xid (PCI:0000:0f:00): 95, pid=2503421, name=python3, Ch 00000008"),
    (S, "NVRM: Xid (PCI:0000:0f:00): 48, pid=1, name=python3, DBE"),
    (M, "NVRM: Xid (PCI:0000:0f:00): 31, pid=1, name=python3, Ch 00000008, MMU Fault"),
    (M, "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 61 egress non-posted PRIV error"),
    (S, "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    (S, "mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 7: be00000000800400"),
    (S, "mce: Uncorrected hardware memory error in user-access at 1f2000"),
    (S, "{1}[Hardware Error]: event severity: recoverable"),
    (S, "[Hardware Error]: CPU:2 (17:31:0) MC17_STATUS[Over|UE|MiscV|AddrV|-]: 0xfc2040000000011b"),
    (M, "mce: [Hardware Error]: Machine check events logged"),
    (M, "{1}[Hardware Error]: It has been corrected by h/w and requires no further action"),
    (M, "{1}[Hardware Error]: event severity: corrected"),
    (M, "{1}[Hardware Error]:   section_type: memory error"),
    (M, "[Hardware Error]: Corrected error, no action required."),
    (S, "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
    (M, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
    (S, "blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"),
    (S, "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0"),
    (S, "XFS (sdb1): Corruption detected. Unmount and run xfs_repair"),
    (S, "BTRFS error (device sdc): bdev /dev/sdc errs: wr 1, rd 0, flush 0, corrupt 0, gen 0"),
    (None, "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro. Quota mode: none."),
    (None, "EXT4-fs error (device loop3): ext4_lookup:1785: inode #12: comm sh: deleted inode referenced"),
    (None, "EXT4-fs (sda1): error count since last fsck: 2"),
    (M, "INFO: task python:4711 blocked for more than 120 seconds."),
    (M, "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB"),
    (M, "nfs: server filer not responding, still trying"),
    (M, "mlx5_core 0000:17:00.0: device's health compromised - reached miss count"),
    (None, "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"),
    (None, "EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none."),
    (None, "blk_update_request: I/O error, dev loop0, sector 0"),
    (None, "nvidia: loading out-of-tree module taints kernel."),
]


@pytest.mark.parametrize(("verdict", "line"), LINES)
def test_lines(verdict: Verdict | None, line: str) -> None:
    found = judge_lines("n1", (line,))
    assert [f.verdict for f in found] == ([verdict] if verdict else [])
    assert all(f.evidence.startswith(line) for f in found)


def test_records_of_the_kernel_and_of_programs() -> None:
    assert message(b"6,1215,5140900,-;NET: Registered\x1b[31m\n SUBSYSTEM=net\n") == "NET: Registered [31m"
    assert message(b"30,1216,5140901,-;systemd[1]: Started something\n") == "", "facility 3"
    assert message(b"") == ""
    assert message(b"a line of a file, without a time") == "a line of a file, without a time"


def test_log_without_permission_has_a_reason(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "kmsg"))
    assert log.lines() == ()
    assert log.trouble.endswith("No such file or directory")


def test_the_real_log_is_followed_from_its_end() -> None:
    log = KernelLog()
    if log.trouble:
        pytest.skip(log.trouble)
    log.lines()
    assert len(log.lines()) < 500
    log.close()
