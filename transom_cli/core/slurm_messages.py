"""Messages of srun about its tasks, on stderr, and of slurmstepd in a job's log. Pure.

srun's messages reach the launcher at once. A file written by the rank wrapper may be seen late (a network file system)
or never (a node that does not see the run directory).
"""

import re

from transom_cli.core.events import RankExit
from transom_cli.errors import BadNodes

_LINE = re.compile(r"^srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")
_UNBORN = re.compile(r"^srun: error: task (?P<task>\d+) launch failed: (?P<why>.+)$")
_TASKS = 1 << 20  # of one step; a range that is longer is no word of srun's
_NO_OUTPUT = "could not connect IO"  # the task's log cannot be opened on its node
# Before it has requested a step: nothing of this launch has begun. A step's creation that is not answered srun itself
# keeps asking for, unless the connection is refused.
_SILENT = re.compile(
    r"^srun: error: (?P<why>Unable to (?:confirm allocation for|create step for) job \d+: (?P<how>.+))$"
)
_AWAY = re.compile(
    r"unable to contact slurm|connect failure|socket timed out|connection (?:refused|timed out|reset)", re.I
)
_CODE = re.compile(r"Exited with exit code (\d+)")
_SIGNALS = {  # by the words that srun has for them (Linux numbers)
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Interrupt": 2,
    "Hangup": 1,
}


def task_exits(line: str, wall: float) -> tuple[RankExit, ...]:
    """`srun: error: node2: tasks 0-1,3: Killed`: one exit a task; `wall` is when the line came. Else nothing.

    A task that could not be started has no node in srun's words: an empty name. When its log could not be opened there,
    the exit code is that of a node which does not see the run directory.
    """
    unborn = _UNBORN.match(line.strip())
    if unborn is not None:
        unseen = _NO_OUTPUT in unborn["why"]
        return (RankExit(int(unborn["task"]), "", BadNodes.exit_code if unseen else 1, None, wall),)
    match = _LINE.match(line.strip())
    if match is None:
        return ()
    code = _CODE.search(match["how"])
    number = next((s for words, s in _SIGNALS.items() if match["how"].startswith(words)), None)
    if code is None and number is None:
        return ()
    return tuple(
        RankExit(task, match["node"], int(code[1]) if code else None, number, wall) for task in _expand(match["tasks"])
    )


def slurm_is_away(line: str) -> str:
    """srun's words when it could not even ask for a step, since slurmctld gave no answer; "" for any other line."""
    match = _SILENT.match(line.strip())
    return match["why"] if match is not None and _AWAY.search(match["how"]) else ""


def _expand(tasks: str) -> list[int]:
    numbers: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit() and int(last or first) - int(first) < _TASKS:
            numbers += range(int(first), int(last or first) + 1)
    return numbers


_ENDED = r"\*\*\* JOB {} ON \S+ CANCELLED AT \S+(?P<due> DUE TO [^*]*?)? ?\*\*\*"
_BY_SIGNAL = "due to signal"  # newer releases say so of a plain scancel


def was_cancelled(text: str, job_id: int) -> bool:
    """Whether the newest of these words is of a plain cancel, and not of a time limit, a requeue or the like."""
    found = list(re.finditer(_ENDED.format(job_id), text, re.IGNORECASE))
    due = (found[-1]["due"] or "").strip().lower() if found else "none"
    return not due or due.startswith(_BY_SIGNAL)
