"""What /proc tells of one process, for a person: proc(5). Each fact is read by itself; None: it cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

from transom_cli.supervise.agent.procfs import Process

THREADS = 64  # of a process; with more, the first by number: the main thread is among them
_PAGE = os.sysconf("SC_PAGE_SIZE")


def facts(process: Process) -> dict[str, object]:
    """state, name, wchan, syscall; threads; rss (bytes), fds (open descriptors), oom_score_adj, cgroup.

    syscall: the call's number and its arguments, or "running". wchan: the kernel's function that it waits in, "0" for
    none or not to be told.
    """
    place = Path(f"/proc/{process.pid}")
    tids = sorted(int(tid) for tid in _names(place / "task") or ())
    resident = (_text(place / "statm") or "").split()
    return {
        "state": _state(place) or process.state,
        "name": process.comm,
        "wchan": _text(place / "wchan"),
        "syscall": _text(place / "syscall"),
        "threads": [_thread(place / "task" / str(tid), tid) for tid in tids[:THREADS]],
        "thread_count": len(tids),
        "rss": int(resident[1]) * _PAGE if len(resident) > 1 else None,
        "fds": _count(place / "fd"),
        "oom_score_adj": _text(place / "oom_score_adj"),
        "cgroup": _text(place / "cgroup"),
    }


def _thread(place: Path, tid: int) -> dict[str, object]:
    return {
        "tid": tid,
        "name": _text(place / "comm"),
        "state": _state(place),
        "wchan": _text(place / "wchan"),
        "syscall": _text(place / "syscall"),
    }


def _state(place: Path) -> str | None:
    text = _text(place / "stat")
    return text.rpartition(")")[2].split()[0] if text and ")" in text else None


def _count(place: Path) -> int | None:
    names = _names(place)
    return None if names is None else len(names)


def _names(place: Path) -> list[str] | None:
    try:
        return os.listdir(place)  # noqa: PTH208
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes()[:4096].decode(errors="replace").strip()
    except OSError:
        return None
