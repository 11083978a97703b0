"""What a person can do about a run as it stands: the very command, or where to look. Pure."""

from __future__ import annotations

import shlex

from transom_cli.errors import NoCheckpoint
from transom_cli.ui.view import RunView


def todo(view: RunView) -> list[tuple[str, str]]:
    """A word on what it is for, and the command. The run id needs no quotes; paths may."""
    run, word, job = view.run_id, view.word, view.job_id
    story, stop = ("the story", f"transom explain {run}"), ("give up", f"transom stop {run}")
    if word == "held" and job:
        return [story, ("go on", f"scontrol release {job}"), stop]
    if word == "unknown":
        asked = [("ask Slurm", f"scontrol show job {job}")] if job else []
        return [("take it up", f"transom attach {run}"), *asked]
    if word == "pending":
        return [("look", f"squeue --start -j {job}"), stop] if job else [stop]
    if word == "starting" and view.path:
        return [("its output", f"tail -f {shlex.quote(f'{view.path}/slurm-{job}.log')}")]
    if word == "recovering":
        return [story]
    if word in ("failed", "stopped"):
        on = go_on(view)
        further = [("go on", on)] if on else []
        if view.exit_code == NoCheckpoint.exit_code:
            further = [("look", f"transom ckpt verify {run}")]
        return [story, *further] if view.incidents else further
    if word == "done" and view.durable >= 0:
        return [("the result", f"transom ckpt ls {run}")]
    return []


def go_on(view: RunView) -> str:
    """The command that goes on from the newest checkpoint of a run that is over; "" where there is none to go on from.

    Such a run is not taken up again, and a new one begins at step 0 unless it is told of the checkpoints.
    """
    if view.durable < 0 or not view.checkpoints or view.exit_code == NoCheckpoint.exit_code:
        return ""
    return f"transom run --set checkpoint.directory={shlex.quote(view.checkpoints)} ..."
