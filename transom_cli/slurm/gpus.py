"""GPUs of a job that requests them per task: a step of one task per node must ask, or it has those of one task only."""

import re
from collections.abc import Mapping

_PER_TASK = re.compile(r"^(?:[^:=,]+:)?(\d+)$|gres/gpu(?:[:/][^=:,]+)?[=:](\d+)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def by_node(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the job's GPUs on each of its nodes, where it requests them per task; otherwise ()."""
    words = (environ.get(name, "") for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    found = next(filter(None, map(_PER_TASK.search, words)), None)
    if found is None:
        return ()
    each = int(found[1] or found[2])
    tasks = _TASKS.findall(environ.get("SLURM_TASKS_PER_NODE", ""))
    return tuple(each * int(count) for count, times in tasks for _ in range(int(times or 1)))


def all_of_them(environ: Mapping[str, str]) -> list[str]:
    """Return srun's options by which a step of one task per node has as many GPUs as every node of the job has."""
    least = min(by_node(environ), default=0)
    return [f"--gres=gpu:{least}"] if least else []


def unwatched(environ: Mapping[str, str]) -> str:
    """Say how many GPUs are left out where the nodes have different numbers; "" if none is."""
    counts = by_node(environ)
    left = sum(counts) - len(counts) * min(counts, default=0)
    more = sum(count > min(counts, default=0) for count in counts)
    if not left:
        return ""
    return (
        f"{left} of the job's {sum(counts)} GPUs are not watched: it requests GPUs per task, {more} of its"
        f" {len(counts)} nodes have more tasks than the others, and Slurm gives a step the same number everywhere"
        " (with --gpus-per-node instead of --gpus-per-task, all are watched)"
    )
