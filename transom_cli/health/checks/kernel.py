"""The kernel log: hardware errors, file system errors, kills for lack of memory, and Xids.

`KernelLog` follows the log from now on, `read_kernel` looks back. The log starts at the node's boot and holds errors of
other jobs, so a reading has a start time. Standard library only: the node's agent runs this.

$TRANSOM_KERNEL_LOG names a file to read instead of the kernel's own log, or a folder with one file per node. Lines may
have the format of `dmesg --time-format iso`, `journalctl -o short-iso` or /dev/kmsg; a line without a time counts as
new.

What a line can prove depends on who can write to its source:

    /dev/kmsg           The kernel. Root's programs can write too, but with another facility: such records are dropped.
                        Line breaks in names are escaped. A driver's line excludes or drains.
    journalctl          Like /dev/kmsg: the reader requests the kernel's transport and facility, and drops lines without
                        the kernel's prefix (text after a line break in a name has none).
    dmesg               Prints line breaks in names as they are, so any user can forge a line. MONITOR at most.
    TRANSOM_KERNEL_LOG  The file must belong to root or to the reader, and not be world-writable. Do not name a file
                        that a syslog daemon writes: any user can log as "kernel".

Patterns match only at the start of a message, where the driver's own words are. Later text may quote what users choose:
names of programs, files, cgroups, USB devices.
"""

import errno
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from transom_cli.health.check import About, Check, NoLimits, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import xid
from transom_cli.plural import several, was

KERNEL = "kernel"
FINDINGS = (KERNEL, xid.CHECK)

_M, _S = Verdict.MONITOR, Verdict.SUSPECT
# Corrected errors are the most common and are logged as "[Hardware Error]" too, in several lines. Only a line that says
# that its error was not corrected is SUSPECT.
_HARDWARE = r"(?:mce: |BERT: |\{\d+\})?\[Hardware Error\]: ?"
_UNCORRECTED = (
    rf"{_HARDWARE}.*(?:(?:severity|type): (?:fatal|recoverable)|Machine Check Exception|\buncorrect(?:ed|able)|"
    r"_STATUS\[[^\]]*\|UE\b)|mce: Uncorrected|Memory failure: 0x[0-9a-f]+: "
)
# Not faults: loop devices (container images), the mount option "errors=remount-ro", and ext4's daily reminder of former
# errors.
_DEVICE = r"\((?:device )?(?!loop)[^\s()]+\)"
_FILE_SYSTEM = (
    rf"EXT4-fs error {_DEVICE}: |BTRFS:? (?:error|critical) {_DEVICE}"
    rf"|(?:EXT4-fs(?: \w+)?|XFS|BTRFS:? \w+) {_DEVICE}:? "
    r"(?!.*error count since|.*(?:initial|last) error at|.*\b(?:comm|path|name|label)\b)"
    r".*(?:\berrors?\b(?![=-])|corrupt|shut(?:ting)? ?down)"
)
_DISK = (
    r"(?:(?:blk_update_request|print_req_error|end_request): )?I/O error, dev (?!loop|fd|sr)[\w/-]+,"
    r"|nvme (?:nvme\d+|[0-9a-f:.]+): .*(?:controller is down|Abort status)"
)
_PCI = r"[\w-]+ [0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]: "
_PCIE = rf"pcieport [0-9a-f:.]+: .*(?:Uncorrected|Fatal)|(?:{_PCI})?AER: .*(?:uncorrect|fatal)"
_STALLED = r"INFO: task .*blocked for more than \d+ seconds|(?:NMI )?(?:watchdog|BUG): .*lockup|(?:INFO: )?rcu.*stall"
_KILLED = r"Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|oom-kill:|\S.* invoked oom-killer: "
_LINK = r"[\w.:@-]+(?: [\w.:@-]+){0,5} (?:(?:NIC )?Link is Down|lost carrier)|mlx5_core .*(?:health|error)"
_RULES = (
    (_S, Remedy.REPAIR, re.compile(_UNCORRECTED, re.IGNORECASE)),
    (_M, Remedy.WATCH, re.compile(rf"{_HARDWARE}|mce: .*(?:hardware|machine check)", re.IGNORECASE)),
    (_S, Remedy.REPAIR, re.compile(r"EDAC [\w ]{1,40}: .*\b(?:UE|uncorrect)", re.IGNORECASE)),
    (_M, Remedy.WATCH, re.compile(r"EDAC [\w ]{1,40}: .*\bCE\b")),
    (_S, Remedy.REPAIR, re.compile(_DISK)),
    (_S, Remedy.REPAIR, re.compile(_FILE_SYSTEM, re.IGNORECASE)),
    (_S, Remedy.REPAIR, re.compile(_PCIE, re.IGNORECASE)),
    (_M, Remedy.WATCH, re.compile(_STALLED, re.IGNORECASE)),
    (_M, Remedy.NONE, re.compile(_KILLED)),
    (_M, Remedy.WATCH, re.compile(r"nfs: server \S+ not responding|Lustre\w*: .*(?:was lost|evicted)")),
    (_M, Remedy.WATCH, re.compile(_LINK, re.IGNORECASE)),
)
# A line that begins with a program's name, which may imitate the first 15 bytes of a driver's line ("EDAC MC0: 1 UE ").
# The kernel prints an unprintable byte of a name as four characters (\x0a).
_NAMED = re.compile(r".{0,60}(?:\[\d+\]|\(\d+\)|: page allocation| invoked oom-killer: )")


