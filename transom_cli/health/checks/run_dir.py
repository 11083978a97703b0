"""Is the run directory the same one on every node?

The asking host writes a token file there (`About.token`: its path, a newline, its content). Every node reads it
(`read_run_dir`) and writes a file of its own beside it, which the asking host looks for (`read_missing`). So a node is
found too that can read what others write while nobody can read what it writes. Both sides retry for some seconds,
because NFS may serve cached attributes (acregmin: 3 s, acdirmax: 60 s; names that are looked up for the first time, as
these are, mostly bypass the cache).
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from transom_cli.core.log_lines import clean
from transom_cli.files import replace_text
from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.system import BackgroundCall
from transom_cli.heartbeat.paths import node_name

RUN_DIR = "run_dir"
FINDINGS = (RUN_DIR,)
VISIBLE_WITHIN = 5.0  # seconds for another node's file to appear
TIMEOUT = 10.0  # seconds for all calls together
_RETRY = 0.25
_MAX_TOKEN = 4096  # bytes


@dataclass(frozen=True)
class RunDirReading:
    """found: the content that was read, at most 300 characters. error: how reading or writing failed. took: seconds
    until the token was right, or until the reader gave up. hangs: the file system has not answered."""

    path: str = ""
    found: str = ""
    same: bool = False
    wrote: bool = False
    error: str = ""
    took: float = 0.0
    hangs: bool = False


@dataclass(frozen=True)
class RunDirLimits:
    """run_dir_slow: seconds until another node's file appears; no source: heartbeats and orders take the same way."""

    run_dir_slow: float = 2.0


def token(path: str, content: str) -> str:
    """Return the value of `About.token` for a token file that holds exactly `content`."""
    return f"{path}\n{content}"


def own_file(path: str, node: str) -> str:
    return f"{path}.{node}"


def read_run_dir(about: About, visible: float = VISIBLE_WITHIN, timeout: float = TIMEOUT) -> RunDirReading:
    path, _, content = about.token.partition("\n")
    if not path:
        return RunDirReading()
    call = BackgroundCall(lambda: _read_and_write(path, content, visible))
    return call.result(timeout) or RunDirReading(path, took=call.waited, hangs=True)


def _read_and_write(path: str, content: str, visible: float) -> RunDirReading:
    began = time.monotonic()
    found, error = _read(path)
    while found != content and time.monotonic() < began + visible:
        time.sleep(_RETRY)
        found, error = _read(path)
    took = time.monotonic() - began
    wrote = True
    try:
        replace_text(Path(own_file(path, node_name())), content)
    except OSError as failed:
        wrote, error = False, error or failed.strerror or str(failed)
    return RunDirReading(path, clean(found), found == content, wrote, error, took)


def _read(path: str) -> tuple[str, str]:
    """Return (content, "") or ("", the system's error message)."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the path came as text
            return file.read(_MAX_TOKEN).decode("utf-8", "replace"), ""
    except OSError as error:
        return "", error.strerror or str(error)


def judge_run_dir(node: str, reading: RunDirReading, about: About, limits: RunDirLimits) -> tuple[Finding, ...]:
    if not reading.path:
        return (not_applicable(RUN_DIR, node, "there is no run directory to compare"),)
    if reading.hangs:
        text = f"{reading.path} could not be read or written for {reading.took:.0f} s"
    elif not reading.same:
        other = f"it reads {reading.found!r}" if reading.found else reading.error or "the file is empty"
        text = f"{reading.path} differs from what another node wrote {reading.took:.1f} s ago: {other}"
    elif not reading.wrote:
        text = f"cannot write beside {reading.path}: {reading.error}"
    else:
        text = f"read {reading.path} as written, {reading.took:.1f} s later"
        slow = reading.took >= limits.run_dir_slow
        return (Finding(RUN_DIR, Verdict.MONITOR if slow else Verdict.PASS, node, text),)
    return (Finding(RUN_DIR, Verdict.SUSPECT, node, text, Remedy.AVOID),)


def read_missing(about: About, nodes: tuple[str, ...], timeout: float = VISIBLE_WITHIN) -> tuple[str, ...]:
    """Return the nodes whose own file the asking host does not see. Call it after the nodes have answered."""
    path, _, content = about.token.partition("\n")
    missing = list(nodes if path else ())
    until = time.monotonic() + timeout
    while True:
        missing = [node for node in missing if _read(own_file(path, node))[0] != content]
        if not missing or time.monotonic() >= until:
            return tuple(missing)
        time.sleep(_RETRY)


def judge_missing(missing: tuple[str, ...], about: About, nodes: int) -> tuple[Finding, ...]:
    """Return one finding per missing node, out of `nodes` that were looked for.

    If most are missing, the asking host sees too little, and no node is suspected.
    """
    path = about.token.partition("\n")[0]
    if len(missing) * 2 > nodes:
        text = f"this host cannot see the files that {len(missing)} of {nodes} nodes wrote beside {path}"
        return tuple(Finding(RUN_DIR, Verdict.MONITOR, n, text, Remedy.SETUP) for n in missing)
    return tuple(
        Finding(RUN_DIR, Verdict.SUSPECT, n, f"other hosts cannot see its file {own_file(path, n)}", Remedy.AVOID)
        for n in missing
    )


def remove_files(about: About, nodes: tuple[str, ...]) -> None:
    """Remove the nodes' files and the token."""
    path = about.token.partition("\n")[0]
    for name in (*(own_file(path, node) for node in nodes), path) if path else ():
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108


CHECK = Check(
    name=RUN_DIR,
    reader="transom_cli.health.checks.run_dir:read_run_dir",
    judge=judge_run_dir,
    reading=RunDirReading,
    limits=RunDirLimits,
    seconds=15.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue="reading the run directory",
)
