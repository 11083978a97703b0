"""Which processes on this node belong to one launch of one attempt.

The wrapper (`rank_wrapper`) puts the attempt's folder and the launch's number into the environment of its child, and
all descendants inherit them, even those that left their session or lost their parent. The wrapper's own environment
lacks them: it is recognized by its command line. With `launch.recoverable`, processes of earlier launches belong to the
present one: those that did not enter it have ended. Descendants of a member belong as well, whatever their environment
says: setproctitle and similar tools overwrite it. A job that a rank submits inherits all of this too, and is
recognized by its job ID.

Not found: a process that emptied its environment and outlived every ancestor. On a cluster it is still in the cgroup
of its Slurm step, which slurmstepd empties when the step ends.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from transom_cli.heartbeat import paths, record
from transom_cli.supervise.agent.procfs import Process, command_line, environ, is_python, living

WRAPPER, RANK, CHILD = "wrapper", "rank", "child"
_NODE, _JOB = "SLURMD_NODENAME", "SLURM_JOB_ID"
_CLAIM = (paths.ROLE, paths.ATTEMPT_DIR)
_WRAPPER_PATH = "transom_cli/supervise/agent/rank_wrapper.py"


@dataclass(frozen=True)
class Member:
    """A process of the launch."""

    process: Process
    kind: str  # WRAPPER; RANK (the wrapper's child, and what trains below it if that is a shell or torchrun); or CHILD
    rank: int | None  # its number; None if unknown
    python: bool = False  # it is a Python interpreter
    beats: bool = False  # it writes the rank's heartbeats

    @property
    def pid(self) -> int:
        return self.process.pid


def find(attempt_dir: str | os.PathLike[str], launch: int, node: str) -> list[Member]:
    """Return the living processes of this user that belong to the launch on this node, parents before children.

    The caller and its ancestors are left out.

    Args:
        node: As Slurm calls it. This matters if several nodes share one machine; a process that names no node counts as
            one of this node's.
    """
    folder = os.path.abspath(attempt_dir)  # noqa: PTH100 - as the wrapper does it: no symlink is followed
    job = Path(folder).name.partition(".")[0]
    processes = living()
    wrappers: dict[int, int | None] = {}
    environs: dict[int, Mapping[str, str]] = {}
    for pid in processes:
        env = environ(pid)
        options = _wrapper_options(pid)
        if env.get(_NODE, node) != node:
            continue
        if options is not None and options[0] == folder and _in_launch(options[1], launch, env):
            wrappers[pid] = None if options[2] else _number(env.get("RANK", env.get("SLURM_PROCID", "0")))
        elif [env.get(x) for x in _CLAIM] == ["rank", folder] and env.get(_JOB, job) == job:
            if not _in_launch(_number(env.get(paths.LAUNCH, "")), launch, env):
                continue
            environs[pid] = env
    for pid in [pid for pid in wrappers if processes[pid].ppid in wrappers]:
        del wrappers[pid]  # forked, and not yet another program: a rank in the making
    family = _family(processes, [*wrappers, *environs])
    return _members(family, wrappers, {p.pid: environs.get(p.pid) or environ(p.pid) for p in family}, launch)


def _in_launch(found: int | None, launch: int, env: Mapping[str, str]) -> bool:
    return found == launch or (found is not None and found < launch and paths.RECOVERABLE in env)


def _wrapper_options(pid: int) -> tuple[str, int, bool] | None:
    """Return attempt folder, launch, and whether torchrun is used, from a wrapper's command line; None for others.

    `interpreter [flags] .../agent/rank_wrapper.py ...`: the srun that starts the wrappers has the same words in its
    command line, but at another position.
    """
    words = command_line(pid)
    at = next((n for n, word in enumerate(words) if n and not word.startswith("-")), 0)
    if not at or not words[at].endswith(_WRAPPER_PATH):
        return None
    own = words[at + 1 : words.index("--")] if "--" in words else words[at + 1 :]
    values = dict(pairwise(own))
    launch = _number(values.get("--launch", "0"))
    if launch is None or "--attempt-dir" not in values:
        return None
    return os.path.abspath(values["--attempt-dir"]), launch, "--torchrun" in own  # noqa: PTH100


def _family(processes: Mapping[int, Process], roots: list[int]) -> list[Process]:
    """The roots and all their descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    family: set[int] = set()
    waiting = list(roots)
    for pid in waiting:
        if pid not in family:
            family.add(pid)
            waiting += children.get(pid, ())
    order = [pid for pid in family if processes[pid].ppid not in family]
    for pid in order:
        order += children.get(pid, ())
    return [processes[pid] for pid in order]


def _members(
    family: list[Process], wrappers: Mapping[int, int | None], environs: Mapping[int, Mapping[str, str]], launch: int
) -> list[Member]:
    beating, started = _recorded({env.get(paths.BEAT_DIR, "") for env in environs.values()}, launch)
    made: dict[int, Member] = {}
    for process in family:
        pid = process.pid
        if pid in wrappers:
            made[pid] = Member(process, WRAPPER, wrappers[pid])
            continue
        env, parent = environs[pid], made.get(process.ppid)
        forked = parent is not None and parent.kind != WRAPPER and env.get("RANK") == environs[parent.pid].get("RANK")
        rank = _number(env["RANK"]) if "RANK" in env and not forked else parent.rank if parent else None
        rank = started.get(pid, rank)
        beats = pid in beating
        kind = RANK if beats or _trains(parent, rank) else CHILD
        made[pid] = Member(process, kind, beating.get(pid, rank), is_python(process), beats)
    return list(made.values())


def _trains(parent: Member | None, rank: int | None) -> bool:
    """Return whether a process is the rank itself, judged by its parent.

    The wrapper's child is. If that is a shell, a profiler or torchrun, its child is too. Children of a rank in Python
    are workers.
    """
    if parent is None or parent.kind == CHILD:
        return False
    return parent.kind == WRAPPER or not parent.python or parent.rank != rank


def _recorded(folders: set[str], launch: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the rank by the PID that writes its heartbeats, for processes in our own PID namespace; and by that of the
    wrapper's child. The latter may have waited as another rank, as its environment still says (`launch.standby`)."""
    found: dict[int, int] = {}
    started: dict[int, int] = {}
    for folder in folders - {""}:
        for path in Path(folder).glob("rank-*"):
            try:
                data = path.read_bytes()[: record.SIZE]
            except OSError:
                continue
            last = record.newest(data)
            if last is None or last.launch != launch:
                continue
            if last.child:
                started[last.child] = last.rank
            if last.pid and last.pidns == record.pid_namespace():
                found[last.pid] = last.rank
    return found, started


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