@dataclass(frozen=True)
class LoggedGpu:
    """A GPU's PCI address, which the log uses, and its UUID, which everything else uses."""

    bus_id: str
    uuid: str


@dataclass(frozen=True)
class KernelReading:
    """source: such as "/dev/kmsg". since: start time, in seconds of the wall clock.

    looked_at: number of lines read. lines: those that match a rule; the last ones if there are too many. trouble: why
    the log could not be read. gpus: GPUs that the driver has. site: the site's Xid rules. forgeable: users can forge
    lines of this source, so none proves anything.
    """

    source: str = ""
    since: float = 0.0
    looked_at: int = 0
    lines: tuple[str, ...] = ()
    trouble: str = ""
    gpus: tuple[LoggedGpu, ...] = ()
    site: xid.SiteRules = xid.NO_SITE_RULES
    forgeable: bool = False


def matters(line: str) -> bool:
    """Return whether `judge_lines` would return a finding for the line."""
    return xid.parse_xid(line) is not None or _rule(line) is not None


def judge_lines(
    node: str, lines: Iterable[str], gpus: Iterable[LoggedGpu] = (), site: xid.SiteRules = xid.NO_SITE_RULES
) -> tuple[Finding, ...]:
    """Return one finding per kind of fault in the lines: `gpu_xid` for the GPU driver's codes, else `kernel`."""
    codes: list[str] = []
    found: dict[int, list[str]] = {}
    for line in lines:
        if xid.parse_xid(line):
            codes.append(line)
        elif (rule := _rule(line)) is not None:
            found.setdefault(rule, []).append(line)
    known = xid.catalogue(site)
    return (
        *xid.judge_xids(node, codes, known, {gpu.bus_id: gpu.uuid for gpu in gpus}),
        *(Finding(xid.CHECK, Verdict.UNKNOWN, node, text, Remedy.SETUP) for text in known.troubles if codes),
        *(Finding(KERNEL, _RULES[n][0], node, _last_of(these), _RULES[n][1]) for n, these in found.items()),
    )


def judge_kernel_log(node: str, reading: KernelReading, about: About, limits: NoLimits) -> tuple[Finding, ...]:
    """Return the findings of `judge_lines`, and a PASS for a check without any."""
    if reading.trouble:
        return tuple(Finding(check, Verdict.UNKNOWN, node, reading.trouble) for check in FINDINGS)
    found = judge_lines(node, reading.lines, reading.gpus, reading.site)
    if reading.forgeable:
        found = tuple(_unproven(finding, reading.source) for finding in found)
    bad = {finding.check for finding in found}
    read = f"{several(reading.looked_at, 'line')} in {reading.source} {was(reading.looked_at, 'reports', 'report')} no"
    passed = {KERNEL: f"{read} fault", xid.CHECK: f"{read} Xid"}
    return found + tuple(Finding(c, Verdict.PASS, node, text) for c, text in passed.items() if c not in bad)


