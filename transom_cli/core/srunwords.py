"""What srun itself says of its tasks, on stderr. Pure.

It reaches the launcher at once, also where a file written by the rank's own wrapper is seen late (a network file
system) or never (a node that does not see the run directory).
"""

from __future__ import annotations

import re
import signal

from transom_cli.core.events import RankExit

_LINE = re.compile(r"^srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")
_CODE = re.compile(r"Exited with exit code (\d+)")
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Interrupt": signal.SIGINT,
    "Hangup": signal.SIGHUP,
}


def task_exits(line: str, wall: float) -> tuple[RankExit, ...]:
    """`srun: error: node2: tasks 0-1,3: Killed`: one exit a task; `wall` is when the line came. Else nothing."""
    match = _LINE.match(line.strip())
    if match is None:
        return ()
    code = _CODE.search(match["how"])
    number = next((s for words, s in _SIGNALS.items() if match["how"].startswith(words)), None)
    if code is None and number is None:
        return ()
    return tuple(
        RankExit(task, match["node"], int(code[1]) if code else None, int(number) if number else None, wall)
        for task in _expand(match["tasks"])
    )


def _expand(tasks: str) -> list[int]:
    numbers: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers += range(int(first), int(last or first) + 1)
    return numbers
