"""Forwards signals of a Slurm step to the trainer, if Slurm sends them only to the step's tasks (the rank wrappers).

With proctrack/linuxproc and pgid, every process of the step gets the step's signals: the warning, preemption, time
limit, cancel. With proctrack/cgroup this is true only of KILL. The others go only to the children of slurmstepd, which
are the wrappers (`proctrack_p_signal` in Slurm's source), unless the site has set SignalChildrenProcesses. So a wrapper
that is in the control group of a step waits for signals and forwards them.

The trainer gets each signal twice with SignalChildrenProcesses, and with cgroup v2 if task/cgroup is combined with
proctrack/linuxproc, which v2 does not distinguish. In a container with its own cgroup namespace, the step is not
visible and nothing is forwarded. Tested with real processes, but not on a cluster with control groups.

This module is imported after the trainer has started, so that it does not delay the start of ranks.
"""

import itertools
import os
import signal
from collections.abc import Iterable


def only_tasks_are_signalled(cgroups: str) -> bool:
    """Return whether the process is in a step's control group. cgroups: the text of its /proc/<pid>/cgroup.

    v1: among Slurm's plugins, only proctrack/cgroup uses the freezer. v2 has one group for all plugins.
    """
    for line in cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "freezer") and _is_step(path.split("/")):
            return True
    return False


def _is_step(names: list[str]) -> bool:
    """Return whether the path contains .../job_<n>/step_<m>/..."""
    for job, step in itertools.pairwise(names):
        if job.startswith("job_") and job[4:].isdigit() and step.startswith("step_"):
            return True
    return False


def wait(pid: int, numbers: Iterable[int]) -> int:
    """Wait for the child, forward these signals to it, and return its status as waitpid does.

    The signals and CHLD must be blocked from before the fork until the wrapper ends: a late signal must not end the
    wrapper before it has recorded the rank's end. Signals and the end are handled one after the other, so a reaped PID
    is never signalled.
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
