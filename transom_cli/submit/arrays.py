"""The elements of a job array, each of which becomes a run of its own. Pure.

A run's job is submitted as an array of one element (`--array=7`), so that the script finds its SLURM_ARRAY_TASK_ID, and
that a requeue, an exclusion or a cancellation is of that element alone.
"""

from __future__ import annotations

import re

from transom_cli.errors import UsageError

MOST = 16  # elements, as each has an operator: a process of about 50 MB on the login node
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
# They would tell of one element, where the script means all of them.
_OF_THE_WHOLE = ("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
_INSTEAD = "leave the line out and start a run for each: for i in 0 1 2; do transom run --detach SCRIPT $i; done"


def elements(spec: str, where: str) -> tuple[int, ...]:
    """`0-6:3,9` is 0, 3, 6, 9.

    UsageError, which quotes `where`, for what sbatch would refuse; for a limit (`%2`), since no run waits for another
    one; and for more than MOST.
    """
    body, percent, _ = spec.strip().partition("%")
    if percent:
        raise UsageError(
            "A job array with a limit is not supported",
            f"{where} lets only some elements run at a time, and runs do not wait for each other",
            "leave the % out: each element is a run of its own; or give the runs a QOS of the site's with such a limit",
        )
    found: dict[int, None] = {}
    for part in body.split(","):
        read = _PART.fullmatch(part.strip())
        first, last = (int(read[1]), int(read[2] or read[1])) if read else (1, 0)
        step = int(read[3] or 1) if read else 1
        if last < first or step == 0:
            raise UsageError("The job array's elements cannot be read", where, "as in --array=0-7 or --array=1,3,5-9:2")
        if (last - first) // step >= MOST:
            raise _too_many(where)
        found.update(dict.fromkeys(range(first, last + 1, step)))
    if len(found) > MOST:
        raise _too_many(where)
    return tuple(found)


def refuse_whole(text: str) -> None:
    """UsageError for a script that asks how many elements there are: each run's answer would be one."""
    asked = next((name for name in _OF_THE_WHOLE if name in text), None)
    if asked is not None:
        raise UsageError(
            "This job array's script asks about the whole array",
            f"it reads {asked}; transom submits each element as an array of its own, of one element",
            "write the number itself into the script",
        )


def _too_many(where: str) -> UsageError:
    return UsageError(
        f"A job array of more than {MOST} elements is not supported",
        f"{where}; each element is a run of its own, with an operator on this machine",
        _INSTEAD,
    )