def _rule(line: str) -> int | None:
    """Return the index of the first matching rule. A line that starts with a user's text matches no hardware rule."""
    found = next((n for n, (_, _, pattern) in enumerate(_RULES) if pattern.match(line)), None)
    named = found is not None and _RULES[found][0].bad and (_NAMED.match(line) or xid.FIREWALL.search(line))
    return None if named else found


def _unproven(finding: Finding, source: str) -> Finding:
    if not finding.verdict.bad:
        return finding
    evidence = f"{finding.evidence} [any user can forge lines in {source}, so this proves nothing]"
    return replace(finding, verdict=_M, evidence=evidence, remedy=Remedy.WATCH)


def _last_of(lines: list[str]) -> str:
    return lines[-1] + (f" [{len(lines)} such lines]" if len(lines) > 1 else "")


LOG_FILE = "TRANSOM_KERNEL_LOG"
KMSG = "/dev/kmsg"
DMESG = "dmesg"
RECORDS = 500  # per call; the kernel drops the oldest if a reader does not keep up
KEPT = 500  # lines of a reading
HOUR = 3600.0  # how far back a reading without a start time goes
RULES_FILE = "TRANSOM_XID_RULES"
_MAX_RULES = 1000  # lines
_TIMEOUT = 10.0  # seconds for journalctl and for dmesg
_RECORD = 8192  # bytes; one read returns one record, and none is longer
_LINE = 300

_KMSG_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)? (\S+ kernel: )?")
_PRINTK = re.compile(r"\[ *\d+\.\d+\] ?(?:\[ *[CT]\d+\] ?)?|\[ *[CT]\d+\] ?")  # the kernel's time and caller
_JOURNAL_CLOSED = ("insufficient permissions", "not seeing messages", "No journal files")


