"""Signals of a Slurm step that reach only its tasks: the rank's wrapper hands them on to the trainer.

A step's signals (the warning, preemption, time limit, cancel) go to every process of the step under proctrack/linuxproc
and pgid. Under proctrack/cgroup only KILL does; the others go to the children of slurmstepd alone, which is the wrapper
(`proctrack_p_signal` in Slurm's source), unless the site has set SignalChildrenProcesses. Where the wrapper is in the
control group of a step, it therefore waits for signals and passes on what comes.

The trainer gets two of each signal, its own and ours, under SignalChildrenProcesses, and with control groups v2 where
task/cgroup stands beside proctrack/linuxproc: v2 does not tell these from the others. In a container with a control
group namespace of its own the step is not seen, and nothing is passed on. Tried with real processes; not exercised on
a cluster with control groups.

Imported when the trainer has started already, so that no rank's start-up pays for it.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterable


def only_tasks_are_signalled(cgroups: str) -> bool:
    """Whether the process is in a step's control group, by its /proc/<pid>/cgroup: `number:controllers:path` lines.

    v1: proctrack/cgroup is the one plugin of Slurm's that uses the freezer. v2 has one group for all plugins.
    """
    for line in cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "freezer") and _is_step(path.split("/")):
            return True
    return False


def _is_step(names: list[str]) -> bool:
    """.../job_<n>/step_<m>/..."""
    for job, step in itertools.pairwise(names):
        if job.startswith("job_") and job[4:].isdigit() and step.startswith("step_"):
            return True
    return False


def wait(pid: int, numbers: Iterable[int]) -> int:
    """Wait for the child, and pass these signals on to it; its status, as waitpid's.

    They and CHLD must have been blocked since before the child was forked, and stay so: a late one must not end the
    wrapper before it has recorded the end. A signal and the end are told one after the other, so that a pid is never
    signalled once it is reaped.
    """
    awaited = {signal.SIGCHLD, *numbers}
    while True:
        number = signal.sigwait(awaited)
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            continue
        try:  # noqa: SIM105 - contextlib would be one more import in every wrapper
            os.kill(pid, number)
        except PermissionError:
            pass  # it runs as another user by now
