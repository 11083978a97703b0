"""Slurm's commands as a person is told to type them: for the cluster that has the job. Pure.

Job numbers and nodes' names of two clusters are the same words, so a command without its cluster may do to another job,
or another node, what was meant for ours.
"""

from __future__ import annotations

import shlex

from transom_cli.errors import printable


def by_hand(command: str, cluster: str = "") -> str:
    """`scontrol release 7`, on one of several clusters as `scontrol -M alps release 7`.

    cluster: as `job.cluster`; "" is the one that Slurm's commands speak to by themselves.
    """
    if not cluster:
        return command
    name, _, words = command.partition(" ")
    return f"{name} -M {shlex.quote(printable(cluster))} {words}".rstrip()


def let_go_on(job_id: int, reason: str, kept_away: tuple[str, ...], cluster: str = "") -> dict[str, str]:
    """By what each is for: the commands after which a job that is held, for Slurm's `reason`, may start.

    Where only the nodes that are kept away would fit, Slurm holds a released job again at once, and does not see by
    itself that others have come to fit (a reservation has got more nodes, say).
    """
    release = by_hand(f"scontrol release {job_id}", cluster)
    release += "   # by an administrator" if reason == "JobHeldAdmin" else ""  # it refuses to everybody else
    if reason.startswith("BadConstraints") and kept_away:
        return {"go on": f"transom nodes --lift {','.join(kept_away)}", "new nodes": release}
    return {"go on": release}
