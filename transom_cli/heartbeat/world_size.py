"""Check at a rank's first heartbeat that the ranks form the world that was launched.

Ranks that each train alone overwrite one checkpoint and end well, so nothing else would reveal it. Only what the
process says counts: torch's process group, if there is one, or a changed WORLD_SIZE.
"""

from __future__ import annotations

import os
import sys

from transom_cli.heartbeat import paths

WRONG_WORLD = 17  # exit code, distinct from errors.EXIT_CODES


def require_launched() -> None:
    """End this process, with a message, if its world is smaller than the launched one."""
    why = _smaller(os.environ.get(paths.WORLD_SIZE, ""))
    if why:
        rank = os.environ.get("RANK", "?")
        words = (
            f"error: rank {rank} trains in a world of another size than was launched\n"
            f"  {why}\n\n"
            "hint: take RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment, where transom sets them:\n"
            '      torch.distributed.init_process_group(init_method="env://"), and set none of them in the trainer or\n'
            "      its scripts. If the ranks are to form several worlds, unset TRANSOM_WORLD_SIZE in the trainer.\n"
        )
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        os.write(2, words.encode())
        os._exit(WRONG_WORLD)


def _smaller(tasks_launched: str) -> str:
    """The evidence, or "". A launcher inside the task may start more ranks, but never join fewer tasks."""
    launched = _number(tasks_launched)
    if launched is None:
        return ""
    tasks = _number(os.environ.get("GROUP_WORLD_SIZE", ""))
    if os.environ.get("TORCHELASTIC_RUN_ID") and tasks is not None:
        if tasks < launched:
            return f"torchrun inside the task joins {tasks} of {launched} tasks: each starts a training of its own"
        return ""
    group = _group()
    if group is not None:
        if group < launched:
            return f"torch.distributed has world size {group}, and transom launched {launched} ranks"
        return ""
    claimed = _number(os.environ.get("WORLD_SIZE", ""))
    if claimed is not None and claimed < launched:
        return f"the trainer has set WORLD_SIZE={claimed}, and transom launched {launched} ranks"
    return ""


def _group() -> int | None:
    """The size of torch's process group; None if torch is not loaded or has no group. Never imports torch."""
    dist = sys.modules.get("torch.distributed")
    try:
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return None
        return int(dist.get_world_size())
    except Exception:
        return None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
