"""What the kernel's log says of this node's hardware: `KernelLog` reads /dev/kmsg, `judge_kernel` is pure.

Only what is logged from now on counts: a node's log goes back to its boot, and the errors in it to other jobs.
"""

from __future__ import annotations

import os
import re

from transom_cli.health.finding import Finding, Verdict

CHECK = "kernel"
RECORDS = 500  # read at a look; the kernel drops the oldest when nobody keeps up
_RECORD = 8192  # bytes: the kernel gives one record a read, and none is longer
_LINE = 300

# NVIDIA's Xid catalogue (r590), column "Immediate Action": reset the GPU, restart the machine; work out what it is.
_XID_RESET = frozenset((46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 79, 151, 168))
_XID_SUSPECT = frozenset((48, 54, 74, 154, 159, 167, 171, 172))
_XID = re.compile(r"\bNVRM: Xid \([^)]*\): (\d+)")
_SXID = re.compile(r"\bSXid \([^)]*\): \d+, (Non-fatal|Fatal)", re.IGNORECASE)

_RULES = (
    (Verdict.SUSPECT, re.compile(r"\[Hardware Error\]|\bmce: .*(?:hardware|machine check)", re.IGNORECASE)),
    (Verdict.SUSPECT, re.compile(r"\bEDAC\b.*\b(?:UE|uncorrect)", re.IGNORECASE)),
    (Verdict.MONITOR, re.compile(r"\bEDAC\b.*\bCE\b")),
    (Verdict.SUSPECT, re.compile(r"\bI/O error, dev (?!loop|fd|sr)|nvme\d+: .*(?:controller is down|Abort status)")),
    (Verdict.SUSPECT, re.compile(r"(?:EXT4|XFS|BTRFS)\S*:? .*(?:error|corrupt|shut ?down)", re.IGNORECASE)),
    (Verdict.SUSPECT, re.compile(r"pcieport .*(?:Uncorrected|Fatal)|AER: .*(?:uncorrect|fatal)", re.IGNORECASE)),
    (Verdict.MONITOR, re.compile(r"blocked for more than \d+ seconds|(?:soft|hard) lockup|rcu.*stall", re.IGNORECASE)),
    (Verdict.MONITOR, re.compile(r"Out of memory: Killed process|Memory cgroup out of memory|oom-kill:")),
    (Verdict.MONITOR, re.compile(r"nfs: server \S+ not responding|Lustre\w*: .*(?:was lost|evicted)")),
    (Verdict.MONITOR, re.compile(r"\b(?:NIC )?Link is Down|lost carrier|mlx5_core .*(?:health|error)", re.IGNORECASE)),
)


class KernelLog:
    """Follows the log from where it stands. A user may not be allowed to read it: then `trouble` says why."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.trouble = ""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.trouble = f"{path}: {error.strerror}"

    def lines(self) -> tuple[str, ...]:
        """The kernel's own messages since the last call; what programs have put into its log is left out."""
        found = []
        for _ in range(RECORDS if self._fd >= 0 else 0):
            try:
                line = message(os.read(self._fd, _RECORD))
            except BrokenPipeError:
                continue  # records were overwritten before they were read: the next read goes on behind them
            except BlockingIOError:
                break
            except OSError as error:
                self.close()
                self.trouble = error.strerror or str(error)
                break
            if line:
                found.append(line)
        return tuple(found)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def message(record: bytes) -> str:
    """The text of one /dev/kmsg record, "priority,sequence,time,flags;text"; empty when it is not the kernel's own."""
    head, _, text = record.decode("utf-8", "replace").partition(";")
    priority = head.partition(",")[0]
    if not priority.isdigit() or int(priority) >> 3:  # the facility; 0 is the kernel
        return ""
    first = text.partition("\n")[0]
    return "".join(c if c.isprintable() else " " for c in first)[:_LINE]


def judge_kernel(node: str, lines: tuple[str, ...]) -> tuple[Finding, ...]:
    """A finding for each line that tells of a fault of the node; other lines are none of our business."""
    judged = ((line, _verdict(line)) for line in lines)
    return tuple(Finding(CHECK, verdict, node, line) for line, verdict in judged if verdict is not None)


def _verdict(line: str) -> Verdict | None:
    xid = _XID.search(line)
    if xid:
        number = int(xid[1])
        return Verdict.FAIL if number in _XID_RESET else Verdict.SUSPECT if number in _XID_SUSPECT else Verdict.MONITOR
    sxid = _SXID.search(line)
    if sxid:
        return Verdict.MONITOR if sxid[1].lower() == "non-fatal" else Verdict.SUSPECT
    return next((verdict for verdict, pattern in _RULES if pattern.search(line)), None)