class KernelLog:
    """Follows the log from its current end. `trouble` says why if this user may not read it."""

    def __init__(self, path: str = "") -> None:
        self.trouble = ""
        self._fd = -1
        self._rest = b""
        path = path or _log_file() or KMSG
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
            self._records = not stat.S_ISREG(os.fstat(self._fd).st_mode)
            if path != KMSG:
                _check_owner(self._fd)
        except OSError as error:
            self.close()
            self.trouble = f"{path}: {error.strerror}"

    def lines(self) -> tuple[str, ...]:
        """Return the kernel's own messages since the last call, without those that programs wrote to its log."""
        found: list[str] = []
        for _ in range(RECORDS if self._fd >= 0 else 0):
            try:
                data = os.read(self._fd, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next read continues after them
            except BlockingIOError:
                break
            except OSError as error:
                self.close()
                self.trouble = error.strerror or str(error)
                break
            if not data:
                break
            found += [line for record in self._split(data) if (line := message(record))]
        return tuple(found)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _split(self, data: bytes) -> list[bytes]:
        if self._records:
            return [data]
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole


def message(record: bytes) -> str:
    """Return the text of one line without its time; "" if a program wrote it, not the kernel."""
    first = record.decode("utf-8", "replace").partition("\n")[0]
    head, semicolon, text = first.partition(";")
    if _KMSG_RECORD.match(first) and semicolon:
        if int(head.partition(",")[0]) >> 3:  # the facility; 0 is the kernel
            return ""
        first = text
    else:
        first = first[iso.end() :] if (iso := _ISO.match(first)) else first
        first = first[printk.end() :] if (printk := _PRINTK.match(first)) else first
    return "".join(c if c.isprintable() else " " for c in first)[:_LINE]


def when(record: str, now: float, mono: float) -> float | None:
    """Return a record's time in seconds of the wall clock; None without one. now, mono: both clocks, read together."""
    if found := _KMSG_RECORD.match(record):
        return now - (mono - int(found[1]) / 1e6)
    if found := _ISO.match(record):
        offset = found[2] or ""  # without one, local time
        zone = "+00:00" if offset == "Z" else f"{offset[:3]}:{offset[-2:]}" if offset else ""
        try:
            return datetime.fromisoformat(found[1] + zone).timestamp()
        except ValueError:  # an impossible date
            return None
    return None


def read_kernel(about: About, kmsg: str = KMSG) -> KernelReading:
    """Read the lines since `about.since`, or of the last hour, from the first of /dev/kmsg, journalctl, dmesg that
    this user may read. If none is readable, the reading says why."""
    now, mono = time.time(), time.monotonic()
    since = about.since or now - HOUR
    troubles = []
    file = _log_file()
    for source, read in ((file, _file),) if file else ((kmsg, _kmsg), ("journalctl", _journal), (DMESG, _dmesg)):
        try:
            records = read(source, since)
        except OSError as error:
            troubles.append(f"{source}: {error.strerror or error}")
            continue
        recent = [r for r in records if (at := when(r, now, mono)) is None or at >= since]
        lines = [line for r in recent if (line := message(r.encode()))]
        kept = tuple(line for line in lines if matters(line))[-KEPT:]
        gpus, rules, forgeable = read_logged_gpus(), read_site_rules(), source == DMESG
        return KernelReading(source, since, len(lines), kept, gpus=gpus, site=rules, forgeable=forgeable)
    return KernelReading(since=since, trouble="; ".join(troubles))


def read_site_rules() -> xid.SiteRules:
    """Read the site's rows of the Xid catalogue."""
    path = os.environ.get(RULES_FILE, "")
    if not path:
        return xid.NO_SITE_RULES
    try:
        return xid.SiteRules(tuple(Path(path).read_text(encoding="utf-8").splitlines()[:_MAX_RULES]))
    except (OSError, UnicodeError) as error:
        return xid.SiteRules(trouble=str(error))


def _log_file() -> str:
    path = os.environ.get(LOG_FILE, "")
    return str(Path(path) / (os.environ.get("SLURMD_NODENAME") or "login")) if path and Path(path).is_dir() else path


def _file(path: str, since: float) -> list[str]:
    with Path(path).open("rb") as file:
        _check_owner(file.fileno())
        return file.read().decode("utf-8", "replace").splitlines()


def _check_owner(fd: int) -> None:
    """Raise PermissionError for a log that other users can write: anybody could forge its lines."""
    info = os.fstat(fd)
    if info.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, f"it is world-writable (mode {stat.S_IMODE(info.st_mode):04o})")
    if info.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"it belongs to user {info.st_uid}, so its lines prove nothing")


def _kmsg(path: str, since: float) -> list[str]:
    found: list[str] = []
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(fd, _RECORD)
            except BrokenPipeError:
                continue
            except BlockingIOError:
                return found
            if not record:
                return found
            found.append(record.decode("utf-8", "replace"))
    finally:
        os.close(fd)


def _journal(program: str, since: float) -> list[str]:
    argv = [program, "-k", "-o", "short-iso", "--no-pager", "--since", f"@{since:.0f}", "SYSLOG_FACILITY=0"]
    return [line for line in _output(argv) if (head := _ISO.match(line)) and head[3]]


def _dmesg(program: str, since: float) -> list[str]:
    return _output([program, "-k", "--time-format", "iso"])


def _output(argv: list[str]) -> list[str]:
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT, env=env, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer in {_TIMEOUT:.0f} s") from error
    errors = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode or any(text in errors for text in _JOURNAL_CLOSED):
        raise OSError(message(errors.encode()) or f"exit code {done.returncode}")
    return done.stdout.decode("utf-8", "replace").splitlines()


def read_logged_gpus() -> tuple[LoggedGpu, ...]:
    """Return the PCI address and UUID of each GPU that the driver has."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            uuid = re.search(r"^GPU UUID:\s*(GPU-\S+)", path.read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            continue
        if uuid:
            found.append(LoggedGpu(path.parent.name, uuid[1]))
    return tuple(found)


CHECK = Check(
    name=KERNEL,
    reader="transom_cli.health.checks.kernel:read_kernel",
    judge=judge_kernel_log,
    reading=KernelReading,
    limits=NoLimits,
    seconds=20.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue="reading the kernel log",
)
