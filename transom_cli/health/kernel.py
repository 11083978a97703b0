"""Reads the kernel's log: `KernelLog` follows it from now on, `read_kernel` looks back.

A node's log goes back to its boot, and the errors in it to other jobs; so each look has a time from which on it
counts. Standard library only, since the node's agent runs it.

TRANSOM_KERNEL_LOG names a file to be read instead of the kernel's own log, or a folder with one file a node: lines as
`dmesg --time-format iso`, `journalctl -o short-iso` or /dev/kmsg have them; one without a time counts as new.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from datetime import datetime
from pathlib import Path

from transom_cli.health.about import About
from transom_cli.health.finding import Finding
from transom_cli.health.gpu.xid_site import site_rules
from transom_cli.health.kernel_rules import KernelReading, LoggedGpu, judge_lines, tells

LOG_FILE = "TRANSOM_KERNEL_LOG"
KMSG = "/dev/kmsg"
RECORDS = 500  # read at a look; the kernel drops the oldest when nobody keeps up
KEPT = 500  # lines of a reading
HOUR = 3600.0  # how far back a look goes that was told no time
_PATIENCE = 10.0  # seconds for journalctl and for dmesg
_RECORD = 8192  # bytes: the kernel gives one record a read, and none is longer
_LINE = 300

_KMSG_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)? (?:\S+ kernel: )?")
_JOURNAL_CLOSED = ("insufficient permissions", "not seeing messages", "No journal files")


class KernelLog:
    """Follows the log from where it stands. A user may not be allowed to read it: then `trouble` says why."""

    def __init__(self, path: str = "") -> None:
        self.trouble = ""
        self._fd = -1
        self._rest = b""
        path = path or _given() or KMSG
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
            self._records = not stat.S_ISREG(os.fstat(self._fd).st_mode)
        except OSError as error:
            self.close()
            self.trouble = f"{path}: {error.strerror}"

    def lines(self) -> tuple[str, ...]:
        """The kernel's own messages since the last call; what programs have put into its log is left out."""
        found: list[str] = []
        for _ in range(RECORDS if self._fd >= 0 else 0):
            try:
                got = os.read(self._fd, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before they were read: the next read goes on behind them
            except BlockingIOError:
                break
            except OSError as error:
                self.close()
                self.trouble = error.strerror or str(error)
                break
            if not got:
                break
            found += [line for record in self._split(got) if (line := message(record))]
        return tuple(found)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _split(self, got: bytes) -> list[bytes]:
        if self._records:
            return [got]
        *whole, self._rest = (self._rest + got).split(b"\n")
        return whole


def message(record: bytes) -> str:
    """The text of one line without its time; empty when a program, not the kernel, has written it."""
    first = record.decode("utf-8", "replace").partition("\n")[0]
    head, semicolon, text = first.partition(";")
    if _KMSG_RECORD.match(first) and semicolon:
        if int(head.partition(",")[0]) >> 3:  # the facility; 0 is the kernel
            return ""
        first = text
    elif iso := _ISO.match(first):
        first = first[iso.end() :]
    return "".join(c if c.isprintable() else " " for c in first)[:_LINE]


def when(record: str, now: float, mono: float) -> float | None:
    """Seconds of the wall clock; None for a line without a time. now, mono: both clocks, taken together."""
    if found := _KMSG_RECORD.match(record):
        return now - (mono - int(found[1]) / 1e6)
    if found := _ISO.match(record):
        given = found[2] or ""  # without one, the machine's own
        zone = "+00:00" if given == "Z" else f"{given[:3]}:{given[-2:]}" if given else ""
        try:
            return datetime.fromisoformat(found[1] + zone).timestamp()
        except ValueError:  # digits in the form of a date
            return None
    return None


def read_kernel(about: About) -> KernelReading:
    """The lines since `about.since`, with 0 those of the last hour: /dev/kmsg, else journalctl, else dmesg.

    Which of them a user may read is the machine's setting; when none, the reading says so.
    """
    now, mono = time.time(), time.monotonic()
    since = about.since or now - HOUR
    troubles = []
    given = _given()
    for source, read in ((given, _file),) if given else ((KMSG, _kmsg), ("journalctl", _journal), ("dmesg", _dmesg)):
        try:
            records = read(source, since)
        except OSError as error:
            troubles.append(f"{source}: {error.strerror or error}")
            continue
        recent = [r for r in records if (at := when(r, now, mono)) is None or at >= since]
        lines = [line for r in recent if (line := message(r.encode()))]
        telling = tuple(line for line in lines if tells(line))[-KEPT:]
        return KernelReading(source, since, len(lines), telling, gpus=_gpus(), site=site_rules())
    return KernelReading(since=since, trouble="; ".join(troubles))


def judge_kernel(node: str, lines: tuple[str, ...]) -> tuple[Finding, ...]:
    """For the agent, which judges where it reads: `judge_lines` with the node's own rules for Xids."""
    return judge_lines(node, lines, _gpus(), site_rules()) if lines else ()


def _given() -> str:
    path = os.environ.get(LOG_FILE, "")
    return str(Path(path) / (os.environ.get("SLURMD_NODENAME") or "login")) if path and Path(path).is_dir() else path


def _file(path: str, since: float) -> list[str]:
    return Path(path).read_text("utf-8", "replace").splitlines()


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
    argv = [program, "-k", "-o", "short-iso", "--no-pager", "--since", f"@{since:.0f}"]
    return [line for line in _output(argv) if not line.startswith("-- ")]


def _dmesg(program: str, since: float) -> list[str]:
    return _output([program, "-k", "--time-format", "iso"])


def _output(argv: list[str]) -> list[str]:
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, env=env, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer within {_PATIENCE:.0f} s") from error
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode or any(words in said for words in _JOURNAL_CLOSED):
        raise OSError(message(said.encode()) or f"exit code {done.returncode}")
    return done.stdout.decode("utf-8", "replace").splitlines()


def _gpus() -> tuple[LoggedGpu, ...]:
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            uuid = re.search(r"^GPU UUID:\s*(GPU-\S+)", path.read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            continue
        if uuid:
            found.append(LoggedGpu(path.parent.name, uuid[1]))
    return tuple(found)
